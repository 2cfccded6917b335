"""What all shapes of a response's advantage share: where they begin, and how far they see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.avatar_tas import AvatarTAS
from marl_llm.credit.batch import per_token
from marl_llm.credit.dash import DashFactorReading, DashReading
from marl_llm.credit.fipo import FIPO
from marl_llm.credit.frpo import FRPO
from marl_llm.credit.gcpo import GCPO
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.pepo import PEPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
SHAPES = [
    PEPO(),
    FRPO(beta=0.1),
    FIPO(high_only=False),
    GCPO(),
    AvatarTAS(lam=0.5),
    DashReading(a_plus=1.0, a_minus=0.5, growth=0.1, w_max=2.0),
    DashFactorReading(k=0.5),
]
ALL = pytest.mark.parametrize("estimator", SHAPES, ids=lambda one: one.card.name)


def with_signals(batch, **columns):
    return replace(batch, signals={**batch.signals, **columns})


@LAW
@given(SEEDS)
def test_with_nothing_to_say_each_of_them_is_grpo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    size = len(batch.logprobs)
    batch = with_signals(
        batch,
        entropy=np.full(size, 0.7),
        new_logprob=batch.signals["old_logprob"],
        negative_logprob=batch.logprobs,
        commitment=np.zeros(size),
    )
    silent = [
        PEPO(edges="mean"),
        FRPO(beta=0.0, ddof=1, epsilon=1e-6),
        FIPO(),
        GCPO(ties="mean"),
        AvatarTAS(lam=0.0),
        DashReading(a_plus=1.0, a_minus=0.5, growth=0.1, w_max=2.0),
        DashFactorReading(k=0.5),
    ]
    expected = per_token(GRPO().estimate(batch), batch)
    for estimator in silent:
        np.testing.assert_allclose(
            estimator.estimate(batch).advantage, expected, atol=1e-12, err_msg=estimator.card.name
        )


@ALL
@pytest.mark.parametrize("reach", ["turn", "agent"])
def test_a_response_is_a_turn_or_all_turns_of_an_agent(make_batch, estimator, reach):
    """Two agents by turns: agent 0 says 2 + 1 + 3 tokens, agent 1 says 2 + 2; two episodes."""
    rng = np.random.default_rng(3)
    episode, agent, lengths = [0, 0, 0, 0, 0, 1, 1], [0, 1, 0, 1, 0, 0, 1], [2, 2, 1, 2, 3, 1, 1]
    names = ("entropy", "reference_logprob", "new_logprob", "old_logprob", "negative_logprob")
    signals = {name: rng.normal(size=12) for name in names}
    signals["commitment"] = [1, -1, 0, -1, -1, 1, -1, -1, -1, 1, 0, 1]
    batch = make_batch(
        [0, 0, 0, 0, 1.0, 0, 0.5], episode=episode, agent=agent, lengths=lengths, signals=signals
    )
    # The same tokens, agent 0's turns of episode 0 laid end to end: first 0-1, 4, 7-9.
    order = np.array([0, 1, 4, 7, 8, 9, 2, 3, 5, 6, 10, 11])
    joined = make_batch(
        [1.0, 0, 0, 0.5], episode=[0, 0, 1, 1], agent=[0, 1, 0, 1], lengths=[6, 4, 1, 1],
        signals={name: np.asarray(signal)[order] for name, signal in signals.items()},
    )  # fmt: skip
    got = replace(estimator, response=reach).estimate(batch).advantage[order]
    whole = replace(estimator, response="turn").estimate(joined).advantage
    if reach == "agent":
        np.testing.assert_allclose(got, whole, atol=1e-12)
    else:
        assert not np.allclose(got, whole)


@ALL
@LAW
@given(SEEDS)
def test_what_another_response_holds_changes_nothing(random_batch, estimator, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    rest = np.repeat(batch.episode != 0, batch.lengths)
    other = {
        name: np.where(rest, rng.permutation(signal), signal)
        for name, signal in batch.signals.items()
        if name in estimator.card.needs
    }
    first = estimator.estimate(batch).advantage
    second = estimator.estimate(with_signals(batch, **other)).advantage
    assert first[~rest].tobytes() == second[~rest].tobytes(), "not even a rounding error"


def test_an_unknown_response_is_refused():
    with pytest.raises(ConfigError, match=r"pepo.response has no option 'turns'; did you mean"):
        PEPO(response="turns")
