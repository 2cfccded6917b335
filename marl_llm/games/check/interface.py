"""Checks of the interface: PettingZoo's own tests, and that its `step` is our `act`."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable

from pettingzoo.test import api_test, seed_test

from marl_llm.errors import GameError
from marl_llm.games.check.play import Trial, equal, totals, transcript


def pettingzoo_api(trial: Trial) -> str:
    """PettingZoo's `api_test`."""
    _silently(lambda: api_test(trial.make()))
    return "PettingZoo's api_test passes"


def pettingzoo_seed(trial: Trial) -> str:
    """PettingZoo's `seed_test`."""
    _silently(lambda: seed_test(trial.make))
    return "PettingZoo's seed_test passes"


def step_is_act(trial: Trial) -> str:
    """Playing by PettingZoo's `step` pays what playing by `act` pays."""
    game = trial.make()
    for seed in trial.seeds:
        steps, _ = transcript(game, seed)
        paid = totals(game, steps)
        game.reset(seed)
        stepped = dict.fromkeys(game.possible_agents, 0.0)
        for step in steps:
            game.step(game.actions.index(step.action) if game.actions else step.action)
            for agent, reward in game.rewards.items():
                stepped[agent] += reward
        if not equal(paid, stepped):
            raise GameError(
                f"seed {seed}: step pays {stepped} over the episode and act {paid}; pay only "
                "through `earnings` and the outcome table, which both of them use"
            )
    return "step and act pay the same"


def _silently(test: Callable[[], None]) -> None:
    """Run a test of PettingZoo's, which prints and warns of style; its assertion is the finding."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            test()
        except AssertionError as error:
            raise GameError(
                f"PettingZoo's test fails: {error}; leave PettingZoo's book-keeping to TextGame"
            ) from error
