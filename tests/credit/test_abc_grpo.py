"""ABC-GRPO: step scores against all steps of the group, discounted ahead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.abc_grpo import AbcGRPO
from marl_llm.credit.grpo import GRPO
from marl_llm.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def search(make_batch, scores=(1.8, 1, 0.2, 1, 2.2, 1), **more):
    """Clue found, nothing, clue denied, right answer; clue and wrong candidate, wrong answer."""
    return make_batch([0, 0, 0, 1, 0, -1], episode=[0, 0, 0, 0, 1, 1], **more).with_signals(
        {"judge_score": np.array(scores, dtype=float)}
    )


def plain(estimator, batch):
    """The formula, turn by turn, from each agent's last to its first."""
    lengths = batch.lengths
    known = batch.known("judge_score")
    turns = sorted(range(len(batch)), key=lambda i: -batch.agent_turn[i])
    score, silent = {}, {}
    for i in turns:
        me = (batch.episode[i], batch.agent[i])
        if not lengths[i]:  # pays the sampled turn before it
            silent[me] = silent.get(me, 0) + batch.reward[i]
            continue
        judged = batch.signals["judge_score"][i] if known[i] else 1.0
        score[i] = min(max(judged + batch.reward[i] + silent.pop(me, 0), 0.0), 2.0)
    advantage, ahead = np.zeros(len(batch)), {}
    for i in turns:
        me = (batch.episode[i], batch.agent[i])
        z = 0.0
        if i in score:
            cell = (batch.group[i], batch.agent[i])
            x = [score[j] for j in score if (batch.group[j], batch.agent[j]) == cell]
            if len(set(x)) > 1:
                mean = sum(x) / len(x)
                variance = sum((y - mean) ** 2 for y in x) / (len(x) - 1)
                z = (score[i] - mean) / (variance**0.5 + 1e-6)
        ahead[me] = z + estimator.gamma * ahead.get(me, 0.0)
        advantage[i] = ahead[me] if i in score else 0.0
    return advantage


PLAIN = {"abc_grpo": plain}


def test_worked_value(make_batch):
    # Scores 1.8, 1, .2, 2 and (2.2 clipped to) 2, 0: mean 7/6, squares 4.113333, std √(4.1133/5) =
    # .907010; z = .6983, -.1838, -1.0658, .9188 and .9188, -1.2863. With γ = .25 from behind:
    # -1.0658 + .2297 = -.8361, -.1838 - .2090 = -.3928, .6983 - .0982 = .6001; .9188 - .3216.
    credit = AbcGRPO().estimate(search(make_batch))
    expected = [0.6001, -0.3928, -0.8361, 0.9188, 0.5972, -1.2863]
    np.testing.assert_allclose(credit.advantage, expected, atol=5e-5)
    assert abs(credit.components["step"].sum()) < 1e-9


@LAW
@given(SEEDS, st.floats(0, 1))
def test_against_a_plain_loop(random_batch, seed, gamma):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, silent=0.3)
    lost = np.where(rng.random(len(batch)) < 0.2, np.nan, batch.signals["judge_score"])
    batch = batch.with_signals({"judge_score": lost})
    estimator = AbcGRPO(gamma=gamma)
    got = estimator.estimate(batch).advantage
    np.testing.assert_allclose(got, plain(estimator, batch), atol=1e-9)


def test_without_a_discount_and_with_one_turn_each_it_is_grpo_of_the_scores(make_batch):
    scores = [0.2, 1.0, 1.4, 0.7]
    batch = make_batch([0] * 4, signals={"judge_score": scores})
    expected = GRPO().estimate(make_batch(scores)).advantage
    np.testing.assert_allclose(AbcGRPO(gamma=0.0).estimate(batch).advantage, expected)


def test_a_forfeit_on_a_turn_without_tokens_counts_at_the_turn_before(make_batch):
    # The wrong answer's -1 reaches the agent one silent turn later: the same scores.
    batch = search(make_batch)
    late = make_batch(
        [0, 0, 0, 1, 0, 0, -1], episode=[0, 0, 0, 0, 1, 1, 1], lengths=[1] * 6 + [0]
    ).with_signals({"judge_score": np.array([1.8, 1, 0.2, 1, 2.2, 1, 9])})
    expected = AbcGRPO().estimate(batch).advantage
    np.testing.assert_allclose(AbcGRPO().estimate(late).advantage, [*expected, 0])


def test_a_step_that_was_not_judged_is_one_where_nothing_happened(make_batch):
    missing = AbcGRPO().estimate(search(make_batch, scores=(1.8, np.nan, 0.2, 1, 2.2, 1)))
    np.testing.assert_array_equal(
        missing.advantage, AbcGRPO().estimate(search(make_batch)).advantage
    )
    assert missing.stats["missing_labels"] == 1


def test_equal_scores_give_exact_zeros(make_batch):
    batch = make_batch([0] * 3, episode=[0, 0, 1], signals={"judge_score": [0.1] * 3})
    assert not AbcGRPO().estimate(batch).advantage.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 1.1}, "abc_grpo.gamma"),
        ({"low": 1.5}, "low <= eventless <= high, got 1.5, 1.0, 2.0"),
        ({"ddof": 2}, "abc_grpo.ddof"),
        ({"unit": "agent"}, "abc_grpo.unit"),
        ({"epsilon": -1.0}, "abc_grpo.epsilon"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        replace(AbcGRPO(), **options)
