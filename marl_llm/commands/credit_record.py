"""Stored games of a run as a batch: what `credit compare` and `credit explain` ask about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marl_llm import config
from marl_llm.commands.presets import CONFIG, run_folder
from marl_llm.credit import Estimator
from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.card import Card
from marl_llm.credit.columns import from_episodes, turns_of
from marl_llm.credit.segments import Array
from marl_llm.errors import CheckpointError, ConfigError, nearest
from marl_llm.report.episodes import RecordedEpisode, episode_files, read_episodes
from marl_llm.targets import OURS

TRAINED = "as trained"  # the credit that the run itself used, from all its games


@dataclass(frozen=True, slots=True)
class Stored:
    """A run, and the games that it kept of one update."""

    path: Path
    config: Mapping[str, Any]
    update: int
    games: tuple[RecordedEpisode, ...]

    @property
    def policies(self) -> list[str]:
        """Those that sampled something in these games."""
        moved = {turn.policy for game in self.games for turn in game.episode.turns}
        return [name for name in self.config.get("policies", {}) if name in moved]

    @property
    def played(self) -> int | None:
        """How many games the update had; None if the configuration does not say."""
        return self.config.get("rollout", {}).get("episodes")


@dataclass(frozen=True, slots=True)
class Record:
    """One policy's turns in stored games."""

    batch: TurnBatch
    trained: Array | None  # credit of turns as the run trained with it, [N]; None = none is stored
    own: str  # the name of the run's own rule among `rules`
    rules: Mapping[str, Estimator]  # all there are


def stored(folder: str, update: int | None = None) -> Stored:
    """The games that a run kept after an update.

    Args:
        folder: the run's.
        update: which; None = the newest that is stored.

    Raises:
        CheckpointError: this is no run folder, or it holds no games of that update.
    """
    path = run_folder(folder)
    files = episode_files(path)
    if not files:
        raise CheckpointError(
            f"{folder} holds no games yet: a run keeps some at each evaluation, as many as "
            "run.episodes says"
        )
    at = max(files) if update is None else update
    if at not in files:
        kept = ", ".join(map(str, files))
        raise CheckpointError(f"{folder} kept no games of update {at}; it did of {kept}")
    found = Stored(path, config.read(path / CONFIG), at, tuple(read_episodes(files[at])))
    if not found.policies:
        raise CheckpointError(f"in the games of update {at} in {folder} no policy of the run moved")
    return found


def stored_with(folder: str, episode: int, update: int | None = None) -> Stored:
    """The games that a run kept together with one of them.

    Raises:
        CheckpointError: this is no run folder, or it kept no such episode.
    """
    games = stored(folder, update)
    updates = [games.update] if update is not None else sorted(episode_files(games.path))
    ids: dict[int, int] = {}
    for at in updates:
        found = stored(folder, at)
        if any(game.episode.id == episode for game in found.games):
            return found
        ids |= {game.episode.id: at for game in found.games}
    close = min(ids, key=lambda number: (abs(number - episode), number))
    raise CheckpointError(
        f"{folder} kept no episode {episode}; the nearest is {close}, of update {ids[close]}"
    )


def record(found: Stored, policy: str) -> Record:
    """The turns of a policy, with all rules that one could ask about them."""
    episodes = [game.episode for game in found.games]
    batch = from_episodes(episodes, policy)
    ids = [token for turn in turns_of(episodes, policy) for token in turn.ids]
    batch = batch.with_signals({"token_id": np.array(ids, dtype=np.int64)})
    rules = {name: config.build(config.node("credit", name)) for name in config.choices("credit")}
    allowed = (OURS, *found.config.get("packages", ()))
    node = found.config["policies"][policy].get("credit")
    mine = config.build(node, allowed=allowed, where=f"policies.{policy}.credit")
    if not isinstance(vars(type(mine)).get("card"), Card):
        raise ConfigError(
            f"policies.{policy}.credit of {found.path / CONFIG} makes no estimator: {node!r}"
        )
    same = [name for name, rule in rules.items() if rule == mine]
    own = same[0] if same else f"{mine.card.name}, as set"
    return Record(batch, _trained(found.games, policy), own, {own: mine, **rules})


def chosen(rules: Mapping[str, Estimator], names: Sequence[str], command: str) -> list[str]:
    """Names of rules, each known.

    Raises:
        ConfigError: one is not.
    """
    for name in names:
        if name not in rules:
            raise ConfigError(f"{command}: unknown credit {name!r}; {nearest(name, rules)}")
    return list(dict.fromkeys(names))


def _trained(games: Sequence[RecordedEpisode], policy: str) -> Array | None:
    """Mean over the tokens of each turn of the credit that was stored with them, [N]."""
    means = [
        float(np.mean(np.nan_to_num(credit))) if credit else 0.0
        for game in games
        for turn, credit in zip(game.episode.turns, game.advantages, strict=True)
        if turn.policy == policy
    ]
    known = any(value == value for game in games for credit in game.advantages for value in credit)
    return np.array(means) if known else None
