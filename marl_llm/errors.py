"""What can go wrong, by whom it can be mended.

Every error a user can cause is a `MarlError`: one sentence that says what is wrong, where, what was
found, what was expected and the way out. The command line prints it on one line and exits with 2.
All of them take a single message, so they survive pickling across processes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MarlError(Exception):
    """The root: anything the user, and not the programmer, has to mend."""


class ConfigError(MarlError, ValueError):
    """A setting is unknown, missing, out of range or at odds with another."""


class GameError(MarlError, ValueError):
    """A game was asked for something outside its rules, or breaks its own contract."""


class ModelError(MarlError, ValueError):
    """A model, tokenizer or chat template cannot be loaded or used."""


class EpisodeError(MarlError, ValueError):
    """An episode or a batch of turns is malformed."""


class TrainingError(MarlError, ArithmeticError):
    """Training met a number that is not finite, or a check that must hold did not."""


class FullError(TrainingError):
    """A topic of the store has no room; whoever puts may wait until its learner has caught up."""


class CheckpointError(MarlError, ValueError):
    """A run folder or a checkpoint is missing, in use, cut short or altered."""


class DeadlineError(MarlError, TimeoutError):
    """A wait ended at its deadline; the message names who waited for what."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest known one, or the list of them.

    Args:
        name: what the user wrote.
        known: what would have been accepted.

    Returns:
        A clause such as ``did you mean 'kuhn'?``, or ``known: a, b, c`` when nothing is near.
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
