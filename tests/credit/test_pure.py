"""PURE: min-form credit of turns, and of steps inside turns."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.pure import Pure, PureSegments, min_form
from marl_llm.credit.rloo import RLOO
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)
RAW = {"whiten": False}


def one(score, temperature):
    return min_form(np.asarray(score), np.zeros(len(score), dtype=int), 1, temperature)


def plain_tokens(estimator, batch, steps):
    """Process and outcome parts at every token, before they are whitened.

    Args:
        steps: per (episode, agent) a list of (score, the step's last token), in order.
    """
    lengths = batch.lengths
    rows, cells, total, spoke = {}, {}, {}, set()
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        key = (batch.episode[i], batch.agent[i])
        rows.setdefault(key, []).append(i)
        total[key] = total.get(key, 0.0) + batch.reward[i]
        cells.setdefault((batch.group[i], batch.agent[i]), {})[key] = True
        if lengths[i]:
            spoke.add(key)
    rewards, average = {}, {}
    for key in rows:
        scores = [score for score, _ in steps.get(key, [])]
        w = [math.exp((min(scores) - score) / estimator.temperature) for score in scores]
        rewards[key] = [x / sum(w) * score for x, score in zip(w, scores, strict=True)]
        if scores:
            average[key] = sum(rewards[key]) / len(scores)
    out = np.zeros(len(batch.logprobs))
    for cell in cells.values():
        for key in cell:
            others = [other for other in cell if other != key]
            judged = [average[other] for other in others if other in average]
            heard = [total[other] for other in others if other in spoke]
            gains = {}
            if judged:
                mean = sum(judged) / len(judged)
                for reward, (_, end) in zip(rewards[key], steps.get(key, []), strict=True):
                    gains[end] = reward - mean
            ahead = 0.0
            if heard:
                ahead = estimator.outcome_weight * (total[key] - sum(heard) / len(heard))
            for i in reversed(rows[key]):
                for t in range(batch.offsets[i + 1] - 1, batch.offsets[i] - 1, -1):
                    ahead += gains.get(t, 0.0)
                    out[t] = ahead
    return out


def plain_white(estimator, x, live):
    """Whitened over the tokens that are live, 0 elsewhere."""
    values = [x[t] for t in range(len(x)) if live[t]]
    mean, scale = 0.0, 1.0
    if estimator.whiten and len(values) > estimator.ddof:
        mean = sum(values) / len(values)
        squares = sum((value - mean) ** 2 for value in values)
        scale = (squares / (len(values) - estimator.ddof) + estimator.epsilon) ** 0.5
    return np.array([(x[t] - mean) / scale if live[t] else 0.0 for t in range(len(x))])


def plain(estimator, batch):
    """Each turn with a score is a step."""
    lengths = batch.lengths
    score, known = batch.signals["judge_score"], batch.known("judge_score")
    steps = {}
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        if known[i] and lengths[i]:
            mine = steps.setdefault((batch.episode[i], batch.agent[i]), [])
            mine.append((score[i], batch.offsets[i + 1] - 1))
    by_token = plain_tokens(estimator, batch, steps)
    by_token = plain_white(estimator, by_token, [True] * len(by_token))
    out = np.zeros(len(batch))
    for i in range(len(batch)):
        if lengths[i]:
            out[i] = by_token[batch.offsets[i]]
    return out


def plain_segments(estimator, batch):
    """Runs of equal numbers inside turns are steps."""
    segment, paid = batch.signals["segment"], batch.signals["token_reward"]
    steps, ends = {}, set()
    for i in np.lexsort((batch.agent_turn, batch.agent, batch.episode)):
        found = {}
        for t in range(batch.offsets[i], batch.offsets[i + 1]):
            if segment[t] >= 0:
                score, _ = found.get(segment[t], (0.0, t))
                found[segment[t]] = (score + paid[t], t)
        steps.setdefault((batch.episode[i], batch.agent[i]), []).extend(found.values())
        ends |= {end for _, end in found.values()}
    live = [
        segment[t] >= 0 and not (estimator.skip_ends and t in ends) for t in range(len(segment))
    ]
    return plain_white(estimator, plain_tokens(estimator, batch, steps), live)


PLAIN = {"pure": plain, "pure_segments": plain_segments}


def test_min_form_worked_value():
    # e^-8, e^-2, e^6 over their sum: .000001, .000335, .999664.
    got = one([0.8, 0.2, -0.6], 0.1)
    np.testing.assert_allclose(got, [6.65e-7, 0.0000671, -0.5997985], atol=5e-7)
    assert got.sum() == pytest.approx(-0.599731, abs=5e-7)
    # e^-9, e^-7: .119203, .880797; .107283 + .616558.
    assert one([0.9, 0.7], 0.1).sum() == pytest.approx(0.723841, abs=5e-7)


@LAW
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_the_sum_of_steps_goes_from_the_smallest_to_the_mean(score):
    assert one(score, 1e-6).sum() == pytest.approx(min(score), abs=1e-4)
    assert one(score, 1e6).sum() == pytest.approx(np.mean(score), abs=1e-4)
    assert one(score[:1], 0.1).tolist() == score[:1]


def two_responses(make_batch, **options):
    """Three steps scored .8, .2, -.6 and two scored .9, .7; both answers are as good."""
    return make_batch(
        [0.0] * 5, episode=[0, 0, 0, 1, 1], signals={"judge_score": [0.8, 0.2, -0.6, 0.9, 0.7]},
        **options,
    )  # fmt: skip


def test_worked_value(make_batch):
    # Averages -.599731/3 = -.199910 and .723841/2 = .361920, each the other's baseline.
    # Steps: .000001 - .361920 = -.361920, .000067 - .361920 = -.361853, -.599799 - .361920 =
    # -.961719; .107283 + .199910 = .307193, .616558 + .199910 = .816468. Summed from the end.
    got = Pure(**RAW).estimate(two_responses(make_batch)).advantage
    expected = [-1.685491, -1.323572, -0.961719, 1.123661, 0.816468]
    np.testing.assert_allclose(got, expected, atol=2e-6)


def test_the_same_on_segments_of_one_turn(make_batch):
    # Steps of two tokens each; the score lies on the second.
    score = [0, 0.8, 0, 0.2, 0, -0.6, 0, 0.9, 0, 0.7]
    segment = [0, 0, 1, 1, 2, 2, 0, 0, 1, 1]
    batch = make_batch(
        [0.0, 0.0], lengths=[6, 4], signals={"token_reward": score, "segment": segment}
    )
    expected = np.repeat([-1.685491, -1.323572, -0.961719, 1.123661, 0.816468], 2)
    got = PureSegments(**RAW, skip_ends=False).estimate(batch).advantage
    np.testing.assert_allclose(got, expected, atol=2e-6)
    got = PureSegments(**RAW).estimate(batch).advantage
    np.testing.assert_allclose(got[::2], expected[::2], atol=2e-6)
    assert not got[1::2].any(), "separators get 0"


def test_longer_responses_are_charged_the_baseline_for_every_step(make_batch):
    """Three episodes of the same score; the one with four steps comes out worst."""
    batch = make_batch([0.0] * 6, episode=[0, 0, 0, 0, 1, 2], signals={"judge_score": [0.5] * 6})
    got = Pure(**RAW).estimate(batch).advantage
    # .5/4 at each of four steps, charged .5 each: -1.5. The others: .5 - (.125 + .5)/2 = .1875.
    np.testing.assert_allclose(got[[0, 4, 5]], [-1.5, 0.1875, 0.1875])


def test_the_outcome_is_compared_with_the_others_and_paid_at_the_end(make_batch):
    # No scores: RLOO on the return, at every turn of the agent.
    batch = two_responses(make_batch)
    batch = replace(batch, reward=np.array([0, 0, 1.0, 0, 0]), signals={"judge_score": np.zeros(5)})
    got = Pure(**RAW).estimate(batch)
    np.testing.assert_allclose(got.advantage, [1, 1, 1, -1, -1])
    assert not got.components["process"].any()


@LAW
@given(SEEDS)
def test_with_equal_scores_of_zero_it_is_rloo(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    silent = replace(
        batch,
        signals={**batch.signals, "judge_score": np.zeros(len(batch))},
    )
    got = Pure(**RAW).estimate(silent).advantage
    np.testing.assert_allclose(got, RLOO().estimate(batch).advantage, atol=1e-12)


def test_turns_against_the_plain_formula(random_batch):
    for seed in range(4):
        batch = random_batch(np.random.default_rng(seed))
        score = batch.signals["judge_score"]
        batch = batch.with_signals(
            {"judge_score": np.where(np.arange(len(batch)) % 5 == 0, np.nan, score)}
        )
        known = batch.known("judge_score") & (batch.lengths > 0)
        for whiten in (False, True):
            estimator = Pure(whiten=whiten, outcome_weight=0.7)
            credit = estimator.estimate(batch)
            np.testing.assert_allclose(credit.advantage, plain(estimator, batch), atol=1e-9)
        assert credit.stats["missing_labels"] == np.sum((batch.lengths > 0) & ~known)


def test_segments_against_the_plain_formula(random_batch):
    for seed in range(4):
        batch = random_batch(np.random.default_rng(seed))
        segment = np.where(np.arange(len(batch.logprobs)) % 7 == 0, -1, batch.signals["segment"])
        batch = replace(batch, signals={**batch.signals, "segment": segment})
        for options in ({**RAW, "skip_ends": False}, {}):
            estimator = PureSegments(**options)
            got = estimator.estimate(batch).advantage
            np.testing.assert_allclose(got, plain_segments(estimator, batch), atol=1e-9)


def test_a_missing_score_is_no_step(make_batch):
    batch = two_responses(make_batch).with_signals(
        {"judge_score": np.array([0.8, np.nan, -0.6, 0.9, np.nan])}
    )
    # The last row earns nothing and is charged nothing; what follows row 1 is all it has.
    got = Pure(**RAW).estimate(batch)
    assert got.advantage[4] == 0
    assert got.advantage[1] == got.advantage[2]
    assert got.stats["missing_labels"] == 2


def test_a_response_without_any_score_is_nobodys_baseline(make_batch):
    """Its average would be 0, which no judge said."""
    batch = make_batch([0.0] * 3).with_signals({"judge_score": np.array([0.5, 0.3, np.nan])})
    # .5 against .3, and not against (.3 + 0)/2.
    np.testing.assert_allclose(Pure(**RAW).estimate(batch).advantage, [0.2, -0.2, 0], atol=1e-12)


def test_agents_that_share_one_count_keep_it_when_one_has_no_score(make_batch):
    # Two agents per episode, of whom the second is never scored. The first ones' sums are -.6, .7
    # and .3 in episodes 0 to 2: episode 0 is compared with their mean, and so on.
    batch = make_batch([0.0] * 6, episode=[0, 0, 1, 1, 2, 2], agent=[0, 1] * 3, role=[0] * 6)
    scores = np.array([-0.6, np.nan, 0.7, np.nan, 0.3, np.nan])
    shared = Pure(by=["group"], unit="episode", whiten=False)
    got = shared.estimate(batch.with_signals({"judge_score": scores})).components["process"]
    np.testing.assert_allclose(got, [-1.1, 0, 0.85, 0, 0.25, 0], atol=1e-12)


@pytest.mark.parametrize(("rule", "expected"), [("zero", 0.0), ("raw", 0.5 + 2.0)])
def test_alone(make_batch, rule, expected):
    batch = make_batch([2.0], signals={"judge_score": [0.5]})
    got = Pure(**RAW, singleton=rule).estimate(batch).advantage
    np.testing.assert_allclose(got, [expected])


def test_alone_can_be_refused(make_batch):
    batch = make_batch([2.0], signals={"judge_score": [0.5]})
    with pytest.raises(EpisodeError, match="nobody to be compared with"):
        Pure(singleton="error").estimate(batch)


@LAW
@given(SEEDS)
def test_whitened_over_sampled_tokens(random_batch, seed):
    batch = random_batch(np.random.default_rng(seed))
    got = np.repeat(Pure().estimate(batch).advantage, batch.lengths)
    assert got.mean() == pytest.approx(0, abs=1e-9)
    assert got.std() == pytest.approx(1, abs=1e-6)
    credit = PureSegments().estimate(batch)
    # Separators were 0 before, and are 0 after.
    live = credit.advantage != 0
    if live.sum() > 1:
        assert credit.advantage[live].mean() == pytest.approx(0, abs=1e-9)
        assert credit.advantage[live].std() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"unit": "turn"}, {"ddof": 2}])
def test_bad_settings(options):
    with pytest.raises(ConfigError, match=f"pure.{next(iter(options))}"):
        Pure(**options)
