"""What an estimator costs beside the episodes, counted on the batch that it was asked about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from marl_llm.credit.given import Resampler
from marl_llm.credit.segments import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Per episode."""

    forwards: float = 0.0  # passes of a model over an episode, or over an answer after a part of it
    judgements: float = 0.0  # calls of a judge
    rollouts: float = 0.0  # episodes, or their ends, that are played for credit only


@dataclass(frozen=True, slots=True)
class Service:
    """Who attaches some signals, all for one price."""

    signals: frozenset[str]
    per_turn: Cost = Cost()
    per_episode: Cost = Cost()


def _each(
    *names: str, forwards: float = 0.0, judgements: float = 0.0, rollouts: float = 0.0
) -> Service:
    """A service whose price is per turn."""
    price = Cost(forwards=forwards, judgements=judgements, rollouts=rollouts)
    return Service(frozenset(names), per_turn=price)


SERVICES = (
    _each("value", "value_next", "value_high", "value_switch", "value_keep", "token_value",
          "value_behind", forwards=1),
    _each("value_others", "action_value", "action_value_mean", "value_event", forwards=1),
    _each("reference_logprob", forwards=1),
    _each("teacher_logprob", forwards=1),
    _each("negative_logprob", forwards=1),
    Service(frozenset({"gold_before", "gold_after"}), Cost(forwards=1), Cost(forwards=1)),
    Service(frozenset({"answer_before", "answer_after", "answer_share"}), Cost(forwards=1),
            Cost(forwards=1, judgements=1)),
    Service(frozenset({"success_before", "success_after", "potential", "potential_next"}),
            Cost(forwards=1), Cost(forwards=1)),
    _each("prm_error", "token_reward", forwards=1),
    _each("progress", forwards=1),
    _each("hindsight_logprob", forwards=1),
    _each("commitment", forwards=1),
    _each("judge_good", judgements=1),
    _each("judge_role", judgements=1),
    _each("judge_credit", judgements=1),
    _each("judge_score", judgements=1),
    _each("wrong_share", judgements=4),
    _each("informative_outcome", "informative_shaping", judgements=1),
    Service(frozenset({"rubric_pass", "rubric_fail", "rubric_item", "rubric_verdict"}),
            per_episode=Cost(judgements=1)),
    Service(frozenset({"support_out", "support_in", "contradicted", "faulty"}),
            per_episode=Cost(judgements=1)),
    _each("ablated_return", rollouts=1),
)  # fmt: skip


def signal_cost(needs: Iterable[str], turns: float, agents: int, size: int) -> Cost:
    """What some signals cost, per episode.

    Signals that the policy, the game, a parser or the schedule give anyway are free; so is
    everything that the learner's own pass over the tokens computes.

    Args:
        needs: names of signals.
        turns: mean turns of an episode.
        agents: of an episode.
        size: episodes of a group.
    """
    wanted = set(needs)
    called = [service for service in SERVICES if service.signals & wanted]
    rollouts = agents * ("return_without" in wanted) + 2.0**agents * ("shapley_value" in wanted)
    return Cost(
        forwards=sum(turns * s.per_turn.forwards + s.per_episode.forwards for s in called),
        judgements=sum(turns * s.per_turn.judgements + s.per_episode.judgements for s in called),
        rollouts=sum(turns * s.per_turn.rollouts for s in called)
        + rollouts
        + ("greedy_return" in wanted) / size,
    )


@dataclass(slots=True)
class Counted:
    """A resampler that counts its continuations."""

    resample: Resampler
    rollouts: int = 0

    def __call__(self, rows: Array, count: int, *, after: bool = False) -> Array:
        """As the resampler."""
        self.rollouts += int(np.size(rows)) * count
        return self.resample(rows, count, after=after)
