"""Players of delegation games: the solver wins, and what the hasty one does most is wrong."""

from collections import Counter

import numpy as np
import pytest

from marl_llm.agents.delegating import Hasty, Solver
from marl_llm.errors import ConfigError, GameError
from marl_llm.games.catalog import build
from marl_llm.games.relay_chain import RelayChain
from marl_llm.types import Move


def play(player, seed, game):
    rng = np.random.default_rng(seed)
    game.reset(seed)
    while game.acting():
        agent = game.acting()[0]
        action = player.act(game, agent, rng)
        assert action in game.legal(agent)
        game.act(agent, Move(action))
    return game.right_answer()


def test_the_solver_wins():
    game = RelayChain()
    assert all(play(Solver(), seed, game) for seed in range(100))


def test_hasty_play_is_legal_to_the_last_call_and_seldom_right():
    game = RelayChain()
    assert 0.02 < np.mean([play(Hasty(), seed, game) for seed in range(500)]) < 0.25
    assert all(play(Hasty(hasty=0.0), seed, game) is not None for seed in range(50))


def test_what_the_hasty_planner_does_most_is_wrong():
    game = RelayChain(level=3)
    game.reset(3)
    call, rng = game.call_of("planner"), np.random.default_rng(0)
    kinds = Counter(Hasty().act(game, "planner", rng).split()[0] for _ in range(1000))
    assert game.solve(call, rng).startswith("ask")
    assert kinds["answer"] > kinds["ask"]


def test_other_games_are_refused_by_name():
    game = build("kuhn")
    game.reset(0)
    with pytest.raises(GameError, match="kuhn"):
        Solver().act(game, game.acting()[0], np.random.default_rng(0))


def test_chances_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="hasty"):
        Hasty(hasty=1.5)
