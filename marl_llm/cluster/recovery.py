"""Recovery: what a policy's trainer must not lose, written after every lesson.

    run folder/recovery/<policy>/000012/   the trainer's whole state after 12 lessons,
                                           the last of them, and the claim that it learned from

A trainer that was killed goes on from the newest folder. Learning from a claim counts once it is
written here, and not before: a killed trainer either finds the claim still open and learns from it
again, or finds it noted here and only acknowledges it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marl_llm.trainer import Lesson

FOLDER = "recovery"  # of a run folder
_NOTE, _ADVANTAGES = "lesson.json", "advantages.npy"


@dataclass(frozen=True, slots=True)
class Note:
    """What a trainer had done when it wrote its state."""

    folder: Path  # with the state
    lessons: int
    claim: int  # that the last lesson was learned from
    lesson: Lesson


def keep(
    place: Path, lessons: int, claim: int, lesson: Lesson, save: Callable[[Path], None]
) -> None:
    """Write a state; a process killed meanwhile leaves the one before it.

    Args:
        place: the policy's folder.
        lessons: how many there were, this one included.
        claim: that it was learned from.
        lesson: the last.
        save: writes the trainer's state into an empty folder.
    """
    half = place / ".half"
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    save(half)
    np.save(half / _ADVANTAGES, lesson.advantages)
    note = {
        "claim": claim,
        "policy": lesson.policy,
        "stats": dict(lesson.stats),
        "groups": list(lesson.groups),
    }
    (half / _NOTE).write_text(json.dumps(note))
    half.rename(place / f"{lessons:06d}")
    for old in _states(place)[:-1]:
        shutil.rmtree(old)


def latest(place: Path) -> Note | None:
    """The newest state of a policy, None if there is none."""
    states = _states(place)
    if not states:
        return None
    folder = states[-1]
    note = json.loads((folder / _NOTE).read_text())
    advantages = np.load(folder / _ADVANTAGES)
    lesson = Lesson(note["policy"], note["stats"], advantages, tuple(note["groups"]))
    return Note(folder, int(folder.name), note["claim"], lesson)


def _states(place: Path) -> list[Path]:
    return sorted(path for path in place.glob("[0-9]*") if path.is_dir())
