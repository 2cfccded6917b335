"""Replays: the episodes of a batch, played on from a turn or played again.

A continuation starts from the stored turns, carried out again in a fresh game and in the memories
of everybody at the table, and all play on with the policies as they are. What chance still decides
comes from the game's own seed, as it did in the stored episode: continuations differ by what is
said, and nobody is praised for luck. Every other draw hangs on the run's seed, the stored episode,
the turn and the number of the continuation, so equal questions have equal answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marl_llm.agents import Player
from marl_llm.credit import returns
from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.segments import Array
from marl_llm.errors import EpisodeError
from marl_llm.rollout.plans import Plan
from marl_llm.rollout.play import ModelSeat
from marl_llm.seeds import derive
from marl_llm.types import Episode

# Plays planned episodes; players by name take the place of those at hand.
Play = Callable[[Sequence[Plan], Mapping[str, ModelSeat | Player]], list[Episode]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """Plays on from the turns of a batch. Called, it is a `credit.given.Resampler`."""

    episodes: Mapping[int, Episode]  # of the batch, by id
    batch: TurnBatch
    columns: Callable[[Sequence[Episode]], TurnBatch]  # as the batch itself was made
    play: Play

    def __call__(self, rows: Array, count: int, *, after: bool = False) -> Array:
        """Returns of continuations, [R, count] float64; all of them are played in one go.

        Args:
            rows: turns of the batch, [R] int.
            count: continuations of each.
            after: start behind the turn, otherwise in front of it.

        Raises:
            EpisodeError: a game cannot be restored.
        """
        agents = self.batch.agents()
        distinct, which = np.unique(rows, return_inverse=True)
        got = returns.totals(self.batch.reward, agents)[distinct]
        got = np.repeat(got[:, None], count, axis=1)
        ongoing = agents.after[distinct] > 0 if after else np.ones(len(distinct), dtype=bool)
        many = np.repeat(distinct[ongoing], count).tolist()
        plans = [self._continuation(row, k % count, after) for k, row in enumerate(many)]
        if plans:
            played = self.play(plans, {})
            for row, plan, episode in zip(many, plans, played, strict=True):
                self._check(row, len(plan.opening), episode)
            names = [self.batch.name("agent", int(self.batch.agent[row])) for row in many]
            earned = [paid[name] for paid, name in zip(self.earned(played), names, strict=True)]
            got[ongoing] = np.reshape(earned, (-1, count))
        return got[which]

    def earned(self, episodes: Sequence[Episode]) -> list[dict[str, float]]:
        """What each agent got in each episode, counted as in the batch where the policy sat.

        Args:
            episodes: replays, ids distinct.
        """
        batch = self.columns(episodes)
        total = returns.totals(batch.reward, batch.agents())
        found = {episode.id: dict(episode.returns) for episode in episodes}
        for episode_id, agent, paid in zip(
            batch.episode.tolist(), batch.agent.tolist(), total.tolist(), strict=True
        ):
            found[episode_id][batch.name("agent", agent)] = paid
        return [found[episode.id] for episode in episodes]

    def again(self, episode: Episode, *what: int | str, players: Mapping[str, str]) -> Plan:
        """A plan to play an episode again from its start.

        Args:
            episode: of the batch.
            what: a path of its own for the draws.
            players: agent -> name of who sits there.
        """
        return Plan(
            id=derive("again", *what),
            group=episode.group,
            game=episode.game,
            seed=episode.seed,
            players=players,
        )

    def _continuation(self, row: int, number: int, after: bool) -> Plan:
        episode = self.episodes[int(self.batch.episode[row])]
        turn = int(self.batch.turn[row])
        side = "behind" if after else "before"
        return Plan(
            id=derive("continuation", episode.id, episode.attempt, turn, side, number),
            group=episode.group,
            game=episode.game,
            seed=episode.seed,
            players=episode.seats,
            attempt=episode.attempt,
            opening=episode.turns[: turn + after],
        )

    def _check(self, row: int, turn: int, episode: Episode) -> None:
        """Refuse a continuation whose first own turn begins elsewhere than the stored one did."""
        stored = self.episodes[int(self.batch.episode[row])]
        then, now = stored.turns[turn].observation, episode.turns[turn].observation
        if (then.agent, then.key) != (now.agent, now.key):
            raise EpisodeError(
                f"episode {stored.id} of {stored.game} cannot be played on from turn {turn}, where "
                f"{then.agent} knew {then.key!r}: replayed, {now.agent} knows {now.key!r}; a "
                "game must be fixed by its seed and its moves (marl-llm games check)"
            )
