"""Checks of chance and of copies: an episode is its seed and its moves, and nothing else."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator
from itertools import zip_longest

import numpy as np

from marl_llm.errors import GameError
from marl_llm.games.check.play import (
    Transcript,
    Trial,
    compare,
    equal,
    line_of,
    replay,
    rest,
    transcript,
    walk,
)
from marl_llm.games.text_game import TextGame
from marl_llm.seeds import generator
from marl_llm.types import Move


def no_global_randomness(trial: Trial) -> str:
    """The global generators are neither used nor changed, and games do not disturb each other."""
    first, second = trial.make(), trial.make()
    for seed in trial.seeds:
        with _kept_global_generators():
            random.seed(1)
            np.random.seed(1)
            before = _global_state()
            alone = transcript(first, seed)
            if _global_state() != before:
                raise GameError(
                    f"seed {seed}: an episode changes the state of `random` or `np.random`; draw "
                    "only from the generator that `start` receives"
                )
            random.seed(2)
            np.random.seed(2)
            again = transcript(first, seed)
        compare(alone, again, f"seed {seed}: after seeding the global generators differently")
        others = transcript(second, seed + 1000)
        mixed, mixed_others = _interleaved(trial, seed, seed + 1000)
        compare(alone, mixed, f"seed {seed}: with another game played move by move beside it")
        compare(others, mixed_others, f"seed {seed + 1000}: with another game beside it")
    return "no global generator is used, and two games interleaved are as two games alone"


def same_seed_same_episode(trial: Trial) -> str:
    """A seed fixes the episode, in a fresh game and in a used one; other seeds give others."""
    used = trial.make()
    seen = set()
    for seed in (*trial.seeds, *range(100, 116)):
        steps = transcript(used, seed, line_seed=0)
        compare(steps, transcript(used, seed, line_seed=0), f"seed {seed}: in the same game again")
        compare(steps, transcript(trial.make(), seed, line_seed=0), f"seed {seed}: in a fresh game")
        seen.add(repr(steps))
    if len(seen) == 1:
        return "every seed gives the same episode for the same moves: its rules have no chance"
    return f"seeds repeat, and {len(trial.seeds) + 16} of them give {len(seen)} different episodes"


def pickles(trial: Trial) -> str:
    """A copy by pickle goes on exactly as the original does, from every turn."""
    return _copies_go_on(trial, "a pickled copy", lambda game: pickle.loads(pickle.dumps(game)))


def snapshots_restore(trial: Trial) -> str:
    """A snapshot restored, into the same game and a fresh one, goes on exactly as before."""

    def fresh(game: TextGame) -> TextGame:
        copy = trial.make()
        copy.restore(game.snapshot())
        return copy

    _copies_go_on(trial, "a fresh game restored from a snapshot", fresh)
    game = trial.make()
    for seed in trial.seeds:
        steps, _ = transcript(game, seed)
        for turn in range(0, len(steps), max(1, len(steps) // 8)):
            replay(game, seed, line_of(steps[:turn]))
            state = game.snapshot()
            onward = rest(game, seed)
            game.restore(state)
            compare(onward, rest(game, seed), f"seed {seed}, turn {turn}: restored after its end")
    return "snapshots restore into the same game and into a fresh one"


def _copies_go_on(trial: Trial, what: str, copy: Callable[[TextGame], TextGame]) -> str:
    game = trial.make()
    # More seeds than elsewhere: a copy that draws anew can hit the original's few cards by chance.
    for seed in (*trial.seeds, *range(100, 106)):
        steps, _ = transcript(game, seed)
        for turn in range(0, len(steps), max(1, len(steps) // 8)):
            game.reset(seed)
            for agent, action in line_of(steps[:turn]):
                game.act(agent, Move(action))  # rewards stay unread: they are part of the state
            twin = copy(game)
            where = f"seed {seed}, turn {turn}: {what}"
            unread, copied = dict(game.take_rewards()), dict(twin.take_rewards())
            if not equal(unread, copied):
                raise GameError(f"{where} has rewards {copied} to hand out, the original {unread}")
            compare(rest(game, seed), rest(twin, seed), where)
    return f"{what} goes on exactly as the original"


def _interleaved(trial: Trial, seed: int, other: int) -> tuple[Transcript, Transcript]:
    """Two games, a move of the one and a move of the other in turn."""
    first, second = trial.make(), trial.make()
    first.reset(seed)
    second.reset(other)
    walks = walk(first, generator(seed, "check")), walk(second, generator(other, "check"))
    steps, others = zip(*zip_longest(*walks), strict=True)
    return (
        ([step for step in steps if step], dict(first.outcomes())),
        ([step for step in others if step], dict(second.outcomes())),
    )


def _global_state() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state()))


@contextlib.contextmanager
def _kept_global_generators() -> Iterator[None]:
    ours, numpys = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
