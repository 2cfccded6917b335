"""Which episodes are wanted: groups with the same start, seats balanced, seeds derived.

A **line-up** says who plays. A list names players by seat, and its seats are rotated over groups; a
mapping names a player for each role, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marl_llm.errors import ConfigError
from marl_llm.seeds import derive
from marl_llm.types import Turn

Lineup = Sequence[str] | Mapping[str, str]  # by seat, or role -> player


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
    roles: Mapping[str, Mapping[str, str]],
    lineups: Sequence[Lineup],
) -> list[Plan]:
    """Plans of one update: groups spread evenly over games and line-ups, line-ups over seats.

    Group g plays game g mod #games. A line-up names the players by seat; within its groups its
    seats are rotated, so over whole rotations every player has every seat equally often.

    Args:
        seed: the run's.
        update: number of the update, from 0.
        episodes: how many; a multiple of `group_size`.
        group_size: episodes with the same start.
        roles: game -> agent -> its role, in seat order.
        lineups: who plays, e.g. ``[("self",)]`` for self-play; a list shorter than the seats is
            repeated to fill them.

    Raises:
        ConfigError: `episodes` is not a multiple of `group_size`, there is no game or line-up, or a
            line-up by role leaves a role out.
    """
    if group_size < 1 or episodes < 1 or episodes % group_size:
        raise ConfigError(
            f"rollout.episodes must be a positive multiple of rollout.group_size, "
            f"got {episodes} and {group_size}"
        )
    if not roles or not lineups:
        raise ConfigError("a rollout needs at least one game and one line-up of players")
    games = list(roles)
    plans: list[Plan] = []
    for number in range(episodes // group_size):
        game = games[number % len(games)]
        turn = number // len(games)
        lineup = lineups[turn % len(lineups)]
        players = seating(roles[game], lineup, turn // len(lineups))
        group = update * (episodes // group_size) + number
        start = derive(seed, "game", group)
        plans.extend(
            Plan(group * group_size + member, group, game, start, players)
            for member in range(group_size)
        )
    return plans


def seating(roles: Mapping[str, str], lineup: Lineup, shift: int = 0) -> dict[str, str]:
    """Who sits where: agent -> player.

    Args:
        roles: agent -> its role, in seat order.
        lineup: who plays.
        shift: seats by which a list is rotated.

    Raises:
        ConfigError: a line-up by role leaves a role out.
    """
    if isinstance(lineup, Mapping):
        if missing := [role for role in roles.values() if role not in lineup]:
            raise ConfigError(
                f"line-up {dict(lineup)} names nobody for the role {missing[0]!r}; add "
                f"{missing[0]}: NAME"
            )
        return {agent: lineup[role] for agent, role in roles.items()}
    around = max(len(roles), len(lineup))
    return {
        agent: lineup[(seat + shift) % around % len(lineup)] for seat, agent in enumerate(roles)
    }
