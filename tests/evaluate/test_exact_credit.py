"""Exact credit in Kuhn and Leduc poker, against solvers, gradients and play."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pyspiel
import pytest

from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.truth.process import solve
from marl_llm.errors import ConfigError, EpisodeError
from marl_llm.evaluate.estimators.bench import Settings, bench
from marl_llm.evaluate.estimators.games import exact_credit, game_process, game_truth
from marl_llm.evaluate.nash_conv import nash_conv
from marl_llm.evaluate.text_tree import equilibrium_policy, text_tree, uniform, written_policy
from marl_llm.games.catalog import build

TREES = {name: text_tree(build(name)) for name in ("kuhn", "leduc")}


def biased(state):
    """The first action twice as likely as each of the others."""
    weights = [2.0] + [1.0] * (len(state.actions) - 1)
    return {name: w / sum(weights) for name, w in zip(state.actions, weights, strict=True)}


def test_kuhn_by_hand():
    """Uniform play. Player 1 holds the jack, player 0 bet: calling loses 2, folding loses 1."""
    exact = exact_credit(TREES["kuhn"], written_policy(TREES["kuhn"], uniform))
    key = TREES["kuhn"].states["0b"].observation.key
    assert exact.advantage[key] == pytest.approx({"pass": 0.5, "bet": -0.5})
    # With the king a call wins 2 instead of losing 1: 1.5 either way.
    key = TREES["kuhn"].states["2b"].observation.key
    assert exact.advantage[key] == pytest.approx({"pass": -1.5, "bet": 1.5})


@pytest.mark.parametrize("chances", [uniform, biased])
def test_kuhn_by_enumeration(chances):
    """All deals and all ways to bet, from the rules of the game and without its code."""
    tree = TREES["kuhn"]
    policy = written_policy(tree, chances)
    exact = exact_credit(tree, policy)
    stakes = {"pp": 1, "bb": 2, "pbb": 2}  # at the showdown
    folds = {"bp": 1, "pbp": -1}  # what the first player gets

    def chance(said, deal, word):
        return policy.states[f"{deal[len(said) % 2]}{said}"].actions[word]

    def worth(said, deal):
        """To the first player."""
        if said in folds:
            return folds[said]
        if said in stakes:
            return stakes[said] if deal[0] > deal[1] else -stakes[said]
        return sum(chance(said, deal, w) * worth(said + w[0], deal) for w in ("pass", "bet"))

    met = {}  # information state -> [(probability, {word: what it changes}), ...]

    def walk(said, deal, reach):
        if said in folds or said in stakes:
            return
        sign = 1 if len(said) % 2 == 0 else -1
        gain = {word: sign * (worth(said + word[0], deal) - worth(said, deal))
                for word in ("pass", "bet")}  # fmt: skip
        met.setdefault(f"{deal[len(said) % 2]}{said}", []).append((reach, gain))
        for word in gain:
            walk(said + word[0], deal, reach * chance(said, deal, word))

    for deal in permutations(range(3), 2):
        walk("", deal, 1 / 6)
    assert len(met) == 12
    for key, seen in met.items():
        total = sum(reach for reach, _ in seen)
        mean = {w: sum(reach * gain[w] for reach, gain in seen) / total for w in ("pass", "bet")}
        assert exact.advantage[tree.states[key].observation.key] == pytest.approx(mean)


@pytest.mark.parametrize("name", list(TREES))
def test_values_are_those_of_openspiel_s_walk(name):
    tree = TREES[name]
    policy = written_policy(tree, biased)
    exact = exact_credit(tree, policy)
    expected = list(nash_conv(policy, tree).values.values())
    starts = exact.process.start @ exact.solution.values[:-1]
    np.testing.assert_allclose(starts, expected, atol=1e-12)
    for key, state in tree.states.items():
        rows = exact.advantage[state.observation.key]
        mean = sum(p * rows[action] for action, p in policy.states[key].actions.items())
        assert mean == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", list(TREES))
def test_credit_is_the_gradient_of_the_value(name):
    tree, step = TREES[name], 1e-5
    policy = written_policy(tree, biased)
    exact = exact_credit(tree, policy)
    values = np.array(list(nash_conv(policy, tree).values.values()))
    for key in list(tree.states)[:: max(1, len(tree.states) // 6)]:
        state = tree.states[key]
        more, less = list(state.actions)[:2]

        def moved(at, key=key, more=more, less=less):
            chances = biased(at)
            if at is tree.states[key]:
                chances[more] += step
                chances[less] -= step
            return chances

        mover = list(tree.agents).index(state.observation.agent)
        after = list(nash_conv(written_policy(tree, moved), tree).values.values())[mover]
        rows = exact.advantage[state.observation.key]
        gain = policy.states[key].reach * (rows[more] - rows[less]) * step
        assert after - values[mover] == pytest.approx(gain, abs=1e-8)


@pytest.mark.parametrize("name", list(TREES))
def test_at_an_equilibrium_nothing_is_better(name):
    tree = TREES[name]
    policy = equilibrium_policy(tree)
    exact = exact_credit(tree, policy)
    for state in policy.states.values():
        if state.reach > 1e-3:
            rows = exact.advantage[state.observation.key]
            assert max(rows.values()) < 5e-3
            played = [rows[action] for action, p in state.actions.items() if p > 1e-3]
            assert max(map(abs, played)) < 5e-3


def test_turns_that_were_played():
    tree = TREES["kuhn"]
    exact = exact_credit(tree, written_policy(tree, uniform))
    keys = ("0b", "2b", "2b", "0b")
    names = tuple(dict.fromkeys(tree.states[key].observation.key for key in keys))
    batch = listed(names, ("pass", "bet", ""), [0, 1, 1, 0], [0, 1, 0, 2])
    assert exact.of(batch).tolist() == pytest.approx([0.5, 1.5, -1.5, 0.0])
    with pytest.raises(EpisodeError, match="no information state 'nowhere'"):
        exact.of(listed(("nowhere",), ("pass",), [0], [0]))


def listed(states, actions, state, action):
    n, zeros = len(state), np.zeros(len(state), dtype=np.int64)
    return TurnBatch(
        group=zeros, episode=np.arange(n), agent=zeros, role=zeros, policy=zeros, game=zeros,
        turn=zeros, agent_turn=zeros, parent=zeros - 1, depth=zeros, reward=np.zeros(n),
        shaping=np.zeros(n), terminated=np.ones(n, dtype=bool), truncated=np.zeros(n, dtype=bool),
        version=zeros, state_key=np.array(state), action_key=np.array(action),
        offsets=np.arange(n + 1), logprobs=np.full(n, -0.7),
        names={"state_key": states, "action_key": actions},
    )  # fmt: skip


def test_games_are_truths_for_the_bench():
    truth = game_truth(TREES["kuhn"], written_policy(TREES["kuhn"], uniform))
    out = bench({"grpo": GRPO()}, {"kuhn": truth}, Settings(groups=20, resamples=50))
    measures = out["cells"]["grpo"]["kuhn"]["measures"]
    assert measures["pairs"]["value"] > 0.6
    assert measures["leak"] is None  # every turn can matter
    assert out["cells"]["oracle"]["kuhn"]["measures"]["pairs"]["value"] == 1


def test_simultaneous_moves_are_refused():
    game = pyspiel.load_game("matrix_rps")
    with pytest.raises(ConfigError, match="simultaneous moves"):
        solve(game_process(game, {}))
