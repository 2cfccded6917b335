"""Incidents: what broke in a run and was put right, one line each, in the run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

FILE = "incidents.log"


class Incidents:
    """Appends to a run's ``incidents.log``, which is there once something has happened."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.time) -> None:
        """Note what happens from now on behind what is there.

        Args:
            run_dir: the run folder.
            clock: wall-clock seconds.
        """
        self._path, self._clock = run_dir / FILE, clock
        self.count = 0

    def note(self, text: str) -> None:
        """One line, with the time in front."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._clock()))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{stamp}  {text}\n")
        self.count += 1
