"""Sampled games of a run, with the credit of every token: ``episodes/update_000040.jsonl``.

One episode a line, complete: text for people, and ids, log-probs, versions, keys, group and seed,
so that a later tool can make the same batch again and ask another estimator about it. A line is

    {"schema": 1, "update": 40, "id": ..., "attempt": ..., "game": ..., "group": ..., "seed": ...,
     "seats": {agent: player}, "returns": {agent: number}, "outcomes": {agent: name},
     "terminated": true, "events": [[kind, agent, turn]], "seconds": ..., "turns": [
        {"agent": ..., "role": ..., "player": ..., "policy": name or null,
         "text": ..., "brief": ..., "legal": [...] or null, "key": ..., "caller": turn or null,
         "events": [...], "prompt_ids": [...], "ids": [...], "versions": [[version, start, end]],
         "reply": ..., "tokens": [[text, logprob, advantage or null]],
         "action": ..., "fault": ..., "finish": ..., "reward": ..., "shaping": ..., "parent": ...}]}

`caller` is the observation's parent, `parent` the turn's. Log-probs are the sampler's, in nats.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_llm.errors import CheckpointError, EpisodeError
from marl_llm.report.metrics import replace_text
from marl_llm.types import Episode, Event, Finish, Observation, Outcome, Turn

SCHEMA = 1
EPISODES_FOLDER = "episodes"

TurnKey = tuple[int, int]  # (episode id, index of the turn in it)

_NAME = re.compile(r"update_(\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """An episode read back, with the text and the advantage of every sampled token."""

    update: int
    episode: Episode
    token_texts: tuple[tuple[str, ...], ...]  # per turn, per sampled token
    advantages: tuple[tuple[float, ...], ...]  # the same shape; NaN = the token got no credit


def advantages_by_turn(
    episodes: Sequence[Episode], policy: str, per_token: Sequence[float]
) -> dict[TurnKey, Sequence[float]]:
    """Cut the flat credit of one policy's batch into the turns it belongs to.

    Args:
        episodes: those of the batch, in the batch's order.
        policy: whose turns the batch holds.
        per_token: [M] advantage of every sampled token, in episode and playing order.

    Raises:
        EpisodeError: the episodes have another number of sampled tokens.
    """
    cut: dict[TurnKey, Sequence[float]] = {}
    start = 0
    for episode in episodes:
        for index, turn in enumerate(episode.turns):
            if turn.policy == policy:
                end = start + len(turn.ids)
                cut[episode.id, index] = per_token[start:end]
                start = end
    if start != len(per_token):
        raise EpisodeError(
            f"{len(per_token)} advantages for {start} tokens sampled by policy {policy!r}; "
            "expected one per token, for the episodes of the whole batch"
        )
    return cut


def write_episodes(
    run_dir: Path,
    update: int,
    episodes: Sequence[Episode],
    decoders: Mapping[str, Callable[[int], str]],
    advantages: Mapping[TurnKey, Sequence[float]],
) -> Path:
    """Write the games that a person may want to look at after this update, in one step.

    Args:
        run_dir: the run folder.
        update: updates finished when the credit was used.
        episodes: the sample; not necessarily the whole batch.
        decoders: by policy, one of its token ids as text.
        advantages: per turn, one number per sampled token; turns without credit may be absent.

    Raises:
        EpisodeError: a turn has another number of advantages than sampled tokens.
    """
    path = run_dir / EPISODES_FOLDER / f"update_{update:06d}.jsonl"
    lines = (
        json.dumps(_record(update, episode, decoders, advantages), allow_nan=False)
        for episode in episodes
    )
    replace_text(path, "".join(line + "\n" for line in lines))
    return path


def read_episodes(path: Path) -> list[RecordedEpisode]:
    """The games of one file.

    Raises:
        CheckpointError: a line is not an episode, or one of a schema that is not known here.
    """
    found = []
    # Bytes that are no text become signs that are no JSON, so that their line is named below.
    *lines, _end = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            schema = record.get("schema")
            if schema == SCHEMA:
                found.append(_recorded(record))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} line {number} is not an episode ({type(error).__name__}: {error}); "
                "remove that line to read the others"
            ) from error
        if schema != SCHEMA:
            raise CheckpointError(
                f"{path} line {number} has schema {schema!r}, this version reads {SCHEMA}; "
                "open it with the version that wrote it"
            )
    return found


def episode_files(run_dir: Path) -> dict[int, Path]:
    """The files of a run by update, ascending."""
    named = ((_NAME.fullmatch(path.name), path) for path in (run_dir / EPISODES_FOLDER).glob("*"))
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def _record(
    update: int,
    episode: Episode,
    decoders: Mapping[str, Callable[[int], str]],
    advantages: Mapping[TurnKey, Sequence[float]],
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "update": update,
        "id": episode.id,
        "attempt": episode.attempt,
        "game": episode.game,
        "group": episode.group,
        "seed": episode.seed,
        "seats": dict(episode.seats),
        "returns": {agent: float(value) for agent, value in episode.returns.items()},
        "outcomes": dict(episode.outcomes),
        "terminated": episode.terminated,
        "events": _event_rows(episode.events),
        "seconds": episode.seconds,
        "turns": [
            _turn_record(turn, decoders, _credit(advantages, episode, index))
            for index, turn in enumerate(episode.turns)
        ],
    }


def _credit(
    advantages: Mapping[TurnKey, Sequence[float]], episode: Episode, index: int
) -> list[float | None]:
    """Advantage of every sampled token of a turn, None where there is none."""
    tokens = len(episode.turns[index].ids)
    given = advantages.get((episode.id, index))
    if given is None:
        return [None] * tokens
    if len(given) != tokens:
        raise EpisodeError(
            f"turn {index} of episode {episode.id} has {tokens} sampled tokens "
            f"but {len(given)} advantages"
        )
    return [float(value) if math.isfinite(value) else None for value in given]


def _turn_record(
    turn: Turn,
    decoders: Mapping[str, Callable[[int], str]],
    credit: Sequence[float | None],
) -> dict[str, Any]:
    seen = turn.observation
    decode = str if turn.policy is None else decoders[turn.policy]  # scripted: nothing was sampled
    return {
        "agent": seen.agent,
        "role": seen.role,
        "player": turn.player,
        "policy": turn.policy,
        "text": seen.text,
        "brief": seen.brief,
        "legal": seen.legal,
        "key": seen.key,
        "caller": seen.parent,
        "events": _event_rows(seen.events),
        "prompt_ids": turn.prompt_ids,
        "ids": turn.ids,
        "versions": turn.versions,
        "reply": turn.reply,
        "tokens": [
            [decode(token), float(logprob), advantage]
            for token, logprob, advantage in zip(turn.ids, turn.logprobs, credit, strict=True)
        ],
        "action": turn.action,
        "fault": turn.fault,
        "finish": turn.finish,
        "reward": float(turn.reward),
        "shaping": float(turn.shaping),
        "parent": turn.parent,
    }


def _event_rows(events: Sequence[Event]) -> list[list[str | int]]:
    return [[event.kind, event.agent, event.turn] for event in events]


def _events(rows: Sequence[Sequence[Any]]) -> tuple[Event, ...]:
    return tuple(Event(kind, agent, turn) for kind, agent, turn in rows)


def _recorded(record: Mapping[str, Any]) -> RecordedEpisode:
    turns = record["turns"]
    episode = Episode(
        id=record["id"],
        attempt=record["attempt"],
        game=record["game"],
        group=record["group"],
        seed=record["seed"],
        turns=tuple(_turn(turn) for turn in turns),
        seats=record["seats"],
        returns=record["returns"],
        outcomes={agent: Outcome(name) for agent, name in record["outcomes"].items()},
        terminated=record["terminated"],
        events=_events(record["events"]),
        seconds=record["seconds"],
    )
    return RecordedEpisode(
        update=record["update"],
        episode=episode,
        token_texts=tuple(tuple(token[0] for token in turn["tokens"]) for turn in turns),
        advantages=tuple(
            tuple(math.nan if token[2] is None else token[2] for token in turn["tokens"])
            for turn in turns
        ),
    )


def _turn(record: Mapping[str, Any]) -> Turn:
    legal, fault, finish = record["legal"], record["fault"], record["finish"]
    return Turn(
        observation=Observation(
            agent=record["agent"],
            role=record["role"],
            text=record["text"],
            brief=record["brief"],
            legal=None if legal is None else tuple(legal),
            key=record["key"],
            parent=record["caller"],
            events=_events(record["events"]),
        ),
        policy=record["policy"],
        player=record["player"],
        prompt_ids=tuple(record["prompt_ids"]),
        ids=tuple(record["ids"]),
        logprobs=tuple(token[1] for token in record["tokens"]),
        versions=tuple((version, start, end) for version, start, end in record["versions"]),
        reply=record["reply"],
        action=record["action"],
        fault=None if fault is None else Outcome(fault),
        finish=None if finish is None else Finish(finish),
        reward=record["reward"],
        shaping=record["shaping"],
        parent=record["parent"],
    )
