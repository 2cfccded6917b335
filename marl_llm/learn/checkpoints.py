"""Checkpoints: one folder per update, whole or not there at all, every byte accounted for.

    RUN/checkpoints/update_000040/
        policies/NAME/...    what each policy's writer put there
        state.json           the run's own scalars
        ...                  other files of the run, such as store.sqlite
        manifest.json        size and SHA-256 of every other file, and the score

A folder is filled under another name, flushed to the disk, then renamed: a run killed at any moment
leaves a whole checkpoint or none. Files are safetensors and JSON; nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_llm.errors import CheckpointError

FOLDER = "checkpoints"
POLICIES = "policies"
STATE = "state.json"
MANIFEST = "manifest.json"
NAME = re.compile(r"update_(\d{6,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on the disk, verified when this was made."""

    path: Path
    update: int  # updates done when it was written
    scalars: Mapping[str, Any]  # of the run
    score: float | None  # higher is better

    def folder(self, policy: str) -> Path:
        """Where a policy's files are."""
        return self.path / POLICIES / policy


def save(
    run_dir: Path,
    update: int,
    writers: Mapping[str, Callable[[Path], None]],
    scalars: Mapping[str, Any],
    *,
    keep: int,
    score: float | None = None,
    files: Mapping[str, Callable[[Path], None]] | None = None,
) -> Checkpoint:
    """Write a checkpoint, then remove old ones.

    Args:
        run_dir: the run's folder.
        update: updates done so far.
        writers: by policy, what fills an empty folder with its state.
        scalars: the run's own, JSON.
        keep: newest checkpoints that stay; the one of the best score stays too.
        score: higher is better; None = not measured.
        files: by name, what writes a file of the run.

    Raises:
        CheckpointError: a scalar or the score is not finite or not JSON, or `keep` is below 1.
    """
    if keep < 1:
        raise CheckpointError(f"keep must be at least 1 checkpoint, got {keep}")
    target = run_dir / FOLDER / f"update_{update:06d}"
    half = target.with_name(f".{target.name}.half")
    shutil.rmtree(half, ignore_errors=True)  # what a killed run left
    try:
        for policy, write in writers.items():
            folder = half / POLICIES / policy
            folder.mkdir(parents=True)
            write(folder)
        half.mkdir(parents=True, exist_ok=True)
        write_json(half / STATE, scalars)
        for name, write in (files or {}).items():
            write(half / name)
        seal(half, update, score)
        # One of this update is there if the run went on from an earlier one, say as it was broken.
        shutil.rmtree(target, ignore_errors=True)
        half.rename(target)
        flush(target.parent)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    prune(run_dir, keep)
    return Checkpoint(target, update, scalars, score)


def load(path: Path) -> Checkpoint:
    """A checkpoint, once every file has been compared with the manifest.

    Raises:
        CheckpointError: naming the file that is missing, cut short or altered, and the checkpoint
            before it that is intact.
    """
    fault = fault_of(path)
    if fault is None:
        manifest = read_json(path / MANIFEST)
        return Checkpoint(path, manifest["update"], read_json(path / STATE), manifest["score"])
    earlier = [other for other in all_of(path.parent.parent) if other.name < path.name]
    whole = next((other for other in reversed(earlier) if fault_of(other) is None), None)
    advice = (
        f"delete {path} to go on from {whole.name}, which is intact"
        if whole is not None
        else "no earlier checkpoint is intact, start the run anew"
    )
    raise CheckpointError(f"{fault}; {advice}")


def latest(run_dir: Path) -> Checkpoint:
    """The newest checkpoint of a run.

    Raises:
        CheckpointError: there is none, or it is not intact; then the message offers the one before.
    """
    found = all_of(run_dir)
    if not found:
        raise CheckpointError(
            f"{run_dir} holds no checkpoint: the run ended before its first, start it anew"
        )
    return load(found[-1])


def intact(run_dir: Path) -> Checkpoint:
    """The newest checkpoint of a run that is intact, whatever happened to those after it.

    Raises:
        CheckpointError: there is none.
    """
    found = all_of(run_dir)
    for path in reversed(found):
        if fault_of(path) is None:
            return load(path)
    raise CheckpointError(
        f"none of the {len(found)} checkpoints in {run_dir / FOLDER} is intact; start the run anew"
    )


def all_of(run_dir: Path) -> list[Path]:
    """The folders of a run's checkpoints, oldest first, intact or not."""
    found = {
        int(match[1]): path
        for path in (run_dir / FOLDER).glob("update_*")
        if (match := NAME.fullmatch(path.name))
    }
    return [found[update] for update in sorted(found)]


def fault_of(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    if not path.is_dir():
        return f"there is no checkpoint at {path}"
    try:
        files = [
            (path / name, int(entry["bytes"]), str(entry["sha256"]))
            for name, entry in read_json(path / MANIFEST)["files"].items()
        ]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        return f"{path / MANIFEST} cannot be read ({error})"
    for file, size, digest in files:
        if not file.is_file():
            return f"{file} is missing"
        if file.stat().st_size < size:
            return f"{file} is cut short: {file.stat().st_size} of {size} bytes"
        if sha256(file) != digest:
            return f"{file} was altered: its SHA-256 is not the manifest's"
    return None


def prune(run_dir: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep` and the one of the best score."""
    found = all_of(run_dir)
    scores = {path: score_of(path) for path in found}
    best = max(scores.values(), default=-math.inf)
    spared = next((path for path in reversed(found) if scores[path] == best > -math.inf), None)
    for path in found[:-keep]:
        if path != spared:
            shutil.rmtree(path)


def score_of(path: Path) -> float:
    """The score a checkpoint was written with; -inf if it has none or cannot be read."""
    try:
        score = read_json(path / MANIFEST)["score"]
        return -math.inf if score is None else float(score)
    except (OSError, ValueError, KeyError, TypeError):
        return -math.inf


def seal(folder: Path, update: int, score: float | None) -> None:
    """Write the manifest of all files in a folder, and flush everything to the disk."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256(path),
        }
        for path in files
    }
    write_json(folder / MANIFEST, {"update": update, "score": score, "files": entries})
    for path in [*folder.rglob("*"), folder]:
        flush(path)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write JSON that reads back as the same values.

    Raises:
        CheckpointError: a value is not finite or has no JSON form.
    """
    try:
        path.write_text(json.dumps(dict(values), indent=1, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path.name} of a checkpoint cannot be written: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote."""
    return json.loads(path.read_text())


def sha256(path: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Have the disk hold what a file, or a folder's list of files, is now."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
