"""Which process of a run is what: a file each in the run folder, locked while its process lives.

A killed process lets go of its lock, so the next to use the folder can tell who is still there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from marl_llm.cluster import incidents
from marl_llm.errors import DeadlineError

FOLDER = "processes"  # of a run folder
END_SECONDS = 60.0  # how long the processes of a killed run may take to end
CLOSE_SECONDS = 10.0  # and those of one that was closed
LOOK_SECONDS = 0.1


def here(run_dir: Path, what: str) -> None:
    """Write down that this process is `what`, and if another was before, that it has ended."""
    place = run_dir / FOLDER / what
    place.parent.mkdir(exist_ok=True)
    if place.exists():
        incidents.note(run_dir, f"{what} had ended and was started anew")
    held = os.open(place, os.O_RDWR | os.O_CREAT)  # for as long as this process lives
    with suppress(BlockingIOError):  # the one before is not quite gone
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.ftruncate(held, 0)
    os.write(held, str(os.getpid()).encode())


def clear(run_dir: Path) -> None:
    """Wait for the processes of a run that was killed, and forget them.

    Raises:
        DeadlineError: some do not end.
    """
    if not (run_dir / FOLDER).exists():
        return
    incidents.note(run_dir, "the run itself had ended, and all its processes are started anew")
    if left := _left(run_dir, END_SECONDS):
        named = ", ".join(f"{what} (process {_id(run_dir, what)})" for what in left)
        raise DeadlineError(
            f"{run_dir} was killed, and {END_SECONDS:.0f} s later there is still {named}; end "
            "that, then resume"
        )
    shutil.rmtree(run_dir / FOLDER)


def close(run_dir: Path) -> None:
    """Forget the processes of a run that was closed; if some linger, the next run waits."""
    if not _left(run_dir, CLOSE_SECONDS):
        shutil.rmtree(run_dir / FOLDER, ignore_errors=True)


def listed(run_dir: Path) -> dict[str, int]:
    """The ids of a run's processes, by what they are; those that write theirs down now are not."""
    names = sorted(path.name for path in (run_dir / FOLDER).glob("*"))
    return {what: number for what in names if (number := _id(run_dir, what))}


def _left(run_dir: Path, seconds: float) -> list[str]:
    """Who still lives when that many seconds have gone, or all have ended."""
    end = time.monotonic() + seconds
    while left := [path.name for path in (run_dir / FOLDER).glob("*") if _locked(path)]:
        if time.monotonic() > end:
            break
        time.sleep(LOOK_SECONDS)
    return left


def _locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _id(run_dir: Path, what: str) -> int:
    try:
        return int((run_dir / FOLDER / what).read_text() or 0)
    except FileNotFoundError:
        return 0
