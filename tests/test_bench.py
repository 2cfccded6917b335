"""The benchmark runs at tiny sizes and its figures are what their names say."""

import json
import math

import pytest

from marl_llm import bench
from marl_llm.bench.timing import Stopwatch, interleaved, spread
from marl_llm.errors import ConfigError

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
    options = bench.Options(None, 3, TINY)
    result = bench.measure(options, tmp_path, lambda stage: None)
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
        ([], "expected 'rollout', got 'nothing'"),
        (["rolout"], "expected 'rollout', got 'rolout'"),
        (["rollout", "--jsn", "x"], "did you mean .--json"),
        (["rollout", "--json"], "--json needs a value"),
        (["rollout", "--rounds", "0"], "from 1 on, got '0'"),
        (["rollout", "experiment=kun"], "kuhn_selfplay"),
    ],
)
def test_a_wrong_word_is_named(words, said):
    with pytest.raises(ConfigError, match=said):
        bench.main(words)
