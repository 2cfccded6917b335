"""Incidents: what broke in a run and was put right, one line each, in the run folder."""

from __future__ import annotations

import time
from pathlib import Path

FILE = "incidents.log"


def note(run_dir: Path, text: str) -> None:
    """Append a line, with the time in front; the file is there once something has happened."""
    with (run_dir / FILE).open("a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")


def noted(run_dir: Path) -> list[str]:
    """The lines so far."""
    path = run_dir / FILE
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
