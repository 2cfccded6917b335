"""How estimators are called: what they need, and turns whose reward nobody knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from marl_llm.credit import assign
from marl_llm.credit.batch import Credit, token_credit
from marl_llm.credit.card import Card
from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.gae import GAE
from marl_llm.credit.given import Given
from marl_llm.credit.rae import RAE
from marl_llm.errors import EpisodeError


@dataclass(frozen=True)
class Replayed:
    """A = the mean of two continuations of the turn, at each of its tokens."""

    card: ClassVar[Card] = Card(
        name="replayed",
        title="Replayed",
        source="the tests",
        evidence="code",
        granularity="turn",
        methodology="monte carlo",
        level="token",
        resamples=True,
    )

    def estimate(self, batch, given) -> Credit:
        rows = np.arange(len(batch))[::-1]
        found = given.resampler("replayed")(rows, 2, after=True).mean(axis=1)[::-1]
        values = np.repeat(found, batch.lengths)
        return token_credit(
            batch, values, components={"all": values}, stats={"turns": 1.0 * len(batch)},
            targets=values + 1,
        )  # fmt: skip


def test_a_missing_signal_names_who_attaches_it(make_batch):
    with pytest.raises(
        EpisodeError,
        match=r"gae needs the signal 'value', .* is V before the turn, .* comes from state_values",
    ):
        assign(GAE(), make_batch([1.0]))


def test_without_unscored_turns_it_is_the_estimator_itself(f1):
    np.testing.assert_array_equal(assign(DrGRPO(), f1).advantage, DrGRPO().estimate(f1).advantage)
    assert "unscored_turns" not in assign(DrGRPO(), f1).stats


def test_an_agent_with_an_unscored_turn_leaves_the_group(make_batch):
    # Episodes 0 to 3 of one group; the last turn of agent 0 in episode 1 has no known reward, so
    # that its two turns go, and agent 1 of the same episode stays. Agent 0: 6, 2, 1 with mean 3;
    # agent 1: 4, 8 with mean 6.
    batch = make_batch(
        [6, 50, 60, 4, 2, 8, 1],
        episode=[0, 1, 1, 1, 2, 2, 3],
        agent=[0, 0, 0, 1, 0, 1, 0],
        lengths=[1, 2, 1, 1, 1, 1, 1],
        signals={"unscored": [0, 0, 1, 0, 0, 0, 0]},
    )
    credit = assign(DrGRPO(), batch)
    assert credit.advantage.tolist() == [3, 0, 0, -2, -1, 2, -2]
    assert credit.weight.tolist() == [1, 0, 0, 1, 1, 1, 1]
    assert credit.components["return"].tolist() == [6, 0, 0, 4, 2, 8, 1]
    assert credit.stats["unscored_turns"] == 2


def test_silent_turns_are_not_counted_as_unscored(make_batch):
    batch = make_batch(
        [6, 50, 60], episode=[0, 1, 1], lengths=[1, 2, 0], signals={"unscored": [0, 1, 1]}
    )
    assert assign(DrGRPO(), batch).stats["unscored_turns"] == 1


def test_everybody_unscored_is_nothing_learned(make_batch):
    credit = assign(DrGRPO(), make_batch([1, 2], signals={"unscored": [1, 1]}))
    assert credit.advantage.tolist() == credit.weight.tolist() == [0, 0]
    assert credit.stats["unscored_turns"] == 2


def test_continuations_and_tokens_find_their_rows(make_batch, make_replays):
    """The estimator numbers the rows that are left anew; replays go by the numbers of the batch."""
    batch = make_batch([5, 7, 9], lengths=[2, 1, 3], signals={"unscored": [1, 0, 0]})
    credit = assign(Replayed(), batch, Given(resample=make_replays(batch)))
    # Behind the last turn the return stands as it is: 7 and 9. The first turn's two tokens get 0.
    assert credit.advantage.tolist() == [0, 0, 7, 9, 9, 9]
    assert credit.targets.tolist() == [0, 0, 8, 10, 10, 10]
    assert credit.components["all"].tolist() == credit.advantage.tolist()
    assert credit.weight.tolist() == [0, 1, 1]
    assert credit.stats["turns"] == 2


def test_a_memory_does_not_hear_of_unscored_turns(make_batch):
    batch = make_batch([100, 1], signals={"unscored": [1, 0]})
    credit = assign(RAE(decay=0.5), batch)
    assert credit.state["averages"] == {"go": {"alice": {"a_0": 0.5}}}
