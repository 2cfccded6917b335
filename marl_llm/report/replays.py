"""Replays: recorded games as the report's script draws them, delegations as trees of calls.

In a delegation a call's turns stand below the turn that made it. What a call is shown with: who was
asked by which action, what came back, how it ended, its pay, and its credit: the mean advantage
over the sampled tokens of its turns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_llm.report.calls import calls_of, is_delegation
from marl_llm.report.episodes import RecordedEpisode, episode_files, read_episodes
from marl_llm.report.metrics import short
from marl_llm.types import Outcome

MAX_TOKENS = 60_000  # over all games of a report: about 3 MB
MAX_GAMES = 120


def replays(run_dir: Path) -> tuple[list[dict[str, Any]], int]:
    """Games to replay, by update ascending, within the limits; and how many were recorded.

    Where not all fit, every recorded update keeps some: they are taken in rounds, one game each.
    """
    files = [(update, read_episodes(path)) for update, path in episode_files(run_dir).items()]
    recorded = sum(len(episodes) for _, episodes in files)
    taken: list[tuple[int, int, RecordedEpisode]] = []
    tokens = 0
    rounds = itertools.zip_longest(*(episodes for _, episodes in spread(files, MAX_GAMES)))
    for place, column in enumerate(rounds):
        for episode in column:
            size = 0 if episode is None else sum(len(texts) for texts in episode.token_texts)
            if episode is None or len(taken) == MAX_GAMES or tokens + size > MAX_TOKENS:
                continue
            tokens += size
            taken.append((episode.update, place, episode))
    taken.sort(key=lambda entry: entry[:2])
    return [_game(episode) for _, _, episode in taken], recorded


def _game(recorded: RecordedEpisode) -> dict[str, Any]:
    episode = recorded.episode
    return {
        "update": recorded.update,
        "id": episode.id,
        "game": episode.game,
        "seed": str(episode.seed),  # 63 bits are more than a number in a browser holds
        "terminated": episode.terminated,
        "delegation": is_delegation(episode),
        "uncalled": sum(outcome is Outcome.ABSENT for outcome in episode.outcomes.values()),
        "ends": [
            {
                "agent": agent,
                "player": player,
                "outcome": episode.outcomes.get(agent),
                "return": episode.returns.get(agent),
            }
            for agent, player in episode.seats.items()
        ],
        "turns": list(_turns(recorded)),
        "calls": _calls(recorded),
    }


def _calls(recorded: RecordedEpisode) -> list[dict[str, Any]]:
    found = []
    for call in calls_of(recorded.episode):
        credit = [a for turn in call.turns for a in recorded.advantages[turn] if math.isfinite(a)]
        found.append(
            {
                "agent": call.agent,
                "caller": call.caller,
                "turn": call.turn,
                "turns": call.turns,
                "asked": call.asked,
                "last": call.last,
                "outcome": call.outcome,
                "pay": short(call.pay),
                "credit": short(sum(credit) / len(credit)) if credit else None,
            }
        )
    return found


def _turns(recorded: RecordedEpisode) -> Iterator[dict[str, Any]]:
    seats = {agent: seat for seat, agent in enumerate(recorded.episode.seats)}
    parts = zip(recorded.episode.turns, recorded.token_texts, recorded.advantages, strict=True)
    for turn, texts, advantages in parts:
        seen = turn.observation
        yield {
            "agent": seen.agent,
            "seat": seats.get(seen.agent, 0),
            "role": seen.role,
            "player": turn.player,
            "policy": turn.policy,
            "version": min((version for version, _, _ in turn.versions), default=None),
            "text": seen.text,
            "action": turn.action,
            "fault": turn.fault,
            "reward": short(turn.reward),
            "shaping": short(turn.shaping),
            "reply": "" if texts else turn.reply,
            "tokens": [
                [text, short(logprob), None if value != value else short(value)]
                for text, logprob, value in zip(texts, turn.logprobs, advantages, strict=True)
            ],
        }


def advantage_scale(games: Sequence[Mapping[str, Any]]) -> float:
    """The advantage that gets the full colour: the 95th percentile of |advantage|, never 0."""
    sizes = sorted(
        abs(token[2])
        for game in games
        for turn in game["turns"]
        for token in turn["tokens"]
        if token[2] is not None
    )
    return (sizes[int(0.95 * (len(sizes) - 1))] if sizes else 0.0) or 1.0


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` items, evenly spaced, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[i * (len(items) - 1) // (count - 1)] for i in range(count)]
