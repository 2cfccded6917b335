"""The same run in one process and over Ray: the same numbers, and no process that stays."""

import contextlib
import json
import os
import shutil
import signal
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import ray

from marl_llm import config
from marl_llm.cli import main
from marl_llm.cluster.clients import RemoteEngine, answer
from marl_llm.cluster.runtime import RayRuntime, gpu_share, on_visible_gpu
from marl_llm.errors import ConfigError, DeadlineError, EpisodeError, ModelError
from marl_llm.local import LocalRuntime
from marl_llm.report.metrics import read
from marl_llm.rollout.plans import balanced
from marl_llm.settings import RunSettings
from marl_llm.store import FILE, Counts, Key, Record, SqliteStore
from marl_llm.types import Request, Sampling

UPDATES = 2
SMALL = (
    "experiment=kuhn_selfplay",
    "seed=0",
    f"updates={UPDATES}",
    "rollout.episodes=16",
    "policies.main.coldstart.games=100",
    "policies.main.coldstart.fit.steps=40",
    "evaluation.every=1",
    "evaluation.thoughts=2",
    "run.checkpoint_every=1",
    "runtime.threads=1",
)
CLOCK = ("seconds", "tokens_per_second")


def settings(*words):
    return RunSettings.of(config.compose([*SMALL, *words]))


def children():
    """Processes below this one, by id, with their command lines; zombies are none."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has ended meanwhile
            continue
        if state != "Z":
            parents[int(folder.name)], commands[int(folder.name)] = int(parent), command
    found, new = {}, {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new}
        found |= {pid: commands[pid] for pid in new}
    return found


def gone(pids, seconds=20.0):
    """Whether all of these processes end in time."""
    end = time.monotonic() + seconds
    while alive := [pid for pid in pids if pid in children()]:
        if time.monotonic() > end:
            return not alive
        time.sleep(0.1)
    return True


def files(run_dir, update=UPDATES, policy="main"):
    folder = run_dir / "checkpoints" / f"update_{update:06d}" / "policies" / policy
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def losses(run_dir):
    return [{k: v for k, v in row.items() if not k.endswith(CLOCK)} for row in read(run_dir)]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("local") / "run"
    assert main(["train", *SMALL, f"run.dir={run_dir}"]) == 0
    return run_dir


def with_models(local, tmp_path):
    shutil.copytree(local / "models", tmp_path / "run" / "models")
    return tmp_path / "run"


@pytest.mark.ray
def test_ray_gives_the_numbers_of_one_process_and_leaves_none(local, tmp_path, capfd):
    run_dir = with_models(local, tmp_path)
    before = set(children())
    capfd.readouterr()
    assert main(["train", *SMALL, f"run.dir={run_dir}", "runtime=ray"]) == 0
    shown = capfd.readouterr()
    assert losses(run_dir) == losses(local)
    assert files(run_dir) == files(local)
    assert (run_dir / "report.html").exists()
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "finished"
    assert not ray.is_initialized()
    assert gone(set(children()) - before)
    assert shown.err == "", "Ray keeps quiet"
    assert "ray" not in shown.out.replace(str(run_dir), "").lower()


@pytest.mark.ray
def test_a_killed_run_goes_on_with_the_store_of_its_checkpoint(local, tmp_path):
    run_dir = Path(shutil.copytree(local, tmp_path / "run"))
    shutil.rmtree(run_dir / "checkpoints" / f"update_{UPDATES:06d}")
    config = (run_dir / "config.yaml").read_text()
    assert "name: local" in config
    (run_dir / "config.yaml").write_text(config.replace("name: local", "name: ray"))
    lost = [Record(Key(16 + n), 16 + n, 1, 1, b"play") for n in range(16)]  # of the last update
    with closing(SqliteStore(run_dir / FILE, time.time)) as store:
        store.put("main", lost)
        store.acknowledge("main", store.claim("main", 8, 1, 60).id)
    assert main(["train", f"resume={run_dir}"]) == 0
    assert files(run_dir) == files(local)
    with closing(SqliteStore(run_dir / FILE, time.time)) as store:
        played = 16 * UPDATES
        assert store.counts("main") == Counts(put=played, acknowledged=played)
        (engine,) = store.consumers()
        assert (engine.name, engine.version, engine.staleness) == ("the engine of main", 2, 0)


PLACE = "+annotator@policies.main.annotators"
SIGNALS = tuple(
    f"{PLACE}.{name}={name}"
    for name in ("state_values", "hindsight", "greedy_return", "judge_score")
)


@pytest.mark.ray
@pytest.mark.parametrize("credit", ["vine_ppo", "hcapo"])
def test_replays_and_signals_are_those_of_one_process(local, tmp_path, credit):
    words = (*SMALL, "rollout.group_size=2", "updates=1", f"credit={credit}", *SIGNALS)
    folders = []
    for runtime in ("local", "ray"):
        run_dir = with_models(local, tmp_path / runtime)
        assert main(["train", *words, f"run.dir={run_dir}", f"runtime={runtime}"]) == 0
        folders.append(run_dir)
    alone, over_ray = folders
    assert losses(over_ray) == losses(alone)
    assert files(over_ray, 1) == files(alone, 1)


TEAM = (
    "experiment=planner_executor",
    "credit=hae_split",
    "updates=2",
    "rollout.episodes=16",
    "evaluation.success=8",
    "evaluation.every=2",
    "run.checkpoint_every=2",
    "model.layers=1",
    "model.width=32",
    *(
        f"{place}policies.{policy}.{word}"
        for policy in ("planner", "executor")
        for place, word in (
            ("", "coldstart.games=200"),
            ("", "coldstart.fit.steps=150"),
            ("+annotator@", "annotators.delegation_values=delegation_values"),
        )
    ),
)


# Policies learn side by side over Ray, and the clock says whether a partner has been served anew.
BESIDE = {"store/planner/staleness_of_executor", "store/executor/staleness_of_planner"}


@pytest.mark.ray
def test_a_planner_and_its_executors_share_nothing_but_statistics_as_in_one_process(tmp_path):
    alone, over_ray = tmp_path / "local", tmp_path / "ray" / "run"
    assert main(["train", *TEAM, f"run.dir={alone}"]) == 0
    shutil.copytree(alone / "models", over_ray / "models")
    assert main(["train", *TEAM, f"run.dir={over_ray}", "runtime=ray"]) == 0
    first, second = (
        [{k: v for k, v in row.items() if k not in BESIDE} for row in losses(run)]
        for run in (over_ray, alone)
    )
    assert first == second
    for policy in ("planner", "executor"):
        assert files(over_ray, policy=policy) == files(alone, policy=policy)
    rows = losses(alone)
    for policy in ("planner", "executor"):  # somebody was called, and learned from it
        assert any(row.get(f"credit/{policy}/adv_abs_mean/{policy}", 0.0) > 0 for row in rows)


@pytest.fixture(scope="module")
def two_workers(local, tmp_path_factory):
    """A cluster with two workers, and what was there before it."""
    run_dir = with_models(local, tmp_path_factory.mktemp("two"))
    before = set(children())
    began = time.monotonic()
    runtime = RayRuntime(settings("runtime=ray", "runtime.workers=2"), run_dir)
    print(f"started in {time.monotonic() - began:.1f} s")
    yield runtime, run_dir
    runtime.close()
    assert gone(set(children()) - before)


def plans(update=0, episodes=16):
    roles = {"player_0": "player", "player_1": "player"}
    return balanced(0, update, episodes, 1, {"kuhn": roles}, [("self",)])


def collect(runtime, update=0):
    runtime.collect(update, plans(update))
    return runtime.wait().episodes


def learn(runtime, update):
    runtime.learn("main", update)
    return runtime.wait().lesson


@pytest.mark.ray
def test_two_workers_play_the_same_games_up_to_rounding(two_workers, local):
    runtime, _ = two_workers
    alone = LocalRuntime(settings(), local)
    for update in range(2):
        ours, theirs = collect(runtime, update), collect(alone, update)
        assert [episode.id for episode in ours] == [episode.id for episode in theirs]
        for mine, other in zip(ours, theirs, strict=True):
            assert [turn.ids for turn in mine.turns] == [turn.ids for turn in other.turns]
            assert mine.returns == other.returns
            for turn, same in zip(mine.turns, other.turns, strict=True):
                assert turn.versions == same.versions
                assert turn.logprobs == pytest.approx(same.logprobs, abs=1e-5)
        first, second = learn(runtime, update).stats, learn(alone, update).stats
        for key in ("learn/loss", "learn/grad_norm", "learn/entropy"):
            assert first[key] == pytest.approx(second[key], abs=1e-4)


@pytest.mark.ray
def test_every_process_computes_with_the_threads_of_the_run(two_workers):
    runtime, _ = two_workers

    def threads(host):
        import torch

        return torch.get_num_threads()

    actors = [*runtime._trainers.values(), *runtime._workers]
    counts = [ray.get(actor.__ray_call__.remote(threads)) for actor in actors]
    assert counts == [1, 1, 1]


@pytest.mark.ray
def test_errors_of_an_actor_arrive_as_they_were_raised(two_workers):
    runtime, _ = two_workers
    engine = runtime.serving()["main"]
    with pytest.raises(EpisodeError, match="empty prompt"):
        engine.score([((), (1,))])
    with pytest.raises(ConfigError, match="unknown game 'kuhm'"):
        runtime.collect(9, balanced(0, 9, 2, 1, {"kuhm": {"player_0": "player"}}, [("self",)]))
        runtime.wait()
    with pytest.raises(ConfigError):  # the other worker's share
        runtime.wait()
    with pytest.raises(DeadlineError, match="no answer from a slow one within 0 s"):
        answer(runtime._workers[0].__ray_call__.remote(lambda host: time.sleep(2)), "a slow one", 0)


@pytest.mark.ray
def test_clients_of_one_engine_get_their_own_replies(two_workers):
    runtime, _ = two_workers
    first = runtime.serving()["main"]
    second = RemoteEngine("main")
    for number, engine in enumerate((first, second)):
        sampling = Sampling(max_tokens=3 + number, temperature=0)
        engine.submit([Request(7, (1, 2, 3), sampling, 0)])
    (one,), (two,) = first.poll(60), second.poll(60)
    assert (one.id, two.id) == (7, 7)
    assert (len(one.ids), len(two.ids)) == (3, 4)
    assert two.ids[:3] == one.ids
    late = Request(8, (1, 2, 3), Sampling(), 0, deadline=time.monotonic() - 1)
    first.submit([late])
    assert first.poll(60)[0].finish == "time"
    assert first.poll(0.01) == []


def kill(run_dir, who):
    """kill -9 one of a run's processes, once it is there."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(int((run_dir / "processes" / who).read_text()), signal.SIGKILL)
            return
        time.sleep(0.1)
    raise AssertionError(f"{who} did not come back")


@pytest.mark.ray
@pytest.mark.parametrize(
    "who", ["the engine of main", "rollout worker 0", "the store", "the trainer of main"]
)
def test_a_process_that_is_killed_is_started_anew_and_nothing_is_lost_or_doubled(two_workers, who):
    runtime, run_dir = two_workers
    before, number = runtime.counts("main"), ray.get(runtime._trainers["main"].lessons.remote())
    runtime.collect(100 + number, plans(100 + number))
    kill(run_dir, who)
    episodes = runtime.wait().episodes
    assert [episode.id for episode in episodes] == [plan.id for plan in plans(100 + number)]
    runtime.learn("main", 100 + number)
    kill(run_dir, who)
    lesson = runtime.wait().lesson
    assert np.isfinite(lesson.stats["learn/loss"])
    assert ray.get(runtime._trainers["main"].lessons.remote()) == number + 1
    assert runtime.serving()["main"].version == number + 1
    after = runtime.counts("main")
    assert after.acknowledged == before.acknowledged + 16
    assert (after.waiting, after.leased, after.dropped) == (0, 0, 0)


# Placement, without a cluster.


def test_without_gpus_nobody_gets_one():
    assert gpu_share(settings(), 8) == {"main": 0.0}


@pytest.mark.parametrize("gpus, share", [(1, 1 / 2), (2, 1.0), (3, 1.0), (8, 1.0)])
def test_engine_and_trainer_share_the_gpus(gpus, share):
    assert gpu_share(settings("engine.device=cuda"), gpus) == {"main": share}


def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(ModelError, match="'main' wants device 'cuda:1', but Ray sees no GPU"):
        gpu_share(settings("engine.device=cuda:1"), 0)


def test_an_actor_sees_one_gpu():
    placed = on_visible_gpu(settings("engine.device=cuda:1"))
    assert placed.policies["main"].engine.device == "cuda"
