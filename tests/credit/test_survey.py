"""The survey's questions, answered from cards: nothing is guessed, and nobody is left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marl_llm import config
from marl_llm.credit import assign
from marl_llm.credit.batch import per_token
from marl_llm.credit.card import Card
from marl_llm.credit.given import Given
from marl_llm.credit.signals import KNOWN
from marl_llm.credit.survey import (
    CRITICS,
    PLAYED,
    REPLAYED,
    REPLAYS,
    TIERS,
    annotators,
    settings_of,
    survey,
)

MODELS = {  # everybody else: a model says it, and it may err
    "a critic", "a judge", "a process judge", "a process reward model", "a progress model",
    "a teacher", "answer_clusters", "checked answers", "citations", "delegation_values",
    "gold_answers", "hindsight", "judge_good", "judge_role", "judge_score", "negative_prompt",
    "plan_values", "ranked states", "reference_logprobs", "state_values", "support_graph",
}  # fmt: skip


def built(name):
    return config.build(config.node("credit", name))


def answers(name, **settings):
    estimator = built(name)
    return survey(estimator.card, {**settings_of(estimator), **settings})


def test_everybody_who_attaches_a_signal_is_sorted_once():
    """A new annotator must be told apart here, or its rules would be said to rest on a model."""
    who = {signal.annotator for signal in KNOWN.values()}
    assert who <= PLAYED | REPLAYED | MODELS
    assert not PLAYED & REPLAYED
    assert not MODELS & (PLAYED | REPLAYED)
    assert CRITICS <= MODELS | REPLAYED


@pytest.mark.parametrize(
    ("name", "tier", "reference", "baseline"),
    [
        ("grpo", "observational", "observed", "group"),
        ("mars", "observational", "observed", "batch by role, agent"),
        ("mars_state", "observational", "matched", "batch by state_key"),
        ("graft", "observational", "matched", "group"),
        ("hgpo", "observational", "matched", "group"),
        ("gae", "proxy", "observed", "critic"),
        ("vine_ppo", "restored", "restored", None),
        ("leave_one_out", "restored", "restored", None),
        ("hcapo", "model-relative", "observed", "group"),
        ("triage", "proxy", "observed", "group"),
        ("frpo", None, "observed", "group"),  # returns, with a model's log-probs among them
        ("reinforce_pp", "observational", "observed", None),  # its card does not say whose mean
    ],
)
def test_some_that_one_knows(name, tier, reference, baseline):
    found = answers(name)
    assert (found.tier, found.reference, found.baseline) == (tier, reference, baseline)
    assert tier is None or tier in TIERS


def test_settings_count_and_a_yaml_gives_lists():
    assert answers("grpo", by=[]).baseline == "batch"
    assert answers("grpo", by=["role", "state_key"]).baseline == "batch by role, state_key"
    assert answers("grpo", by=["role", "state_key"]).reference == "matched"


def test_replays_are_one_more_thing_to_be_had():
    assert annotators(built("vine_ppo").card) == [REPLAYS]
    assert annotators(built("grpo").card) == []


def test_every_method_has_a_unit_and_an_estimand():
    for name in config.choices("credit"):
        found = answers(name)
        assert found.unit and found.estimand, name


def test_a_new_methodology_or_granularity_must_be_put_into_words():
    for name in ("granularity", "methodology"):
        card = replace(built("grpo").card, **{name: "new"})
        with pytest.raises(KeyError, match="new"):
            survey(card, {})
    assert isinstance(built("grpo").card, Card)


@pytest.mark.parametrize("name", config.choices("credit"))
def test_matched_means_that_equal_states_count(name, random_batch, make_replays):
    """Who is said to compare as it came is blind to states; who is said to match is not."""
    estimator = built(name)
    rng = np.random.default_rng(3)
    batch = random_batch(rng, groups=2, episodes=8, max_turns=3)
    n = len(batch)
    batch = replace(
        batch,
        state_key=100 * batch.group + 10 * batch.agent + rng.integers(0, 2, n),
        action_key=rng.integers(0, 2, n),
    )
    apart = replace(batch, state_key=np.arange(n))

    def credit(of):
        given = Given(np.random.default_rng(0), make_replays(of))
        return per_token(assign(estimator, of, given), of)

    blind = np.allclose(credit(batch), credit(apart))
    assert blind == (answers(name).reference != "matched")
