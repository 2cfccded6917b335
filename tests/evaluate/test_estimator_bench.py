"""Every estimator on every truth: what the comparison must find, and that nothing stops it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from marl_llm import config
from marl_llm.credit.batch import turn_credit
from marl_llm.credit.card import Card
from marl_llm.credit.given import NOTHING
from marl_llm.credit.signals import KNOWN
from marl_llm.credit.truth import TRUTHS
from marl_llm.errors import ConfigError
from marl_llm.evaluate.estimators.bench import CONTROLS, Settings, bench
from marl_llm.evaluate.estimators.costs import SERVICES, signal_cost
from marl_llm.evaluate.estimators.measures import MEASURES

# What others measured on such tasks, two of eight turns mattering and both having to be good, 120
# groups of 8: pairs and leak.
MEASURED = {
    "grpo": (0.65, 1.00),
    "gtpo_turn": (0.66, 1.02),
    "gigpo": (0.79, 0.85),
    "gigpo_step": (0.79, 0.62),
    "rtmc": (0.87, 0.43),
    "graph_td_mc_reading": (0.93, 0.00),
    "igpo": (0.78, 0.77),
    "info_gain_reading": (0.99, 0.16),
    "trace_delta": (0.99, 0.15),
    "trace_logratio": (0.92, 0.96),
    "triage": (0.89, 0.79),
    "stamp": (0.75, 0.86),
    "iapo": (0.84, 0.69),
    "ablation_delta_reading": (0.67, 0.00),
    "vine_ppo": (0.82, 0.44),
}
AS_MEASURED = {  # where the settings there differ from ours
    "rtmc": {"prior_visits": 0.0, "gamma": 1.0},
    "triage": {"lam": 0.5},
    "vine_ppo": {"count": 4, "whiten": False},
}


def build(name, **options):
    return replace(config.build(config.node("credit", name)), **options)


@pytest.fixture(scope="module")
def result():
    estimators = {name: build(name, **AS_MEASURED.get(name, {})) for name in MEASURED}
    return bench(estimators, {"and": TRUTHS["and"]}, Settings(tokens=1, seed=1))


def found(result, name, measure, truth="and"):
    return result["cells"][name][truth]["measures"][measure]


def test_controls(result):
    assert list(result["cells"])[:2] == list(CONTROLS)
    assert found(result, "oracle", "pairs")["value"] == 1
    assert found(result, "oracle", "leak")["value"] == 0
    random = found(result, "random", "pairs")
    assert random["low"] < 0.5 < random["high"]
    assert found(result, "random", "bias")["value"] > 0.98


def test_what_must_come_out(result):
    assert found(result, "grpo", "leak")["value"] == pytest.approx(1)
    assert found(result, "graph_td_mc_reading", "leak")["value"] <= 0.02
    assert found(result, "info_gain_reading", "pairs")["value"] >= 0.97


def test_it_agrees_with_what_others_measured(result):
    """Within their sampling error and ours; labels that are wrong may be so in another way."""
    for name, (pairs, leak) in MEASURED.items():
        for measure, expected in (("pairs", pairs), ("leak", leak)):
            ours = found(result, name, measure)
            width = max(ours["high"] - ours["low"], 0.03)
            slack = 0.06 if name == "triage" else 0.0
            assert abs(ours["value"] - expected) < width + slack, (name, measure, ours)


def test_the_order_is_theirs_too(result):
    """Of all pairs that they found clearly apart, none is turned round."""
    for place in (0, 1):
        for better, theirs in MEASURED.items():
            for worse, others in MEASURED.items():
                if theirs[place] - others[place] > 0.08:
                    measure = ("pairs", "leak")[place]
                    high, low = (found(result, name, measure) for name in (better, worse))
                    assert high["value"] > low["value"], (measure, better, worse)


@dataclass(frozen=True)
class Broken:
    """An estimator that fails in a way of its own, or draws."""

    card: ClassVar[Card] = Card(
        name="broken", title="", source="", evidence="code", granularity="turn",
        methodology="judge", needs=frozenset({"judge_good"}),
    )  # fmt: skip
    how: str

    def estimate(self, batch, given=NOTHING):
        if self.how == "bug":
            raise KeyError("no such thing")
        if self.how == "refuses":
            raise ConfigError("it does not want to")
        if self.how == "replays":
            given.resampler("broken")(np.arange(5), 3)
        credit = given.draws("broken").normal(size=len(batch))
        return turn_credit(batch, credit, components={}, stats={})


def test_a_failure_is_a_cell_s_own_affair():
    estimators = {how: Broken(how) for how in ("bug", "refuses", "draws", "replays")}
    estimators["shapley"] = build("shapley")
    truths = {"and": TRUTHS["and"], "long": TRUTHS["long"]}
    once, twice = (bench(estimators, truths, Settings(groups=6, resamples=50)) for _ in range(2))
    cells = {name: cells["long"] for name, cells in once["cells"].items()}
    assert cells["bug"] == {"failed": "KeyError: 'no such thing'"}
    assert cells["refuses"] == {"refused": "it does not want to"}
    assert cells["draws"]["cost"] == {"forwards": 0, "judgements": 24, "rollouts": 0}
    assert cells["replays"]["cost"]["rollouts"] == pytest.approx(15 / 48)
    assert cells["shapley"]["cost"]["rollouts"] == 2
    for name in ("draws", "replays", "shapley", *CONTROLS):
        assert list(cells[name]["measures"]) == list(MEASURES)
        same = (run["cells"][name]["long"]["measures"] for run in (once, twice))
        assert len({json.dumps(each, sort_keys=True) for each in same}) == 1, "it hangs on the seed"


def test_estimators_of_trees_are_shown_trees():
    estimators = {name: build(name) for name in ("rrpo", "tree_rpo_reading", "mxn", "grpo")}
    out = bench(estimators, {"and": TRUTHS["and"]}, Settings(groups=12, resamples=50))
    assert all("measures" in out["cells"][name]["and"] for name in estimators)


def test_all_estimators_can_be_asked_about_a_team():
    """A YAML that no truth can serve, or that fails, is found here."""
    estimators = {name: build(name) for name in config.choices("credit")}
    out = bench(estimators, {"team": TRUTHS["team"]}, Settings(groups=8, resamples=50))
    wrong = {name: cells["team"] for name, cells in out["cells"].items()
             if "measures" not in cells["team"]}  # fmt: skip
    assert wrong == {}
    json.dumps(out, allow_nan=False)


def test_prices_are_of_known_signals():
    named = [name for service in SERVICES for name in service.signals]
    assert set(named) <= set(KNOWN)
    assert len(named) == len(set(named)), "a signal is paid once"
    # T + 1 passes, and two signals of one service are one price.
    assert signal_cost({"gold_before", "gold_after"}, 8, 1, 8).forwards == 9
    assert signal_cost({"support_in", "faulty", "judge_good"}, 8, 1, 8).judgements == 9
    assert signal_cost({"return_without", "ablated_return"}, 8, 3, 8).rollouts == 11
    assert signal_cost({"entropy", "state_key"}, 8, 1, 8) == signal_cost((), 8, 1, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 1}, "a comparison needs"),
        ({"size": 7}, "a comparison needs"),
        ({"size": 0}, "a comparison needs"),
        ({"resamples": 0}, "resamples must be"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        Settings(**options)
