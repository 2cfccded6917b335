"""Who there is to be killed in a run over Ray, and `kill -9`.

A run's processes are those that its folder names (the store, engines, trainers, rollout workers),
the tool processes below them, and the one that `marl-llm train` started, here called the driver.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from marl_llm.cluster import processes
from marl_llm.games.tools.process import WORKER
from marl_llm.learn import checkpoints

DRIVER, TOOL = "driver", "tool"
_NAMED = {"store": "store", "engine": "engine", "trainer": "trainer", "rollout": "worker"}
KINDS = (*_NAMED.values(), TOOL, DRIVER)


def victims(run_dir: Path, driver: int) -> dict[str, dict[str, int]]:
    """Processes that may be killed now: kind -> name -> id.

    The driver is one once there is a checkpoint to go on from.

    Args:
        run_dir: the run folder.
        driver: its process.
    """
    found: dict[str, dict[str, int]] = {}
    named = processes.listed(run_dir)
    for who, process in named.items():
        if _command(process).startswith(b"ray::"):  # else it has ended, or is just beginning
            kind = _NAMED[who.removeprefix("the ").split()[0]]
            found.setdefault(kind, {})[who] = process
    below = children()
    for who, process in {"the driver": driver, **named}.items():
        for tool in below.get(process, ()):
            if os.fsencode(WORKER) in _command(tool):
                found.setdefault(TOOL, {})[f"a tool of {who}"] = tool
    if checkpoints.all_of(run_dir):
        found[DRIVER] = {"the driver": driver}
    return found


def strike(process: int) -> bool:
    """Kill a process at once; whether it was there."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:  # it has ended by itself
        return False
    return True


def children() -> Mapping[int, list[int]]:
    """All processes of this machine by the one above them."""
    found: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
        found.setdefault(parent, []).append(int(place.name))
    return found


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
