"""Which episodes are wanted: groups with the same start, seats balanced, seeds derived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marl_llm.errors import ConfigError
from marl_llm.seeds import derive
from marl_llm.types import Turn


@dataclass(frozen=True, slots=True)
class Plan:
    """One episode to be played."""

    id: int  # unique in the run
    group: int  # same group = same game, same seed
    game: str
    seed: int  # of the game's own draws
    players: Mapping[str, str]  # agent -> name of who sits there
    attempt: int = 0
    opening: tuple[Turn, ...] = ()  # turns of an episode of this seed, carried out before play


def balanced(
    seed: int,
    update: int,
    episodes: int,
    group_size: int,
    agents: Mapping[str, Sequence[str]],
    lineups: Sequence[Sequence[str]],
) -> list[Plan]:
    """Plans of one update: groups spread evenly over games and line-ups, line-ups over seats.

    Group g plays game g mod #games. A line-up names the players by seat; within its groups its
    seats are rotated, so over whole rotations every player has every seat equally often.

    Args:
        seed: the run's.
        update: number of the update, from 0.
        episodes: how many; a multiple of `group_size`.
        group_size: episodes with the same start.
        agents: game -> its agents, in seat order.
        lineups: who plays, e.g. ``[("self",)]`` for self-play; one shorter than the seats is
            repeated to fill them.

    Raises:
        ConfigError: `episodes` is not a multiple of `group_size`, or there is no game or line-up.
    """
    if group_size < 1 or episodes < 1 or episodes % group_size:
        raise ConfigError(
            f"rollout.episodes must be a positive multiple of rollout.group_size, "
            f"got {episodes} and {group_size}"
        )
    if not agents or not lineups:
        raise ConfigError("a rollout needs at least one game and one line-up of players")
    games = list(agents)
    plans: list[Plan] = []
    for number in range(episodes // group_size):
        game = games[number % len(games)]
        turn = number // len(games)
        lineup = lineups[turn % len(lineups)]
        shift = turn // len(lineups)
        seats = agents[game]
        players = {
            seat: lineup[(index + shift) % max(len(seats), len(lineup)) % len(lineup)]
            for index, seat in enumerate(seats)
        }
        group = update * (episodes // group_size) + number
        start = derive(seed, "game", group)
        plans.extend(
            Plan(group * group_size + member, group, game, start, players)
            for member in range(group_size)
        )
    return plans
