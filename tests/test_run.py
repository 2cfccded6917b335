"""Whole runs from the command line: what they leave, and that nothing can break them."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest

from marl_llm import run as runs
from marl_llm.cli import main
from marl_llm.errors import CheckpointError
from marl_llm.learn import checkpoints
from marl_llm.report.metrics import read
from marl_llm.store import FILE, Counts, SqliteStore

UPDATES = 4
SMALL = (
    "experiment=kuhn_selfplay",
    "seed=0",
    f"updates={UPDATES}",
    "rollout.episodes=16",
    "policies.main.coldstart.games=100",
    "policies.main.coldstart.fit.steps=40",
    "evaluation.every=2",
    "evaluation.thoughts=2",
    "runtime.threads=1",
)
PATIENCE = 120.0  # seconds that a subprocess may take to get somewhere


def train(*words):
    return main(["train", *words])


def spawn(*words):
    """The same in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "marl_llm.cli", "train", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_until(process, condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "the run got nowhere"
        time.sleep(0.01)


def updates_of(run_dir):
    """The update of each whole line of the metrics so far."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line)["update"] for line in lines if line.endswith("\n")]


def weights(run_dir, update=UPDATES):
    folder = run_dir / "checkpoints" / f"update_{update:06d}" / "policies" / "main"
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def losses(run_dir):
    """All that hangs on what was sampled and learned, by update; not what the clock says."""
    clock = ("seconds", "tokens_per_second", "busy_share")
    return [
        {key: value for key, value in row.items() if not key.endswith(clock)}
        for row in read(run_dir)
    ]


def summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def accounts(run_dir, policy="main"):
    """What became of all that was put for a policy, as the newest checkpoint has it."""
    with closing(SqliteStore(":memory:", time.time)) as store:
        store.restore(checkpoints.all_of(run_dir)[-1] / FILE)
        return store.counts(policy)


def same(run_dir, whole):
    assert accounts(run_dir) == accounts(whole), "nothing is put twice"
    assert losses(run_dir) == losses(whole)
    assert weights(run_dir) == weights(whole)
    assert updates_of(run_dir) == updates_of(whole), "no line is doubled or lost"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed, with a checkpoint after every update."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    assert train(*SMALL, f"run.dir={run_dir}", "run.checkpoint_every=1", "run.keep=9") == 0
    return run_dir


@pytest.fixture
def copy(whole, tmp_path):
    """The same run in another place: a run folder may be moved."""
    return Path(shutil.copytree(whole, tmp_path / "moved run"))


@pytest.fixture
def prepared(whole, tmp_path):
    """An empty folder but for the models, so that a new run need not make them."""
    shutil.copytree(whole / "models", tmp_path / "run" / "models")
    return tmp_path / "run"


def cut(run_dir, update):
    """Leave what a run that was killed just before its next checkpoint would have left."""
    for path in checkpoints.all_of(run_dir):
        if int(path.name.split("_")[1]) > update:
            shutil.rmtree(path)
    for name in ("report.html", "curve.png", "summary.json"):
        (run_dir / name).unlink()
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"update": 4, "learn/main/lo')  # half a line


@pytest.mark.slow
def test_a_run_leaves_a_whole_folder(whole):
    for name in ("config.yaml", "metrics.jsonl", "summary.json", "report.html", "curve.png"):
        assert (whole / name).stat().st_size > 0, name
    assert list((whole / "tensorboard").iterdir())
    names = [f"update_{update:06d}" for update in (0, 2, 4)]
    assert sorted(path.stem for path in (whole / "policies").iterdir()) == names
    assert sorted(path.stem for path in (whole / "episodes").iterdir()) == names[1:]
    tables = [json.loads(path.read_text()) for path in (whole / "policies").iterdir()]
    assert [list(table) for table in tables] == [["kuhn"]] * 3
    assert len(checkpoints.all_of(whole)) == UPDATES
    played = 16 * UPDATES
    assert accounts(whole) == Counts(put=played, acknowledged=played)
    measured = {row["update"]: row.get("evaluate/self/nash_conv") for row in read(whole)}
    scores = [checkpoints.load(path).score for path in checkpoints.all_of(whole)]
    assert scores == [None, -measured[2], None, -measured[4]], "so that the best one is kept"
    assert not list(whole.glob(".*")), "nothing half-made is left"

    lines = updates_of(whole)
    assert lines == [0, 1, 2, 2, 3, 4, 4]
    learned = Counter(
        row["update"] for row in read(whole) if row.get("run/all/update_seconds") is not None
    )
    assert learned == dict.fromkeys(range(1, UPDATES + 1), 1)

    found = summary(whole)
    assert (found["status"], found["updates"], found["seed"]) == ("finished", UPDATES, 0)
    assert set(found["nash_conv"]) == {"first", "last", "best", "best_update"}
    assert 0 < found["tokens_per_second"] < 1e6
    shares = [row["serve/main/busy_share"] for row in read(whole) if "learn/main/loss" in row]
    assert len(shares) == UPDATES and all(0 < share < 1 for share in shares)
    assert len({json.dumps(row) for row in losses(whole)[1:]}) == UPDATES, "the policy moves"


@pytest.mark.slow
@pytest.mark.parametrize("update", [0, 1, 3])
def test_a_run_killed_after_any_update_ends_the_same(whole, copy, update):
    cut(copy, update)
    assert train(f"resume={copy}") == 0
    same(copy, whole)
    assert summary(copy)["status"] == "finished"
    took = [json.loads((path / "state.json").read_text()) for path in checkpoints.all_of(copy)]
    assert [t["seconds"] for t in took] == sorted(t["seconds"] for t in took), "time goes on"
    assert [t["tokens"] for t in took] == sorted(t["tokens"] for t in took)
    original = json.loads((checkpoints.all_of(whole)[-1] / "state.json").read_text())
    assert took[-1]["tokens"] == original["tokens"], "tokens of before the kill count once"


@pytest.mark.slow
def test_a_finished_run_goes_on_with_more_updates(copy, capsys):
    assert train(f"resume={copy}", "updates=5") == 0
    assert updates_of(copy) == [0, 1, 2, 2, 3, 4, 4, 5, 5]
    assert summary(copy)["updates"] == 5
    capsys.readouterr()
    assert train(f"resume={copy}", "updates=3") == 2
    assert "has 5 updates behind it; updates=3 would go back" in capsys.readouterr().err
    assert train(f"resume={copy}") == 0, "the refusal has changed nothing"
    assert summary(copy)["updates"] == 5


@pytest.mark.slow
def test_an_altered_checkpoint_is_refused_by_name_and_the_way_out_works(whole, copy, capsys):
    files = [
        path / "policies" / "main" / "weights.safetensors" for path in checkpoints.all_of(copy)[2:]
    ]
    for file in files:  # the two newest
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    assert train(f"resume={copy}") == 2
    message = capsys.readouterr().err
    assert f"{files[-1]} was altered" in message
    assert "update_000002, which is intact" in message
    remove, go_on = re.search(r"intact: (.*) && marl-llm train (.*)$", message.strip()).groups()
    subprocess.run(remove, shell=True, check=True)
    assert [path.name[-1] for path in checkpoints.all_of(copy)] == ["1", "2"]
    assert (
        train(*subprocess.check_output(f"printf %s {go_on}", shell=True, text=True).split("\0"))
        == 0
    )
    same(copy, whole)


@pytest.mark.slow
def test_a_run_without_any_intact_checkpoint_can_start_again(whole, copy, capsys):
    for path in checkpoints.all_of(copy):
        (path / "manifest.json").unlink()
    assert train(f"resume={copy}") == 2
    message = capsys.readouterr().err
    assert "the start, as none is intact" in message
    remove = re.search(r"intact: (.*) && marl-llm", message)[1]
    subprocess.run(remove, shell=True, check=True)
    assert train(f"resume={copy}") == 0
    same(copy, whole)


@pytest.mark.slow
def test_an_error_in_the_loop_leaves_a_valid_folder_and_lets_it_go(prepared, capsys):
    # No two programs agree to so many digits, so the check of the first update fails.
    assert train(*SMALL, f"run.dir={prepared}", "learner.ratio_tolerance=1e-15") == 2
    message = capsys.readouterr().err
    assert re.search(r"marl-llm: turn \d of episode \d+ \(player_\d\)", message), message
    found = summary(prepared)
    assert found["status"] == "failed"
    assert found["error"] in message
    assert found["updates"] == updates_of(prepared)[-1]
    with runs.locked(prepared):
        pass


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_learned_and_says_how_to_go_on(prepared, capsys):
    process = spawn(*SMALL, f"run.dir={prepared}", "updates=100000", "run.checkpoint_every=1000")
    wait_until(process, lambda: 1 in updates_of(prepared))
    # In use, as long as it runs.
    assert train(f"resume={prepared}") == 2
    assert f"in use by process {process.pid}" in capsys.readouterr().err
    assert train(*SMALL, f"run.dir={prepared}") == 2
    assert f"in use by process {process.pid}" in capsys.readouterr().err
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, output
    (kept,) = checkpoints.all_of(prepared)
    done = updates_of(prepared)[-1]
    assert kept.name == f"update_{done:06d}"
    assert summary(prepared)["status"] == "stopped"
    assert f"stopped after update {done}; go on with: marl-llm train resume={prepared}" in output
    assert (prepared / "report.html").exists()
    assert train(f"resume={prepared}", f"updates={done + 1}") == 0
    assert train(*SMALL, f"run.dir={prepared}") == 2
    assert "holds a run already" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_at_its_start_and_at_a_random_moment_it_ends_with_the_same_weights(whole, tmp_path):
    run_dir = tmp_path / "run"
    words = (*SMALL, f"run.dir={run_dir}", "run.checkpoint_every=2")
    process = spawn(*words)
    wait_until(process, (run_dir / ".models.half").exists)
    process.kill()
    process.communicate()
    assert not (run_dir / "models").exists()

    moment = random.SystemRandom()
    update, delay = moment.randrange(UPDATES), moment.uniform(0, 0.5)
    print(f"killed {delay:.3f} s after update {update}")  # shown when the test fails
    process = spawn(f"resume={run_dir}")
    with suppress(AssertionError):  # it may be done before the moment comes
        wait_until(process, lambda: update in updates_of(run_dir))
    time.sleep(delay)
    process.kill()
    process.communicate()

    assert train(f"resume={run_dir}") == 0
    same(run_dir, whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("credit=gae", "+annotator@policies.main.annotators.state_values=state_values"),
        ("credit=vine_ppo", "credit.count=2"),
    ],
    ids=["annotator", "replays"],
)
def test_a_run_with_signals_or_replays_goes_on_as_if_never_stopped(prepared, tmp_path, words):
    words = (*SMALL, *words, "updates=2", "run.checkpoint_every=1")
    assert train(*words, f"run.dir={prepared}") == 0
    copy = Path(shutil.copytree(prepared, tmp_path / "copy"))
    cut(copy, 1)
    assert train(f"resume={copy}") == 0
    assert losses(copy) == losses(prepared)
    assert weights(copy, 2) == weights(prepared, 2) != weights(prepared, 1)


# Without a run.


@pytest.mark.parametrize(
    "credit, way",
    [
        ("gae", "add +annotator@policies.main.annotators.state_values=state_values"),
        ("capo", "and comes from a judge; no annotator here attaches it"),
    ],
)
def test_a_signal_that_nobody_attaches_is_named_before_anything_is_made(
    tmp_path, capsys, credit, way
):
    assert train(*SMALL, f"credit={credit}", f"run.dir={tmp_path / 'run'}") == 2
    assert way in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_no_run_folder_no_resume(tmp_path, capsys):
    assert train(f"resume={tmp_path}") == 2
    assert "is no run folder" in capsys.readouterr().err


def test_a_run_dir_that_cannot_be_made_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert train(*SMALL, f"run.dir={tmp_path / 'file' / 'run'}") == 2
    message = capsys.readouterr().err
    assert "cannot be made" in message
    assert message.count("\n") == 1


def test_a_folder_is_held_once_and_let_go_with_its_process(tmp_path):
    with (
        runs.locked(tmp_path),
        pytest.raises(CheckpointError, match=f"in use by process {os.getpid()}"),
        runs.locked(tmp_path),
    ):
        pass
    with runs.locked(tmp_path):
        pass
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys, time; file = open(sys.argv[1], 'a'); "
            "fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)",
            str(tmp_path / runs.LOCK),
        ],
        stdout=subprocess.PIPE,
    )
    holder.stdout.readline()
    with pytest.raises(CheckpointError, match="in use"), runs.locked(tmp_path):
        pass
    holder.kill()
    holder.wait()
    with runs.locked(tmp_path):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_insists(number, capsys):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), runs.patient() as stopped:
        assert not stopped()
        os.kill(os.getpid(), number)
        assert stopped()
        assert "stopping after this update" in capsys.readouterr().err
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


def test_outside_of_updates_a_termination_stops_at_once():
    with pytest.raises(KeyboardInterrupt), runs.terminable():
        os.kill(os.getpid(), signal.SIGTERM)


def test_paths_with_spaces_are_quoted_in_commands():
    assert runs.resume_command(Path("my run")) == "marl-llm train resume='my run'"
