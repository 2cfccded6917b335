"""What is measured between updates: exact NashConv where it can be had, matches, and success.

Every measurement draws its own seeds and leaves the engines as they were, so that training goes on
as if nobody had looked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marl_llm.agents import Player
from marl_llm.errors import ConfigError
from marl_llm.evaluate.matches import Match, panel_matches
from marl_llm.evaluate.nash_conv import Measured, Thoughts, measure
from marl_llm.evaluate.success import held_out_success
from marl_llm.evaluate.text_tree import PolicyTable, TextTree, equilibrium_policy, text_tree
from marl_llm.rollout.play import ModelSeat
from marl_llm.seeds import derive
from marl_llm.serve import Engine
from marl_llm.settings import RunSettings


@dataclass(frozen=True, slots=True)
class Measurement:
    """One look at a policy."""

    metrics: Mapping[str, float]  # `evaluate/<seat>/<quantity>`
    policies: Mapping[str, Measured] = field(default_factory=dict)  # by game
    matches: tuple[Match, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return {
            "metrics": dict(self.metrics),
            "nash_conv": {game: found.as_json() for game, found in self.policies.items()},
            "matches": [match.as_json() for match in self.matches],
        }


class Measurer:
    """Measures one run's policies by its `evaluation` settings."""

    def __init__(self, run: RunSettings, seats: Mapping[str, ModelSeat | Player]) -> None:
        """Lay out the game trees and solve for their equilibria, once.

        Args:
            run: the settings.
            seats: everybody who can sit down, by name; the panel's members among them.

        Raises:
            ConfigError: the evaluated seat is not a model's.
        """
        self._run, self._seats, self._makers = run, seats, run.makers()
        seat = seats[run.evaluation.seat]
        if not isinstance(seat, ModelSeat):
            raise ConfigError(f"evaluation.seat {run.evaluation.seat!r} is not played by a model")
        self._seat = seat
        self._trees: dict[str, tuple[TextTree, PolicyTable | None]] = {}
        for game in run.evaluation.nash_conv:
            tree = text_tree(self._makers[game]())
            solved = len(tree.agents) == 2  # by a linear program; with more there is none
            self._trees[game] = (tree, equilibrium_policy(tree) if solved else None)

    def measure(self, update: int, engines: Mapping[str, Engine]) -> Measurement:
        """All that the settings ask for, after this many updates.

        Args:
            update: updates done.
            engines: by policy, otherwise idle.
        """
        evaluation, seed = self._run.evaluation, derive(self._run.seed, "evaluation")
        metrics: dict[str, float] = {}
        policies = self._exploit(engines, metrics, seed)
        matches: list[Match] = []
        games = evaluation.games or tuple(self._run.games)
        panel = (*evaluation.panel, *((evaluation.seat,) if evaluation.itself else ()))
        for game in games if panel else ():
            played = panel_matches(
                game,
                self._makers[game],
                evaluation.seat,
                panel,
                self._seats,
                engines,
                pairs=evaluation.pairs,
                seed=seed,
            )
            matches += played
            for match in played:
                metrics |= match_metrics(evaluation.seat, match, several=len(games) > 1)
        for game in games if evaluation.success else ():
            for manner in ("sampled", "greedy"):
                metrics |= self._succeed(game, engines, seed, manner == "greedy")
        return Measurement(metrics, policies, tuple(matches))

    def _succeed(
        self, game: str, engines: Mapping[str, Engine], seed: int, greedy: bool
    ) -> dict[str, float]:
        """Success on held-out episodes as metrics, with the behaviour that goes with it."""
        evaluation = self._run.evaluation
        found = held_out_success(
            game,
            self._makers[game],
            self._run.rollout.lineups[0],
            self._seats,
            engines,
            episodes=evaluation.success,
            seed=seed,
            greedy=greedy,
            retries=self._run.rollout.retries,
        )
        games = evaluation.games or tuple(self._run.games)
        suffix = ("_greedy" if greedy else "") + (f"_{game}" if len(games) > 1 else "")
        values = {
            f"success{suffix}": found.success.value,
            f"success{suffix}_low": found.success.low,
            f"success{suffix}_high": found.success.high,
            f"calls{suffix}": found.calls,
            f"reports_right{suffix}": found.reports_right,
        }
        for quantity, share in (
            ("useful_calls", found.useful),
            ("constraint_preservation", found.preserved),
        ):
            if share is not None:
                values[f"{quantity}{suffix}"] = share
        return {f"evaluate/{evaluation.seat}/{key}": value for key, value in values.items()}

    def _exploit(
        self, engines: Mapping[str, Engine], metrics: dict[str, float], seed: int
    ) -> dict[str, Measured]:
        evaluation, seat = self._run.evaluation, self._seat
        policies = {}
        for game, (tree, equilibrium) in self._trees.items():
            found = measure(
                tree,
                seat.role,
                seat.chat,
                engines[seat.policy],
                seed=seed,
                thoughts=Thoughts(evaluation.thought, evaluation.thoughts),
                reference=equilibrium,
            )
            policies[game] = found
            suffix = f"_{game}" if len(self._trees) > 1 else ""
            metrics[f"evaluate/{evaluation.seat}/nash_conv{suffix}"] = found.result.nash_conv
            metrics[f"evaluate/{evaluation.seat}/legal_mass{suffix}"] = found.result.legal_mass
        return policies


def match_metrics(seat: str, match: Match, *, several: bool) -> dict[str, float]:
    """A match as metrics, `evaluate/<seat>/score_<opponent>` with its interval.

    Args:
        seat: who was evaluated.
        match: against one opponent.
        several: games are evaluated, so that their names must tell them apart.
    """
    name = f"{match.opponent}_{match.game}" if several else match.opponent
    values = {f"forfeit_share_{name}": match.pooled.forfeits}
    for quantity, interval in (("score", match.pooled.score), ("return", match.pooled.returns)):
        if interval is not None:
            values[f"{quantity}_{name}"] = interval.value
            values[f"{quantity}_{name}_low"] = interval.low
            values[f"{quantity}_{name}_high"] = interval.high
    return {f"evaluate/{seat}/{key}": value for key, value in values.items()}
