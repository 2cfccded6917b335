"""The pace of policies: who learns when, and from games how old."""

import pytest

from marl_llm.cli import main
from marl_llm.config import compose
from marl_llm.errors import ConfigError
from marl_llm.report.metrics import read
from marl_llm.settings import Alternation, RunSettings

SHORT = (
    "experiment=planner_executor",
    "updates=4",
    "rollout.episodes=16",
    "evaluation.every=4",
    "evaluation.success=8",
    *(
        f"policies.{policy}.coldstart.{word}"
        for policy in ("planner", "executor")
        for word in ("games=60", "fit.steps=10")
    ),
)
TURNS = (
    "+policies.planner.alternation={_target_: marl_llm.settings.Alternation, learn: 1, rest: 1}",
    "+policies.executor.alternation={_target_: marl_llm.settings.Alternation, learn: 1, rest: 1,"
    " after: 1}",
)


def test_it_learns_rests_and_learns_again():
    learns = Alternation(learn=2, rest=3, after=1).learns
    assert [learns(update) for update in range(9)] == [bool(int(sign)) for sign in "011000110"]


def test_without_rest_it_always_learns():
    assert all(Alternation(learn=1, rest=0).learns(update) for update in range(5))


@pytest.mark.parametrize("numbers", [(0, 1, 0), (1, -1, 0), (1, 1, -1)])
def test_impossible_numbers_are_refused(numbers):
    learn, rest, after = numbers
    with pytest.raises(ConfigError, match=r"alternation\."):
        Alternation(learn=learn, rest=rest, after=after)


def test_an_update_in_which_all_rest_is_refused(capsys):
    assert main(["train", *SHORT, *TURNS[:1], "policies.executor.trained=false"]) == 2
    assert "in update 2 all policies rest" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 2])
def test_who_rests_learns_nothing_and_who_learns_misses_nothing(tmp_path, staleness):
    run_dir = tmp_path / "run"
    words = (f"run.dir={run_dir}", f"runtime.max_staleness={staleness}")
    assert main(["train", *SHORT, *TURNS, *words]) == 0
    rows = {row["update"]: row for row in read(run_dir)}
    for update in (1, 2, 3, 4):
        for policy, turn in (("planner", 1), ("executor", 0)):
            learned = rows[update].get(f"store/{policy}/episodes")
            assert learned == (16 if update % 2 == turn else None), (update, policy)
    behind = rows[4]["store/executor/staleness_of_executor"]
    assert behind <= min(staleness, 1), "its version counts its own lessons, of which there was one"


def test_a_policy_may_be_stricter_than_the_runtime(capsys):
    words = ("runtime.max_staleness=2", "+policies.planner.max_staleness=0")
    run = RunSettings.of(compose([*SHORT, *words]))
    assert (run.staleness("planner"), run.staleness("executor")) == (0, 2)
    assert main(["train", *SHORT, "+policies.executor.max_staleness=-1"]) == 2
    assert "policies.executor.max_staleness must be at least 0" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("own", "oldest"), [(0, [0, 0, 0, 0]), (None, [0, 1, 2, 2])])
def test_no_policy_learns_from_games_older_than_it_allows(tmp_path, own, oldest):
    run_dir = tmp_path / "run"
    words = [f"run.dir={run_dir}", "runtime.max_staleness=2"]
    words += [] if own is None else [f"+policies.planner.max_staleness={own}"]
    assert main(["train", *SHORT, *words]) == 0
    seen = [row.get("store/planner/staleness_of_planner") for row in read(run_dir)]
    assert seen[1:] == oldest
