"""Annotate: the signals that a credit rule reads beside rewards.

An **annotator** is a frozen dataclass of settings, one file each. It names the `signals` that it
attaches (their meanings are in `credit/signals.py`) and has one method,

    annotate(material) -> {signal: column}

A column is as long as the turns of the batch, [N], or its sampled tokens, [M]. NaN over turns says
that a label could not be had; it is never 0. `material` holds the episodes, the batch and all that
may be asked: the policy itself, a judge, the games told again, replays (`material.py`).

Contexts and scores are in `contexts.py`, replays in `replays.py`, questions to a judge in
`asking.py`. What a model says is read by a strict parser and never run.

An annotator gets whole episodes, what other policies saw and said included. One that is content
with thin records of the others' turns says so (`material.OfStatistics`).

To add one: a file here and a YAML in `configs/annotator/` that names it under ``_target_``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Protocol

from marl_llm.annotate.material import Material
from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.segments import Array
from marl_llm.errors import EpisodeError
from marl_llm.seeds import generator


class Annotator(Protocol):
    """Makes signals."""

    signals: ClassVar[tuple[str, ...]]  # what it attaches

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""


def attach(annotators: Mapping[str, Annotator], material: Material, *seed: int | str) -> TurnBatch:
    """The batch with the signals of all annotators; a later one sees those of the earlier.

    Args:
        annotators: by the name that the user gave them, on which their draws hang.
        material: what they work with.
        seed: path of the draws.

    Raises:
        EpisodeError: an annotator attaches other signals than it says.
    """
    for name, annotator in annotators.items():
        material = replace(material, rng=generator(*seed, name))
        columns = annotator.annotate(material)
        if set(columns) != set(annotator.signals):
            raise EpisodeError(
                f"annotator {name!r} is to attach {', '.join(annotator.signals)}, and attached "
                f"{', '.join(columns) or 'nothing'}"
            )
        material = replace(material, batch=material.batch.with_signals(columns))
    return material.batch
