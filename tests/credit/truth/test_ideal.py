"""Ideal signals: right without errors, and wrong as often as asked."""

from __future__ import annotations

import numpy as np
import pytest

from marl_llm.credit.signals import KNOWN
from marl_llm.credit.truth import TRUTHS
from marl_llm.credit.truth.bifurcation import all_good, at_least, bifurcations
from marl_llm.credit.truth.hindsight import hindsight_ratios
from marl_llm.credit.truth.ideal import Noise, annotate, chances, quality
from marl_llm.credit.truth.play import all_plays
from marl_llm.credit.truth.process import Choice, Decision, expand
from marl_llm.credit.truth.sample import Look, grow, sample
from marl_llm.errors import ConfigError

EXACT = Noise(judge=1.0, probe=0.0, hindsight=0.0, floor=1e-9)
OF_TREES = {"node", "tree", "design", "suffix_of", "replayed"}


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def drawn():
    return sample(bifurcations(all_good), rng(), groups=60, look=Look(tokens=2))


def test_every_signal_is_offered():
    grown = grow(TRUTHS["team"].process(), rng(), groups=4)
    offered = set(annotate(grown, rng()).signals)
    assert set(KNOWN) - offered == {"unscored"}  # a truth has no reward that nobody knows
    assert offered >= OF_TREES


@pytest.mark.parametrize("name", list(TRUTHS))
def test_all_truths_can_be_annotated_and_replays_are_the_same_again(name):
    truth = TRUTHS[name]
    one = sample(truth.process(), rng(), groups=6, look=truth.look)
    first, second = annotate(one, rng(1)), annotate(one, rng(1))
    assert all(np.array_equal(first.signals[k], second.signals[k]) for k in first.signals)


def test_probes_telescope_and_are_exact_without_errors(drawn):
    before, _, came = chances(drawn)
    gold = annotate(drawn, rng(), EXACT).signals
    np.testing.assert_allclose(np.exp(gold["gold_before"]), np.clip(before, 1e-9, 1 - 1e-9))
    steps = np.exp(gold["gold_after"]) - np.exp(gold["gold_before"])
    np.testing.assert_allclose(steps, drawn.advantage, atol=1e-8)
    inside = drawn.batch.turn < 7
    noisy = annotate(drawn, rng()).signals
    np.testing.assert_array_equal(
        noisy["gold_after"][inside], noisy["gold_before"][np.flatnonzero(inside) + 1]
    )
    told = np.exp(noisy["gold_before"][drawn.batch.turn == 1])  # where V is ¼, logit log ⅓
    assert np.std(np.log(told / (1 - told)) - np.log(1 / 3)) == pytest.approx(0.3, abs=0.03)
    assert set(came) == {0.0, 1.0}


def test_hindsight_is_bayes_over_all_episodes():
    process = bifurcations(at_least(2), turns=4, at=(0, 1, 3), p=0.3, flip=0.2)
    one = sample(process, rng(), groups=30)
    ratio = hindsight_ratios(one)
    plays = all_plays(process)
    total = plays.pay[:, :, 0].sum(axis=1)
    got = np.bincount(one.played, one.batch.reward)
    for row in range(0, len(ratio), 17):
        state, action, turn = one.state[row], one.action[row], one.batch.turn[row]
        came = plays.probability * (total == got[one.played[row]])
        here = plays.state[:, turn] == state
        told = (came * here * (plays.action[:, turn] == action)).sum() / (came * here).sum()
        assert ratio[row] == pytest.approx(told / process.policy[state, action])


def test_hindsight_says_nothing_of_what_does_not_matter(drawn):
    log = annotate(drawn, rng(), EXACT).signals["hindsight_logprob"] * drawn.batch.lengths
    chosen = np.log(drawn.process.policy[drawn.state, drawn.action])
    np.testing.assert_allclose(log[~drawn.decisive], chosen[~drawn.decisive])
    assert log.max() <= 0


def test_labels_are_right_as_often_as_asked(drawn):
    sign = np.sign(drawn.advantage)
    for judge in (1.0, 0.7):
        noise = Noise(judge=judge)
        told = annotate(drawn, rng(), noise).signals
        by_turn = {name: x[:: 2 if len(x) > len(sign) else 1] for name, x in told.items()}
        right = {
            "judge_good": sign > 0,
            "judge_role": np.select([sign > 0, sign < 0], [0, 3], 2),
            "judge_credit": 0.5 * (sign > 0),
            "judge_score": 1 + 0.8 * sign,
            "prm_error": (1 - sign) / 2,
            "commitment": sign,
            "cited": drawn.decisive,
        }
        for name, expected in right.items():
            share = np.mean(np.isclose(by_turn[name], expected))
            assert share == pytest.approx(judge, abs=0.0 if judge == 1 else 0.03), name


def test_rubrics_and_support_without_errors():
    # Turns 0 and 2 of three matter; rows are (good, -, good) in the episodes that were won.
    one = sample(bifurcations(all_good, turns=3, at=(0, 2)), rng(), groups=20)
    told = {k: v.reshape(-1, 3) for k, v in annotate(one, rng(), EXACT).signals.items()
            if len(v) == len(one.batch)}  # fmt: skip
    won = one.batch.reward.reshape(-1, 3)[:, 2] > 0
    np.testing.assert_array_equal(told["rubric_pass"][won], np.tile([1, 0, 1], (won.sum(), 1)))
    np.testing.assert_array_equal(told["support_out"][won], np.tile([2, 0, 1], (won.sum(), 1)))
    np.testing.assert_array_equal(told["support_in"][won], np.tile([0, 0, 1], (won.sum(), 1)))
    good = one.action.reshape(-1, 3)
    np.testing.assert_array_equal(told["faulty"][:, [0, 2]], 1 - good[:, [0, 2]])
    assert not told["rubric_fail"][:, 1].any()


def test_progress_is_the_main_effect(drawn):
    effect = quality(drawn.process, drawn.solution)
    # AND, p ½: a good first choice is worth ¼; a good second one ½ in half of all episodes.
    first, second = (drawn.process.turn == turn for turn in (2, 5))
    np.testing.assert_allclose(effect[first][:, :2], [[-0.25, 0.25]])
    np.testing.assert_allclose(effect[second][:, :2], [[-0.25, 0.25]] * second.sum())
    assert not effect[~(first | second)].any()


def test_an_ablation_changes_one_turn_only(drawn):
    lost = np.bincount(drawn.played, drawn.batch.reward)[drawn.played]
    without = annotate(drawn, rng()).signals["ablated_return"]
    assert np.all(without[~drawn.decisive] == lost[~drawn.decisive])
    # Redrawn, a turn of a success is bad half the time.
    won = drawn.decisive & (lost == 1)
    assert np.mean(without[won]) == pytest.approx(0.5, abs=0.1)
    # Nothing helps an episode whose other choice was bad.
    both = drawn.action.reshape(-1, 8)[:, [2, 5]].sum(axis=1)[drawn.played] == 0
    assert not without[drawn.decisive & both].any()


def test_without_an_agent_and_its_share():
    one = sample(TRUTHS["team"].process(), rng(), groups=30)
    told = annotate(one, rng()).signals
    team = np.bincount(one.played, one.batch.reward, len(one.row_of)) / 3  # each of three got it
    dummy = one.batch.agent == one.batch.names["agent"].index("dummy")
    np.testing.assert_array_equal(told["return_without"][dummy], team[one.played][dummy])
    assert not told["return_without"][~dummy].any()  # the default never chooses well
    assert not told["shapley_value"][dummy].any()
    first = one.batch.agent_turn == 0
    shares = np.bincount(one.played, told["shapley_value"] * first)
    np.testing.assert_allclose(shares, team)
    np.testing.assert_allclose(told["shapley_value"][~dummy], team[one.played][~dummy] / 2)


def test_greedy_play_takes_the_likeliest_action():
    process = bifurcations(all_good, p=0.6)
    told = annotate(sample(process, rng(), groups=5), rng()).signals["greedy_return"]
    assert np.all(told == 1)
    process = bifurcations(all_good, p=0.4)
    assert not annotate(sample(process, rng(), groups=5), rng()).signals["greedy_return"].any()


def test_critics_of_agents_know_what_agents_know():
    one = sample(TRUTHS["alias"].process(), rng(), groups=30)
    told = annotate(one, rng()).signals
    np.testing.assert_allclose(told["value"], 0.5)
    at = one.batch.turn == 1
    assert set(told["action_value"][at]) == {0.0, 1.0}  # the critic of a team sees the state


CRITICS = ["value", "value_others", "action_value", "value_event", "token_value", "progress"]


@pytest.mark.parametrize("name", CRITICS)
def test_all_critics_err_as_asked(drawn, name):
    exact, told = (
        annotate(drawn, rng(), Noise(critic=critic)).signals[name] for critic in (0.0, 0.1)
    )
    assert np.std(told - exact) == pytest.approx(0.1, abs=0.01)


def test_a_critic_of_actions_errs_in_one_way(drawn):
    told = annotate(drawn, rng(), Noise(critic=0.1)).signals
    off = told["action_value"] - drawn.solution.action_value[drawn.state, drawn.action]
    mean_off = told["action_value_mean"] - drawn.solution.value[drawn.state]
    # The mean over two or three actions holds a half or a third of the error of the one taken.
    assert np.std(mean_off) < 0.8 * np.std(off)
    assert np.corrcoef(off, mean_off)[0, 1] > 0.5


def test_token_values_move_where_the_choice_is_made(drawn):
    told = annotate(drawn, rng()).signals
    value = told["token_value"].reshape(-1, 2)
    np.testing.assert_allclose(value[:, 0], told["value"])
    np.testing.assert_allclose(value[:, 1], told["value"] + drawn.advantage)


def test_noise_checks_itself():
    for options in ({"judge": 1.5}, {"probe": -1.0}, {"floor": 0.0}, {"critic": float("nan")}):
        with pytest.raises(ConfigError, match="noise"):
            Noise(**options)


def test_an_answer_is_the_agent_s_own(drawn):
    told = annotate(drawn, rng(), EXACT).signals
    won = np.bincount(drawn.played, drawn.batch.reward)[drawn.played] > 0
    for name in ("before", "after"):
        gold = np.exp(told[f"gold_{name}"])
        np.testing.assert_allclose(told[f"answer_{name}"], np.where(won, gold, 1 - gold))
    # As a loop counts: how many of the eight episodes came out as this one did.
    first = won.reshape(-1, 8, 8)[:, :, 0]
    shares = [[np.mean(group == mine) for mine in group] for group in first]
    np.testing.assert_allclose(told["answer_share"].reshape(-1, 8, 8)[:, :, 0], shares)


def test_where_agents_are_paid_unlike_each_answers_for_itself():
    """Of two players one wins: their answers are never alike, and each is compared with itself."""

    def rule(state):
        if state == "first":
            pay = ((0.25, (1.0, -1.0), None), (0.75, (-1.0, 1.0), None))
            return Decision(agent="a", choices=(Choice(1.0, ((1.0, (0.0, 0.0), pay),)),))
        return Decision(agent="b", choices=(Choice(1.0, state),))

    process = expand("duel", {"first": 1.0}, rule, agents={"a": "a", "b": "b"})
    one = sample(process, rng(), groups=5, size=8)
    share = annotate(one, rng(), EXACT).signals["answer_share"].reshape(5, 8, 2)
    won = one.branch.reshape(5, 8, 2)[:, :, 1] == 0  # by a
    expected = np.where(won, won.mean(axis=1, keepdims=True), 1 - won.mean(axis=1, keepdims=True))
    np.testing.assert_allclose(share, np.repeat(expected[..., None], 2, axis=2))
