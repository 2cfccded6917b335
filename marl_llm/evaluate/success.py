"""Success: how often a team solves held-out tasks, as it samples and as it does greedily.

The first agent of a game is the one whose task it is (the planner); an episode is a success when it
ends with a win for that agent. Held-out episodes have seeds of their own, the same at every
evaluation of a run, so that two of them differ by the weights alone.

What calls were good for is asked of the game: every episode is told again to its end, and the game
says what each call was worth and whether what was asked kept what was needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from marl_llm.agents import Player
from marl_llm.errors import EpisodeError
from marl_llm.evaluate.statistics import Interval, bootstrap_mean
from marl_llm.games.delegation import Delegation
from marl_llm.games.text_game import TextGame
from marl_llm.rollout.attempts import attempted
from marl_llm.rollout.plans import Lineup, Plan, seating
from marl_llm.rollout.play import ModelSeat, play
from marl_llm.rollout.retelling import Retelling
from marl_llm.seeds import derive
from marl_llm.serve import Engine
from marl_llm.types import FORFEITS, Episode, Outcome

MOST_VALUED = 8  # calls of an episode; more are not valued, as n of them take 2^n evaluations
ROUNDING = 1e-9  # a Shapley value is a sum of fractions


@dataclass(frozen=True, slots=True)
class Success:
    """What a team made of held-out episodes of one game."""

    game: str
    episodes: int
    success: Interval
    calls: float  # sub-agents called, mean per episode
    reports_right: float  # share of the called sub-agents whose report was right; 0 without calls
    forfeits: float  # share of episodes in which somebody made a fault
    useful: float | None  # share of the calls with a Shapley value above 0; None = not known
    preserved: float | None  # share of the calls that keep what was needed; None = not known


def held_out_success(
    game: str,
    make: Callable[[], TextGame],
    lineup: Lineup,
    seats: Mapping[str, ModelSeat | Player],
    engines: Mapping[str, Engine],
    *,
    episodes: int,
    seed: int,
    greedy: bool,
    concurrency: int = 512,
    retries: int = 3,
) -> Success:
    """Play held-out episodes and count; one that stays void is none of the team's doing.

    Args:
        game: its name.
        make: makes a fresh one.
        lineup: who plays.
        seats: who can sit down, by name.
        engines: by policy.
        episodes: how many, at least 2.
        seed: of tasks, replies, scripted players and the resampling of intervals.
        greedy: models take what is most likely, instead of sampling.
        concurrency: games in flight at once.
        retries: of an episode that a failure of the machinery made void.

    Raises:
        EpisodeError: all attempts at all episodes failed, or at all but one.
    """
    roles = make().roles
    players = seating(roles, lineup)
    plans = [
        Plan(id=n, group=n, game=game, seed=derive(seed, "held out", game, n), players=players)
        for n in range(episodes)
    ]
    who = {name: _greedy(seat) for name, seat in seats.items()} if greedy else seats
    tried = attempted(
        lambda plans: play(plans, {game: make}, who, engines, seed=seed, concurrency=concurrency),
        plans,
        retries,
    )
    played = [episode for episode in tried if episode.void is None]
    if len(played) < 2:
        why = next(episode.void for episode in tried if episode.void is not None)
        raise EpisodeError(
            f"of {episodes} held-out episodes of {game} {len(played)} could be played in "
            f"{retries + 1} attempts: {why}"
        )
    first = next(iter(roles))
    called = [_called(episode, first) for episode in played]
    reports = [outcome for some in called for outcome in some]
    useful, preserved = _good_for(played, make(), seats)
    return Success(
        game=game,
        episodes=len(played),
        success=bootstrap_mean(
            np.array([float(episode.outcomes[first] is Outcome.WIN) for episode in played]),
            seed=seed,
            bounds=(0.0, 1.0),
        ),
        calls=len(reports) / len(played),
        reports_right=sum(outcome is Outcome.WIN for outcome in reports) / max(len(reports), 1),
        forfeits=sum(not FORFEITS.isdisjoint(e.outcomes.values()) for e in played) / len(played),
        useful=_share(useful),
        preserved=_share(preserved),
    )


def _called(episode: Episode, first: str) -> list[Outcome]:
    """How it ended for the others, as far as they took part."""
    return [
        outcome
        for agent, outcome in episode.outcomes.items()
        if agent != first and outcome is not Outcome.ABSENT
    ]


def _good_for(
    played: Sequence[Episode], game: TextGame, seats: Mapping[str, ModelSeat | Player]
) -> tuple[list[bool], list[bool]]:
    """Of each call that the game can judge, whether it was useful, and whether it was to the point.

    A report that never changes how right the answer could be has a Shapley value of 0.
    """
    useful: list[bool] = []
    preserved: list[bool] = []
    if not isinstance(game, Delegation) or not (game.has_worth or game.has_preserved):
        return useful, preserved
    for episode in played:
        Retelling(episode, game, seats).go(len(episode.turns))
        calls = game.all_calls()[1:]
        if game.has_worth and len(calls) <= MOST_VALUED:
            useful += [value.shapley > ROUNDING for value in game.call_values().values()]
        preserved += [kept for call in calls if (kept := game.preserved(call)) is not None]
    return useful, preserved


def _share(found: Sequence[bool]) -> float | None:
    return sum(found) / len(found) if found else None


def _greedy(seat: ModelSeat | Player) -> ModelSeat | Player:
    if not isinstance(seat, ModelSeat):
        return seat
    role = seat.role
    return replace(seat, role=replace(role, sampling=replace(role.sampling, temperature=0.0)))
