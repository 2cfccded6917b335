"""The benchmarks run at tiny sizes and their figures are what their names say."""

import json
import math

import numpy as np
import pytest

from marl_llm import bench, config
from marl_llm.bench import calls, chaos, crediting, loops, rollout, serving, storing
from marl_llm.bench.episodes import drawn, made_up
from marl_llm.bench.timing import Stopwatch, interleaved, spread, took
from marl_llm.credit.drawn import LEFT_OUT
from marl_llm.credit.grpo import GRPO
from marl_llm.credit.hcapo import HindsightRatio
from marl_llm.credit.signals import KNOWN
from marl_llm.errors import ConfigError
from marl_llm.runtime import Collected
from marl_llm.settings import RunSettings
from marl_llm.store import Counts, SqliteStore

TINY = (
    "rollout.episodes=8",
    "policies.main.coldstart.games=16",
    "policies.main.coldstart.fit.steps=2",
    "policies.main.model.layers=1",
    "policies.main.model.width=16",
)
FIGURES = (
    "rollout_over_engine",
    "engine_over_generate",
    "learner_over_bare",
    "learner_with_kl_over_bare",
    "overhead_share",
)


def test_bench_rollout_writes_every_figure(tmp_path, capsys):
    file = tmp_path / "bench.json"
    assert bench.main(["rollout", "--json", str(file), "--rounds=1", *TINY]) == 0
    result = json.loads(file.read_text())
    for name in FIGURES:
        assert math.isfinite(result[name]) and result[name] > 0, name
    assert result["overhead_share"] < 1
    printed = capsys.readouterr().out
    assert all(name in printed for name in FIGURES)


def test_ratio_and_share_are_of_what_was_timed(tmp_path):
    options = rollout.Options(None, 3, TINY)
    result = rollout.measure(options, tmp_path, lambda stage: None)
    rounds, seconds = result["rounds"], result["seconds"]
    assert all(len(rates) == 3 for rates in rounds.values())
    # The middle one of three rounds' ratios.
    each = sorted(a / b for a, b in zip(rounds["rollout"], rounds["engine"], strict=True))
    assert result["rollout_over_engine"] == pytest.approx(each[1])
    parts = seconds["credit"] + seconds["batching"] + seconds["store"]
    assert result["overhead_share"] == pytest.approx(parts / seconds["update"])
    # Requests on record are those of the eight games: each has at least two decisions.
    assert result["workload"]["episodes"] == 8
    assert result["workload"]["requests"] >= 8
    assert result["workload"]["sampled_tokens"] >= result["workload"]["requests"]


@pytest.mark.ray
def test_bench_rollout_of_two_policies_says_how_busy_their_servers_are(tmp_path, capsys):
    small = ("coldstart.games=200", "coldstart.fit.steps=60", "model.layers=1")  # it learns to call
    words = [f"policies.{name}.{word}" for name in ("planner", "executor") for word in small]
    file = tmp_path / "bench.json"
    words = ["experiment=planner_executor", "rollout.episodes=16", *words]
    assert bench.main(["rollout", "--json", str(file), "--rounds=2", *words]) == 0
    result = json.loads(file.read_text())
    for way, figure in (("interleaved", "busy"), ("lock_step", "busy_lock_step")):
        rounds = result["rounds"][way]["busy"]
        assert len(rounds) == 2
        assert result[figure].keys() == {"planner", "executor"}
        assert all(0 < share < 1 for each in rounds for share in each.values())
    # One at a time, and nobody decodes while moves are carried out.
    assert all(sum(each.values()) < 1 for each in result["rounds"]["lock_step"]["busy"])
    assert result["lock_step_over_interleaved"] > 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("planner", "executor", "lock step"))


def test_busy_figures_are_medians_over_the_rounds():
    def played(seconds, a, b):
        return Collected(0, [], seconds, {"a": a, "b": b})

    found = {
        "interleaved": [played(2.0, 0.9, 0.6), played(4.0, 0.8, 0.7), played(1.0, 0.7, 0.5)],
        "lock_step": [played(6.0, 0.3, 0.2), played(4.0, 0.2, 0.4), played(2.0, 0.1, 0.3)],
    }
    assert serving.figures(found) == {
        "busy": {"a": 0.8, "b": 0.6},
        "busy_lock_step": {"a": 0.2, "b": 0.3},
        "lock_step_over_interleaved": 2.0,  # of 3, 1 and 2
    }


def test_rounds_are_timed_in_turn_and_the_first_does_not_count():
    calls = []

    def work(name, tokens):
        def once(watch: Stopwatch) -> int:
            calls.append(name)
            watch.seconds = 2.0
            return tokens

        return once

    rates = interleaved({"a": work("a", 10), "b": work("b", 4)}, 2)
    assert calls == ["b", "a", "a", "b", "b", "a"]
    assert rates == {"a": [5.0, 5.0], "b": [2.0, 2.0]}
    assert spread(rates, "a", "b").median == 2.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a word is missing; known: calls, chaos, credit, rollout"),
        (["rolout"], "unknown word 'rolout'; did you mean 'rollout'"),
        (["rollout", "--jsn", "x"], "did you mean .--json"),
        (["rollout", "--json"], "--json needs a value"),
        (["rollout", "--rounds", "0"], "from 1 on, got '0'"),
        (["rollout", "--rounds=²"], "from 1 on, got '²'"),
        (["rollout", "experiment=kun"], "kuhn_selfplay"),
        (["credit", "--jsn", "x"], "did you mean .--json"),
        (["credit", "--rounds=²"], "whole number of at least 1, got '²'"),
        (["credit", "episodes=12"], "groups of 8, got episodes=12"),
        (["credit", "estimators=grpoo"], "did you mean 'grpo'"),
    ],
)
def test_a_wrong_word_is_named(words, said):
    with pytest.raises(ConfigError, match=said):
        bench.main(words)


def test_bench_credit_writes_every_figure(tmp_path, capsys):
    file = tmp_path / "credit.json"
    words = ["estimators=grpo,gae_token", "episodes=32", "rounds=2", "--json", str(file)]
    assert bench.main(["credit", *words]) == 0
    result = json.loads(file.read_text())
    assert result["batch"] == {
        "episodes": 32,
        "group": 8,
        "turns": 256,
        "sampled_tokens": 256 * 256,
    }
    assert list(result["estimators"]) == ["grpo", "gae_token"]
    grpo, gae = result["estimators"].values()
    assert (grpo["level"], grpo["signals"], grpo["token_columns"]) == ("turn", [], 1)
    assert (gae["level"], gae["signals"]) == ("token", ["token_value", "value_next"])
    assert gae["token_columns"] == 2, "token_value and the advantage"
    for each in (grpo, gae):
        assert len(each["cpu_ms_rounds"]) == 2
        assert each["times_over_loop"] == each["loop_cpu_ms"] / each["cpu_ms"]
        assert each["loop_episodes"] in (8, 16, 32)
        assert each["extra_columns"] > 0
    printed = capsys.readouterr().out
    assert "grpo" in printed and "gae_token" in printed


def test_made_up_episodes_are_as_large_as_they_say():
    batch = made_up(64)
    assert (len(batch), len(batch.logprobs)) == (512, 512 * 256)
    assert np.bincount(batch.group).tolist() == [64] * 8
    assert len(np.unique(batch.state_key)) < len(np.unique(batch.group)) * 16, "states repeat"
    signals = drawn(batch, [name for name in KNOWN if name != LEFT_OUT])
    batch = batch.with_signals(signals)
    for name, column in signals.items():
        assert len(column) == (len(batch.logprobs) if KNOWN[name].over == "token" else len(batch))
    # Copies of a turn say the same words, and all but one are marked.
    node, copied = signals["node"], signals["replayed"] > 0
    assert copied.sum() == len(batch) - len(np.unique(node))
    rows = np.flatnonzero(node == node[0])
    assert len(rows) == 8
    said = [signals["token_id"][batch.offsets[i] : batch.offsets[i + 1]].tolist() for i in rows]
    assert all(words == said[0] for words in said)


def test_what_an_estimator_reads_is_found_out():
    assert crediting.signals_read(GRPO()) == set()
    ratio = HindsightRatio(low=0.8, high=1.2)
    assert crediting.signals_read(ratio) == {"hindsight_logprob"}
    assert not crediting.reads_logprobs(GRPO())
    assert crediting.reads_logprobs(ratio), "the log-probs when the turn was sampled"


def test_memory_is_what_was_held_at_once():
    def work():
        for _ in range(3):
            np.ones(10**6)  # let go of before the next
        return np.ones(10**6)

    assert crediting.peak_bytes(work) == pytest.approx(8e6, rel=0.01)


def test_a_loop_that_is_not_linear_is_not_scaled_from_a_large_batch(monkeypatch):
    monkeypatch.setattr(crediting, "took", lambda work: work())
    monkeypatch.setattr(crediting, "_small", lambda episodes, signals: episodes)

    def seconds(power):
        def loop(estimator, batch):
            n = batch if isinstance(batch, int) else 64
            return type(took(int))(0.0, 1e-3 * n**power)

        return crediting.loop_seconds(loop, GRPO(), made_up(64, tokens=2))

    assert seconds(1) == (64, pytest.approx(0.064))
    # 8 ms per episode at 8 episodes, 16 at 16, and 32 at 32, which is too much.
    episodes, whole = seconds(2)
    assert episodes == 16
    assert whole == pytest.approx(0.016 * 64)


def test_goals():
    def figures(level="turn", cpu_ms=10.0, loop_cpu_ms=1000.0, extra_columns=3.0):
        return crediting.Figures(
            level=level,
            ms=cpu_ms,
            cpu_ms=cpu_ms,
            cpu_ms_rounds=[cpu_ms],
            loop_cpu_ms=loop_cpu_ms,
            loop_episodes=8,
            extra_columns=extra_columns,
            token_columns=1,
            signals=[],
        ).missed()

    assert figures() == []
    assert figures(cpu_ms=101.0, loop_cpu_ms=4000.0) == ["> 100 ms"]
    assert figures(loop_cpu_ms=299.0) == ["< 30 x"]
    assert figures(loop_cpu_ms=None) == []
    assert figures(extra_columns=6.1) == ["> 6 columns"]
    assert figures(level="token", cpu_ms=1400.0) == []
    assert figures(level="token", cpu_ms=1600.0) == ["> 1500 ms"]


def test_loops_are_found_where_there_are_any(tmp_path):
    assert loops.find(tmp_path / "nowhere") == {}
    (tmp_path / "test_one.py").write_text(
        "def plain(estimator, batch):\n    return [1.0]\n\n\nPLAIN = {'one': plain}\n"
    )
    (tmp_path / "test_two.py").write_text("raise AssertionError('not asked')\n")
    found = loops.find(tmp_path)
    assert list(found) == ["one"]
    assert found["one"](None, None) == [1.0]
    assert sorted(loops.find()) == config.choices("credit")


def test_bench_calls_writes_every_row(tmp_path, capsys):
    file = tmp_path / "calls.json"
    words = ["calls", "--json", str(file), "groups=6", "size=4", "draws=5"]
    assert bench.main(words) == 0
    result = json.loads(file.read_text())
    printed = capsys.readouterr().out
    for reward in ("sum", "product"):
        rows = result["rewards"][reward]["rows"]
        assert len(rows) == len(calls.ROWS) + 1
        assert rows["leave_one_out, counted again | team"]["left_out"]["value"] == pytest.approx(1)
        assert all(f"| {name} |" in printed for name in rows)
        assert all(abs(row["shapley"]["value"]) <= 1 + 1e-9 for row in rows.values())
    assert [row["size"] for row in result["alignment"]["rows"]] == list(calls.ALIGNED_TO)


def test_bench_calls_refuses_a_level_that_is_not_there():
    with pytest.raises(ConfigError, match="level is one of"):
        bench.main(["calls", "level=9"])


# The store.


def test_records_go_through_the_store_whole_and_once():
    load = storing.Load(records=40, batch=20, group=4, size=10)
    store = SqliteStore(":memory:", lambda: 0.0)
    assert storing.records_per_second(store, load) > 0
    assert storing.records_per_second(store, load, first=40) > 0
    assert store.counts("bench") == Counts(put=80, acknowledged=80)
    store.close()


@pytest.mark.ray
def test_bench_store_writes_a_rate_for_each_kind(tmp_path, capsys):
    file = tmp_path / "bench.json"
    words = ["--json", str(file), "records=40", "batch=20", "size=10", "rounds=2"]
    assert bench.main(["store", *words]) == 0
    result = json.loads(file.read_text())
    assert result["records_per_second"].keys() == {"memory", "file", "actor"}
    for name, rates in result["rounds"].items():
        assert len(rates) == 2
        assert result["records_per_second"][name] == pytest.approx(np.median(rates))
    shown = capsys.readouterr().out
    assert all(name in shown for name in result["rounds"])


@pytest.mark.parametrize(
    "words, message",
    [
        (["record=1"], "unknown word 'record'; did you mean 'records'"),
        (["rounds=0"], "rounds is a number from 1 on, got '0'"),
        (["--json"], "--json needs a value"),
        (["records=10", "batch=4"], "records are whole batches"),
        (["group=3"], "a batch is whole groups"),
    ],
)
def test_words_that_bench_store_does_not_know_are_named(words, message):
    with pytest.raises(ConfigError, match=message):
        storing.options(words)


# Killed processes.


DRAWS = 12  # by which the driver, the store and a tool process are the first in turn


def test_kinds_take_turns():
    rng = np.random.default_rng(0)
    orders, killed = [rng.permutation(chaos.KINDS).tolist() for _ in range(30)], []
    for _ in range(30):
        killed.append(chaos.least_hit(killed, orders)[0])
    assert {killed.count(kind) for kind in chaos.KINDS} == {30 // len(chaos.KINDS)}
    rounds = [tuple(killed[n : n + 6]) for n in range(0, 30, 6)]
    assert len(set(rounds)) > 1 and all(set(each) == set(chaos.KINDS) for each in rounds)


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_whose_processes_are_killed_loses_and_doubles_nothing(tmp_path, capsys):
    cold = [
        f"policies.{policy}.coldstart.{key}={n}"
        for policy in ("planner", "clerk")
        for key, n in (("games", 200), ("fit.steps", 40))
    ]
    file = tmp_path / "chaos.json"
    small = ["updates=16", "rollout.episodes=32", "evaluation.every=16", "evaluation.success=16"]
    chaotic = ["kills=3", f"draws={DRAWS}", "run.checkpoint_every=2"]
    words = ["--json", str(file), f"folder={tmp_path}", *chaotic, *cold, *small]
    assert bench.main(["chaos", "experiment=departments", *words]) == 0
    result = json.loads(file.read_text())
    assert result["updates"] == 16
    assert (result["lost"], result["doubled"], result["staleness_exceeded"]) == (0, 0, 0)
    killed = result["killed"]  # a tool process is there for as long as a game needs it
    assert killed in ({"driver": 1, "store": 1, "tool": 1}, {"driver": 1, "store": 1, "worker": 1})
    for policy in ("planner", "clerk"):
        assert result["store"][policy]["acknowledged"] == 16 * 32
    assert "staleness exceeded" in capsys.readouterr().out


def test_chaos_in_one_process_is_refused():
    with pytest.raises(ConfigError, match="over Ray"):
        bench.main(["chaos", "runtime=local"])


def test_chaos_counts_what_is_missing_too_much_or_too_old():
    run = RunSettings.of(config.compose([*chaos.SHORT, "rollout.episodes=128", "updates=2"]))

    def accounts(planner, behind=(1, 1), updates=(1, 2), acknowledged=256):
        """With these episodes learned from by the planner; the executor's are as they should be."""
        rows = [{"update": 0, "evaluate/planner/success": 0.5}]
        for update, episodes, staleness in zip(updates, planner, behind, strict=True):
            mine = {"episodes": float(episodes), "staleness_of_planner": float(staleness)}
            row = {f"store/planner/{key}": value for key, value in mine.items()}
            rows.append({"update": update, "store/executor/episodes": 128.0, **row})
        counts = {
            "planner": Counts(acknowledged=acknowledged),
            "executor": Counts(acknowledged=256),
        }
        return tuple(chaos.accounts(run, rows, counts).values())

    assert accounts((128, 128)) == (0, 0, 0)
    assert accounts((120, 128), acknowledged=248) == (8, 0, 0)
    assert accounts((136, 128), acknowledged=264) == (0, 8, 0)
    assert accounts((120, 136)) == (8, 8, 0), "one does not make up for the other"
    assert accounts((128, 128), behind=(2, 1)) == (0, 0, 1)
    assert accounts((128, 128), acknowledged=240) == (16, 0, 0), "learned from and still open"
    assert accounts((128, 128), acknowledged=272) == (0, 16, 0)
    assert accounts((128,), (1,), (2,)) == (2 * 128, 0, 0), "a whole update of both"
