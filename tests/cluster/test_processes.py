"""Who is what in a run folder, and whether it still lives: without Ray, by processes of our own."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from marl_llm.bench import kills
from marl_llm.cluster import incidents, processes
from marl_llm.cluster.incidents import ToolWatch
from marl_llm.errors import DeadlineError
from marl_llm.games.tools import process, sql
from marl_llm.games.tools.process import Tool

HOLD = (
    "import sys, time; from pathlib import Path; from marl_llm.cluster.processes import here; "
    "here(Path(sys.argv[1]), sys.argv[2]); print('here', flush=True); time.sleep(600)"
)


@contextmanager
def holding(run_dir, what):
    """A process that is `what` in this run."""
    command = [sys.executable, "-c", HOLD, str(run_dir), what]
    held = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert held.stdout.readline() == b"here\n"
        yield held
    finally:
        held.kill()
        held.wait()
        held.stdout.close()


def test_a_process_is_listed_and_one_that_takes_its_place_is_noted(tmp_path):
    with holding(tmp_path, "the store") as first:
        assert processes.listed(tmp_path) == {"the store": first.pid}
        assert incidents.noted(tmp_path) == []
    with holding(tmp_path, "the store") as second:
        assert processes.listed(tmp_path) == {"the store": second.pid}
    (line,) = incidents.noted(tmp_path)
    assert line.endswith("the store had ended and was started anew")


def test_a_run_waits_for_what_was_killed_and_forgets_it(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "END_SECONDS", 0.3)
    processes.clear(tmp_path)  # a new run
    assert incidents.noted(tmp_path) == []
    with holding(tmp_path, "the engine of main") as held:
        with pytest.raises(DeadlineError, match=rf"the engine of main \(process {held.pid}\)"):
            processes.clear(tmp_path)
        monkeypatch.setattr(processes, "END_SECONDS", 60.0)
        held.send_signal(signal.SIGKILL)
        processes.clear(tmp_path)
    assert processes.listed(tmp_path) == {}
    assert all("the run itself had ended" in line for line in incidents.noted(tmp_path))


def test_a_run_that_was_closed_leaves_nothing_unless_something_lingers(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "CLOSE_SECONDS", 0.1)
    with holding(tmp_path, "rollout worker 0") as held:
        processes.close(tmp_path)
        assert processes.listed(tmp_path) == {"rollout worker 0": held.pid}
    processes.close(tmp_path)
    assert not (tmp_path / processes.FOLDER).exists()


def test_tool_processes_that_end_are_noted_once_each(tmp_path):
    tool = process.shared(Tool(sql.__file__))
    call = {"tables": [], "query": "SELECT 1", "rows": 1, "steps": 1000}
    watch = ToolWatch(tmp_path, "rollout worker 0")
    for _ in range(2):
        assert tool.call(call).text == "1"
        watch.look()
        assert incidents.noted(tmp_path) == []
    os.kill(tool.pid, signal.SIGKILL)
    while tool.pid is not None:
        time.sleep(0.01)
    assert tool.call(call).text == "1"
    for _ in range(2):
        watch.look()
        (line,) = incidents.noted(tmp_path)
        assert line.endswith("a tool process of rollout worker 0 had ended and was started anew")


@contextmanager
def named(name):
    """A process by this name."""
    made = subprocess.Popen([name, "600"], executable="/bin/sleep")
    while not Path(f"/proc/{made.pid}/cmdline").read_bytes():  # it has not quite begun
        time.sleep(0.01)
    try:
        yield made.pid
    finally:
        made.kill()
        made.wait()


def test_victims_are_the_processes_of_the_run_by_kind(tmp_path):
    folder = tmp_path / processes.FOLDER
    folder.mkdir()
    tool = process.shared(Tool(sql.__file__))
    tool.call({"tables": [], "query": "SELECT 1", "rows": 1, "steps": 1000})
    with named("ray::StoreHost") as store, named("other") as other, named("ray::Engine") as engine:
        (folder / "the store").write_text(str(store))
        (folder / "the engine of main").write_text(str(engine))
        (folder / "the trainer of main").write_text(str(other))  # its id has gone to another
        (folder / "rollout worker 0").write_text("")  # it is just beginning
        driver = os.getpid()
        found = kills.victims(tmp_path, driver)
        assert found == {
            "store": {"the store": store},
            "engine": {"the engine of main": engine},
            "tool": {"a tool of the driver": tool.pid},
        }
        (tmp_path / "checkpoints" / "update_000001").mkdir(parents=True)
        assert kills.victims(tmp_path, driver)["driver"] == {"the driver": driver}
        assert kills.strike(store)
    assert not kills.strike(store)
