import json
from pathlib import Path

import pytest

from marl_llm.errors import CheckpointError
from marl_llm.learn import checkpoints


def keep(run: Path, update: int, text: str = "weights", count: int = 9, score=None):
    def write(folder: Path) -> None:
        (folder / "weights.safetensors").write_text(text)

    return checkpoints.save(
        run, update, {"main": write}, {"seconds": 0.1 + update}, keep=count, score=score
    )


def names(run: Path) -> list[str]:
    return [path.name for path in checkpoints.all_of(run)]


def test_what_was_kept_comes_back(tmp_path):
    keep(tmp_path, 20)
    keep(tmp_path, 40, "newer", score=-0.25)
    found = checkpoints.latest(tmp_path)
    assert (found.update, found.scalars, found.score) == (40, {"seconds": 40.1}, -0.25)
    assert (found.folder("main") / "weights.safetensors").read_text() == "newer"
    assert found == checkpoints.load(tmp_path / "checkpoints" / "update_000040")
    assert checkpoints.intact(tmp_path) == found


def test_other_files_of_the_run_are_part_of_it(tmp_path):
    files = {"store.sqlite": lambda path: path.write_text("records")}
    found = checkpoints.save(tmp_path, 20, {}, {}, keep=1, files=files)
    assert (found.path / "store.sqlite").read_text() == "records"
    (found.path / "store.sqlite").write_text("record!")
    assert "store.sqlite was altered" in checkpoints.fault_of(found.path)


@pytest.mark.parametrize("name", ["policies/main/weights.safetensors", "state.json"])
def test_an_altered_file_is_named_and_the_one_before_offered(tmp_path, name):
    keep(tmp_path, 20)
    keep(tmp_path, 40)
    file = tmp_path / "checkpoints/update_000040" / name
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])  # one bit
    with pytest.raises(CheckpointError, match=rf"{name} was altered.*delete .*update_000040 to go"):
        checkpoints.latest(tmp_path)
    assert checkpoints.intact(tmp_path).update == 20


def test_a_cut_file_is_named(tmp_path):
    keep(tmp_path, 20)
    file = tmp_path / "checkpoints/update_000020/policies/main/weights.safetensors"
    file.write_text("weig")
    with pytest.raises(
        CheckpointError, match=r"weights.safetensors is cut short: 4 of 7 bytes; no earlier"
    ):
        checkpoints.latest(tmp_path)
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        checkpoints.intact(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    keep(tmp_path, 20)
    (tmp_path / "checkpoints/update_000020/state.json").unlink()
    with pytest.raises(CheckpointError, match=r"state\.json is missing"):
        checkpoints.latest(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", '{"files": {"state.json": 3}}', '{"files": [1]}'])
def test_a_broken_manifest_is_named(tmp_path, text):
    keep(tmp_path, 20)
    (tmp_path / "checkpoints/update_000020/manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read"):
        checkpoints.latest(tmp_path)


def test_the_one_offered_is_the_last_intact_one(tmp_path):
    for update in (10, 20, 30):
        keep(tmp_path, update)
    for update in (20, 30):
        (tmp_path / f"checkpoints/update_0000{update}/state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="to go on from update_000010"):
        checkpoints.latest(tmp_path)


def test_a_run_without_checkpoints(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        checkpoints.latest(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        checkpoints.load(tmp_path / "checkpoints" / "update_000001")


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    keep(tmp_path, 20)

    def fail(folder: Path) -> None:
        (folder / "half").write_text("...")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        checkpoints.save(tmp_path, 40, {"main": fail}, {}, keep=9)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["update_000020"]


def test_what_a_killed_run_left_is_neither_seen_nor_in_the_way(tmp_path):
    left = tmp_path / "checkpoints" / ".update_000040.half"
    left.mkdir(parents=True)
    (left / "junk").write_text("...")
    assert names(tmp_path) == []
    kept = keep(tmp_path, 40)
    assert names(tmp_path) == ["update_000040"]
    assert not (kept.path / "junk").exists()


def test_the_same_update_again_replaces_it(tmp_path):
    keep(tmp_path, 20, "old")
    keep(tmp_path, 20, "new")
    assert (
        checkpoints.latest(tmp_path).folder("main") / "weights.safetensors"
    ).read_text() == "new"


def test_the_newest_and_the_best_stay(tmp_path):
    for update, score in ((10, -0.5), (20, -0.1), (30, None), (40, -0.3), (50, -0.4)):
        keep(tmp_path, update, count=2, score=score)
    assert names(tmp_path) == ["update_000020", "update_000040", "update_000050"]


def test_without_scores_only_the_newest_stay(tmp_path):
    for update in (10, 20, 30):
        keep(tmp_path, update, count=1)
    assert names(tmp_path) == ["update_000030"]
    with pytest.raises(CheckpointError, match="keep must be at least 1"):
        keep(tmp_path, 40, count=0)


def test_a_million_updates_stay_in_order(tmp_path):
    for update in (999_999, 1_000_000):
        keep(tmp_path, update)
    assert checkpoints.latest(tmp_path).update == 1_000_000


def test_scalars_must_be_finite_json(tmp_path):
    for bad in (float("nan"), {1, 2}):
        with pytest.raises(CheckpointError, match=r"state\.json of a checkpoint cannot be written"):
            checkpoints.save(tmp_path, 1, {}, {"x": bad}, keep=1)
    assert names(tmp_path) == []


def test_the_manifest_lists_every_file(tmp_path):
    kept = keep(tmp_path, 20)
    listed = json.loads((kept.path / "manifest.json").read_text())["files"]
    there = {p.relative_to(kept.path).as_posix() for p in kept.path.rglob("*") if p.is_file()}
    assert set(listed) | {"manifest.json"} == there
