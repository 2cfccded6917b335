"""Episodes as columns: the `TurnBatch` of what one policy sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.segments import Array, chains
from marl_llm.errors import EpisodeError
from marl_llm.types import Episode, Turn


def turns_of(episodes: Sequence[Episode], policy: str) -> list[Turn]:
    """The turns that a policy sampled, in episode and playing order: the rows of its batch."""
    return [turn for episode in episodes for turn in episode.turns if turn.policy == policy]


def from_episodes(episodes: Sequence[Episode], policy: str) -> TurnBatch:
    """The columns of one policy's turns, in the order of `turns_of`.

    Args:
        episodes: finished episodes, ids distinct.
        policy: whose turns; the other players' turns are left out.

    Raises:
        EpisodeError: two episodes have the same id, or a turn has not one log-prob per token.
    """
    if len({episode.id for episode in episodes}) < len(episodes):
        raise EpisodeError("two episodes of a batch have the same id; give each its own")
    rows = [
        (episode, index, turn)
        for episode in episodes
        for index, turn in enumerate(episode.turns)
        if turn.policy == policy
    ]
    for episode, place, turn in rows:
        if len(turn.ids) != len(turn.logprobs):
            raise EpisodeError(
                f"turn {place} of episode {episode.id} has {len(turn.ids)} ids and "
                f"{len(turn.logprobs)} log-probs; keep those of the sampler, one per id"
            )
    turns = [turn for _, _, turn in rows]
    seen = [turn.observation for turn in turns]
    games = [episode.game for episode, _, _ in rows]
    roles = [observation.role for observation in seen]
    agent, agent_codes = _codes(observation.agent for observation in seen)
    role, role_codes = _codes(roles)
    game, game_codes = _codes(games)
    state, state_codes = _codes(
        zip(games, roles, (observation.key for observation in seen), strict=True)
    )
    action, action_codes = _codes(turn.action or "" for turn in turns)
    episode_id = _integers(episode.id for episode, _, _ in rows)
    index = _integers(index for _, index, _ in rows)
    row_of: dict[tuple[int, int | None], int] = {
        (episode.id, index): row for row, (episode, index, _) in enumerate(rows)
    }
    agents = chains((episode_id, agent), index)
    last = agents.after == 0
    # Callers of other policies have no row here, but a number in their episode.
    caller = _integers(-1 if turn.parent is None else turn.parent for turn in turns)
    share = np.fromiter(_shares(episodes, policy), np.float64, len(rows))
    ended = np.fromiter((episode.terminated for episode, _, _ in rows), bool, len(rows))
    shaping = np.fromiter((turn.shaping for turn in turns), np.float64, len(rows))
    return TurnBatch(
        group=_integers(episode.group for episode, _, _ in rows),
        episode=episode_id,
        agent=agent,
        role=role,
        policy=np.zeros(len(rows), dtype=np.int64),
        game=game,
        turn=index,
        agent_turn=agents.before,
        parent=_integers(row_of.get((episode.id, turn.parent), -1) for episode, _, turn in rows),
        depth=_integers(_depths(episodes, policy)),
        reward=np.fromiter((turn.reward for turn in turns), np.float64, len(rows)) + shaping,
        shaping=shaping,
        terminated=last & ended,
        truncated=last & ~ended,
        version=_integers(min(turn.versions, default=(0, 0, 0))[0] for turn in turns),
        state_key=state,
        action_key=action,
        offsets=np.concatenate(([0], np.cumsum(_integers(len(turn.ids) for turn in turns)))),
        logprobs=np.fromiter(chain.from_iterable(turn.logprobs for turn in turns), np.float64),
        signals={"caller": caller, "call_share": share} if np.any(caller >= 0) else {},
        names={
            "agent": tuple(agent_codes),
            "role": tuple(role_codes),
            "policy": (policy,),
            "game": tuple(game_codes),
            "state_key": tuple(key for _, _, key in state_codes),
            "action_key": tuple(action_codes),
        },
    )


def _integers(values: Iterable[int]) -> Array:
    return np.fromiter(values, np.int64)


def _codes(values: Iterable[Any]) -> tuple[Array, dict[Any, int]]:
    """Number values in the order in which they first appear, and who has which number."""
    table: dict[Any, int] = {}
    codes = _integers(table.setdefault(value, len(table)) for value in values)
    return codes, table


def _depths(episodes: Sequence[Episode], policy: str) -> Iterable[int]:
    """How many calls deep each turn of the policy is, whoever made the calls."""
    for episode in episodes:
        depths: list[int] = []
        for turn in episode.turns:
            depths.append(0 if turn.parent is None else depths[turn.parent] + 1)
            if turn.policy == policy:
                yield depths[-1]


def _shares(episodes: Sequence[Episode], policy: str) -> Iterable[float]:
    """What each turn of the policy weighs in its episode's tree of calls, see `nested_shares`.

    Other policies' calls count though their tokens are not here.
    """
    for episode in episodes:
        calls = [(turn.observation.agent, turn.parent) for turn in episode.turns]
        pairs = list(zip(calls, episode.turns, strict=True))
        spoken = {call for call, turn in pairs if turn.ids or turn.policy != policy}
        made = Counter(calls[caller] for _, caller in spoken if caller is not None)
        weight: dict[tuple[str, int | None], float] = {}
        for call, turn in pairs:
            if call not in weight:
                by = None if turn.parent is None else calls[turn.parent]
                weight[call] = 1.0 if by is None else weight[by] / max(made[by], 1)
            if turn.policy == policy:
                yield weight[call]
