"""Incidents: what broke in a run and was put right, one line each, in the run folder."""

from __future__ import annotations

import time
from pathlib import Path

from marl_llm.games.tools import process

FILE = "incidents.log"


def note(run_dir: Path, text: str) -> None:
    """Append a line, with the time in front; the file is there once something has happened."""
    with (run_dir / FILE).open("a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")


def noted(run_dir: Path) -> list[str]:
    """The lines so far."""
    path = run_dir / FILE
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


class ToolWatch:
    """Notes the tool processes of this process that have ended."""

    def __init__(self, run_dir: Path, who: str) -> None:
        """Begin now.

        Args:
            run_dir: the run folder.
            who: this process is.
        """
        self._run_dir, self._who, self._lost = run_dir, who, process.lost()

    def look(self) -> None:
        """A line for each since the last look."""
        before, self._lost = self._lost, process.lost()
        for _ in range(self._lost - before):
            note(self._run_dir, f"a tool process of {self._who} had ended and was started anew")
