"""Checkpoints: one folder per update, whole or not there at all, every byte accounted for.

    RUN/checkpoints/update_000040/
        manifest.json        SHA-256 and size of every other file, and the score
        ...                  whatever was put in: one folder per policy, the run's own state

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marl_llm.errors import CheckpointError

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
NAME = re.compile(r"update_(\d{6,})")


@contextmanager
def writing(run_dir: Path, update: int, score: float | None = None) -> Iterator[Path]:
    """A folder to fill; it becomes the checkpoint of this update when the block ends well.

        with writing(run_dir, 40, score=-0.12) as folder:
            learner.save(folder / "main")

    Args:
        run_dir: the run's folder.
        update: updates done so far.
        score: higher is better; `prune` keeps the best. None = not measured.

    Raises:
        CheckpointError: nothing was put in, or the score is not finite.
    """
    if score is not None and not math.isfinite(score):
        raise CheckpointError(f"the score of update {update} is {score}; it must be finite or None")
    target = folder_of(run_dir, update)
    half = target.with_name(f".{target.name}.half")
    shutil.rmtree(half, ignore_errors=True)  # what a killed run left
    half.mkdir(parents=True)
    try:
        yield half
        seal(half, update, score)
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():  # a run that resumed before it, say because it was not intact
            target.rename(old)
        half.rename(target)
        flush(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def seal(folder: Path, update: int, score: float | None) -> None:
    """Write the manifest of all files in a folder, and flush them and it to the disk."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise CheckpointError(f"nothing was put into the checkpoint of update {update}")
    manifest = {
        "update": update,
        "score": score,
        "files": {
            path.relative_to(folder).as_posix(): {
                "sha256": sha256(path),
                "bytes": path.stat().st_size,
            }
            for path in files
        },
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in [*files, folder / MANIFEST]:
        flush(path)
    for path in {path.parent for path in files} | {folder}:
        flush(path)


def verify(folder: Path) -> int:
    """Compare every file of a checkpoint with its manifest.

    Returns:
        The checkpoint's update.

    Raises:
        CheckpointError: naming the file that is missing, cut short or altered, and the checkpoint
            before it that is intact.
    """
    fault = fault_of(folder)
    if fault is None:
        return update_of(folder)
    earlier = [
        other for other in all_of(folder.parent.parent) if update_of(other) < update_of(folder)
    ]
    whole = next((other for other in reversed(earlier) if fault_of(other) is None), None)
    advice = (
        f"go on from {whole}, which is intact"
        if whole is not None
        else "no earlier checkpoint is intact; start the run anew"
    )
    raise CheckpointError(f"{fault}; {advice}")


def fault_of(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    if not folder.is_dir():
        return f"no checkpoint at {folder}"
    try:
        files = [
            (folder / name, int(entry["bytes"]), str(entry["sha256"]))
            for name, entry in read_manifest(folder)["files"].items()
        ]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        return f"{folder / MANIFEST} cannot be read ({error})"
    for path, size, digest in files:
        if not path.is_file():
            return f"{path} is missing"
        if path.stat().st_size < size:
            return f"{path} is cut short: {path.stat().st_size} of {size} bytes"
        if sha256(path) != digest:
            return f"{path} was altered: its SHA-256 is not the manifest's"
    return None


def all_of(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, oldest first, intact or not."""
    found = [path for path in (run_dir / FOLDER).glob("update_*") if NAME.fullmatch(path.name)]
    return sorted(found, key=update_of)


def latest(run_dir: Path) -> Path:
    """The newest checkpoint of a run, verified.

    Raises:
        CheckpointError: there is none, or it is not intact; then the message offers the one before.
    """
    found = all_of(run_dir)
    if not found:
        raise CheckpointError(
            f"{run_dir} holds no checkpoint; was the run stopped before its first?"
        )
    verify(found[-1])
    return found[-1]


def intact(run_dir: Path) -> Path:
    """The newest checkpoint of a run that is intact.

    Raises:
        CheckpointError: there is none.
    """
    found = all_of(run_dir)
    for folder in reversed(found):
        if fault_of(folder) is None:
            return folder
    raise CheckpointError(f"none of the {len(found)} checkpoints of {run_dir} is intact")


def prune(run_dir: Path, keep: int) -> list[Path]:
    """Remove all checkpoints but the newest `keep` and the one of the best score.

    Returns:
        What was removed.
    """
    if keep < 1:
        raise CheckpointError(f"keep must be at least 1 checkpoint, got {keep}")
    found = all_of(run_dir)
    scores = {folder: score_of(folder) for folder in found}
    best = max(scores.values(), default=-math.inf)
    spared = next((f for f in reversed(found) if scores[f] == best > -math.inf), None)
    removed = [folder for folder in found[:-keep] if folder != spared]
    for folder in removed:
        shutil.rmtree(folder)
    return removed


def score_of(folder: Path) -> float:
    """The score a checkpoint was written with; -inf if it has none or cannot be read."""
    try:
        score = read_manifest(folder)["score"]
    except (OSError, ValueError, KeyError, TypeError):
        return -math.inf
    return -math.inf if score is None else float(score)


def folder_of(run_dir: Path, update: int) -> Path:
    """Where the checkpoint of an update is."""
    return run_dir / FOLDER / f"update_{update:06d}"


def update_of(folder: Path) -> int:
    """Which update a checkpoint's folder is of.

    Raises:
        CheckpointError: its name is not that of a checkpoint.
    """
    match = NAME.fullmatch(folder.name)
    if match is None:
        raise CheckpointError(
            f"{folder} is not a checkpoint: its name should be update_000040 or so"
        )
    return int(match[1])


def read_manifest(folder: Path) -> dict:
    """The manifest of a checkpoint, as it was written."""
    return json.loads((folder / MANIFEST).read_text())


def sha256(path: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Have the disk hold what was written to a file, or which files a folder holds."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
