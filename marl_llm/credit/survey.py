"""What a survey of credit assignment asks of a method, as far as its card answers it.

Four questions of arXiv 2604.09459: which unit gets a number of its own, what that number is meant
to be, what it is compared with, and how strong the evidence is that the unit caused it. The answers
follow from the card and the settings; where they do not settle one, it is None, never a guess. They
are about the *kind* of number, not about its quality, which `marl-llm credit bench` measures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from marl_llm.credit.card import Card
from marl_llm.credit.signals import KNOWN

Tier = Literal["restored", "observational", "model-relative", "proxy"]
Reference = Literal["observed", "matched", "restored"]

TIERS: dict[Tier, str] = {  # strongest first
    "restored": "play goes on from a restored state, with the unit and without it",
    "observational": "sampled episodes are compared as they came",
    "model-relative": "a model says what another action would have brought",
    "proxy": "a number that predicts, or stands for, what is wanted",
}
UNITS = {
    "response": "all that an agent says in an episode",
    "agent": "an agent's part in an episode",
    "turn": "a turn",
    "segment": "a segment of a turn, or of an episode",
    "token": "a token",
}
ESTIMANDS = {
    "monte carlo": "the return with the unit, minus that of comparable play",
    "temporal difference": "the expected return after the unit, minus that before it",
    "counterfactual": "the return with the unit, minus that without it or with another one",
    "game-theoretic": "the unit's share of what all units together are worth",
    "information": "what the unit changed in a probe of the policy or of the answer",
    "judge": "how good another model calls the unit",
    "redistribution": "the unit's share of one return",
}
# Who attaches a signal decides what it is evidence of.
PLAYED = frozenset({  # only writes down what was sampled, or what the game said
    "a splitter", "evidence extraction", "greedy_return", "the event schedule", "the game",
    "plan_blocks", "the learner", "the policy", "the role's parser", "token_statistics",
})  # fmt: skip
REPLAYED = frozenset({  # plays on, or plays again
    "a tree rollout", "action_values", "agent_ablation", "coalition replays", "turn_ablation",
})  # fmt: skip
CRITICS = frozenset({  # say what is to be expected
    "a critic", "action_values", "delegation_values", "plan_values", "state_values",
})  # fmt: skip
REPLAYS = "replays of the game"  # attached by nobody: the method asks for them itself
# Compare turns at equal states though no setting of theirs says so.
BY_STATE = frozenset({"hgpo", "tempo", "tempo_turns_reading"})


@dataclass(frozen=True, slots=True)
class Answers:
    """The survey's fields for one method with its settings."""

    unit: str
    estimand: str
    reference: Reference  # which play the unit is compared with: as it came, or from one state
    baseline: str | None  # "critic", "group", "batch", or "batch by role, agent"
    tier: Tier | None


def survey(card: Card, settings: Mapping[str, Any]) -> Answers:
    """The answers for a method.

    Args:
        card: of its class.
        settings: as they are, by name.
    """
    return Answers(
        unit=UNITS[card.granularity],
        estimand=ESTIMANDS[card.methodology],
        reference=_reference(card, settings),
        baseline=_baseline(card, settings),
        tier=_tier(card),
    )


def settings_of(estimator: Any) -> dict[str, Any]:
    """The settings of an estimator by name, tuples as they are."""
    return {field.name: getattr(estimator, field.name) for field in dataclasses.fields(estimator)}


def annotators(card: Card) -> list[str]:
    """Who has to attach something before the method can be asked, each once; and replays."""
    return sorted({KNOWN[need].annotator for need in card.needs}) + [REPLAYS] * card.resamples


def _tier(card: Card) -> Tier | None:
    """How strong the evidence is; None where it hangs on who attaches a value."""
    who = set(annotators(card))
    if who & (REPLAYED | {REPLAYS}):
        return "restored"
    if card.methodology in ("information", "judge", "redistribution"):
        return "proxy"
    if who <= PLAYED:
        return "observational"
    if card.methodology == "counterfactual":
        return "model-relative"
    return None if card.methodology == "monte carlo" else "proxy"


def _reference(card: Card, settings: Mapping[str, Any]) -> Reference:
    if _tier(card) == "restored":
        return "restored"
    named = {name for value in settings.values() for name in _names(value)}
    return "matched" if "state_key" in named or card.name in BY_STATE else "observed"


def _names(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else ()


def _baseline(card: Card, settings: Mapping[str, Any]) -> str | None:
    if CRITICS & set(annotators(card)):
        return "critic"
    if "by" not in settings:
        return None
    by = _names(settings["by"])
    if "group" in by:
        return "group"
    return f"batch by {', '.join(by)}" if by else "batch"
