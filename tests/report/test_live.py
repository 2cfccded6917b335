"""The terminal view: drawn in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import pytest
from rich.console import Console

from marl_llm.report.live import (
    LiveView,
    RunHeader,
    game_line,
    print_result,
    printable,
    sparkline,
)
from marl_llm.types import Episode, Observation, Outcome, Turn

CONV = "evaluate/player/nash_conv"
RUN = RunHeader("kuhn_selfplay", Path("runs/kuhn"), seed=3, updates=40)


class Clock:
    """A clock that a test turns by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def console(terminal: bool, width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def drawn(view: LiveView, width: int = 100) -> str:
    """The panel as text."""
    page = console(terminal=False, width=width)
    page.print(view.render())
    return page.file.getvalue()


def test_plain_lines_where_there_is_no_terminal():
    out, clock = console(terminal=False), Clock()
    with LiveView(RUN, out, every=10, clock=clock) as view:
        view.stage("training")
        view.stage("training")
        for update in range(41):
            clock.now += 2
            view.update(update, {CONV: 0.9 - update / 100, "learn/player/loss": math.nan})
    lines = out.file.getvalue().splitlines()
    assert lines[:2] == ["kuhn_selfplay  seed 3  40 updates  runs/kuhn", "training"]
    assert [line.split("  ")[0] for line in lines[2:]] == [
        f"update {n}/40" for n in (0, 10, 20, 30, 40)
    ]
    # Updates take 2 s, so after 10 of 40 there is one minute left.
    assert lines[3].startswith("update 10/40  NashConv 0.800") and lines[3].endswith("1:00 left")
    assert out.file.getvalue().isascii()


def test_last_update_is_always_a_line():
    out = console(terminal=False)
    with LiveView(RUN, out, every=1000) as view:
        view.update(39, {CONV: 0.5})
        view.update(40, {CONV: 0.4})
    assert out.file.getvalue().splitlines()[1:] == ["update 40/40  NashConv 0.400"]


def test_a_line_says_of_which_update_an_older_value_is():
    out = console(terminal=False)
    with LiveView(RUN, out, every=5) as view:
        view.update(0, {CONV: 0.9})
        view.update(5, {"rollout/player/forfeit_share": 0.01})
        view.update(10, {"rollout/player/forfeit_share": 0.02, CONV: 0.4})
        view.update(15, {"rollout/player/forfeit_share": 0.03})
    lines = [line.split("  ")[1:3] for line in out.file.getvalue().splitlines()[1:]]
    assert lines == [
        ["NashConv 0.900"],
        ["NashConv 0.900 (at 0)", "forfeits 1.0 %"],
        ["NashConv 0.400", "forfeits 2.0 %"],
        ["NashConv 0.400 (at 10)", "forfeits 3.0 %"],
    ]


def test_panel_says_of_which_update_an_older_value_is():
    view = LiveView(RUN, console(terminal=True))
    score = "evaluate/player/score_random"
    values = {CONV: 0.25, score: 0.8, f"{score}_low": 0.75, f"{score}_high": 0.85}
    for update in range(30, 39):
        view.update(update, values)
    assert " at " not in drawn(view, width=80)
    view.update(39, {"rollout/player/forfeit_share": 0.01})
    text = drawn(view, width=80)
    aged = [line for line in text.splitlines() if " at 38 " in line]
    assert [line.split()[1] for line in aged] == ["NashConv", "score"] and "…" not in text


def test_panel_shows_the_run():
    clock = Clock()
    view = LiveView(RUN, console(terminal=True), clock=clock)
    view.stage("training")
    view.update(0, {CONV: 0.9})
    clock.now += 30
    score = "evaluate/player/score_random"
    values = {CONV: 0.25, score: 0.8, f"{score}_low": 0.75, f"{score}_high": 0.85}
    view.update(10, {**values, "rollout/player/forfeit_share": 0.0125}, "player_0 bet")
    text = drawn(view, width=80)
    for part in ("kuhn_selfplay", "seed 3", "runs/kuhn", "training", "10/40", "NashConv", "0.250",
                 "0.800 [0.750, 0.850]", "forfeits", "1.2 %", "best so far", "█▁",
                 "last game", "player_0 bet"):  # fmt: skip
        assert part in text, part
    assert len({len(line) for line in text.splitlines()}) == 1 and "…" not in text
    assert "1:30 left" in text  # 3 s an update, 30 to go


def test_values_stay_until_they_are_replaced_and_nan_is_shown():
    view = LiveView(RUN, console(terminal=True))
    view.update(0, {CONV: 0.9})
    view.update(1, {"learn/player/loss": math.nan})
    text = drawn(view)
    assert "0.900" in text and "nan" in text


def test_panel_keeps_its_width_whatever_a_model_writes():
    view = LiveView(RUN, console(terminal=True))
    view.update(1, {CONV: 0.5}, "[bold red]\x1b[2J\n\tbet[/] " + "x" * 500)
    lines = drawn(view, width=60).splitlines()
    assert {len(line) for line in lines} == {60}
    assert "\x1b" not in "".join(lines) and any("[bold red]" in line for line in lines)


def test_terminal_gets_the_panel_and_its_last_state():
    out = console(terminal=True)
    with pytest.raises(KeyboardInterrupt), LiveView(RUN, out) as view:
        view.update(5, {CONV: 0.5})
        raise KeyboardInterrupt
    assert "stopped" in out.file.getvalue() and "5/40" in out.file.getvalue()


def test_time_left_ignores_what_came_before_the_first_update():
    clock = Clock()
    view = LiveView(RUN, console(terminal=True), clock=clock)
    clock.now += 600  # cold start
    view.update(20, {CONV: 0.5})  # resumed here
    assert view.seconds_left() is None
    clock.now += 10
    view.update(30, {CONV: 0.5})
    assert view.seconds_left() == pytest.approx(10)  # 1 s an update, 10 to go
    clock.now += 4
    assert view.seconds_left() == pytest.approx(6)  # it goes down between updates
    clock.now += 60
    assert view.seconds_left() == 0


def test_result_names_the_report_on_one_line():
    out = console(terminal=False, width=50)
    report = Path("runs") / ("long_" * 20) / "report.html"
    rows = [{"update": 0, CONV: 0.9}, {"update": 9, CONV: 0.2}]
    print_result(rows, report, out)
    lines = out.file.getvalue().splitlines()
    assert lines[-1] == f"report: {report}"
    row = next(line for line in lines if "NashConv" in line)
    assert row.split() == ["NashConv", "0.900", "0.200", "better"]


def test_result_says_in_words_what_the_intervals_bear_out():
    out = console(terminal=False)
    score = "evaluate/player/score_random"
    rows = [
        {"update": 0, score: 0.5, f"{score}_low": 0.4, f"{score}_high": 0.6},
        {"update": 9, score: 0.55, f"{score}_low": 0.45, f"{score}_high": 0.65},
    ]
    print_result(rows, Path("report.html"), out)
    row = next(line for line in out.file.getvalue().splitlines() if "score" in line)
    assert row.rstrip().endswith("0.550 [0.450, 0.650]   no difference seen")


def test_result_of_a_run_that_was_interrupted_says_of_which_update_it_is():
    out = console(terminal=False)
    share = "rollout/player/forfeit_share"
    rows = [{"update": 0, CONV: 0.9}, {"update": 1, share: 0.5}, {"update": 50, CONV: 0.2}]
    print_result([*rows, {"update": 57, share: 0.25}], Path("report.html"), out)
    cells = [re.split(r"\s{2,}", line.strip()) for line in out.file.getvalue().splitlines()]
    number = next(place for place, row in enumerate(cells) if row[0] == "NashConv")
    assert cells[number : number + 3] == [
        ["NashConv", "0.900", "0.200", "better"],
        ["(at 50)"],
        ["forfeits", "50.0 %", "25.0 %", "lower"],
    ]


def test_result_without_two_measurements_is_only_the_path():
    out = console(terminal=False)
    print_result([{"update": 0, CONV: 0.9}], Path("report.html"), out)
    assert out.file.getvalue() == "report: report.html\n"


def turn(agent: str, action: str | None, fault: Outcome | None = None) -> Turn:
    return Turn(
        observation=Observation(agent, "player", "", "", None, ""), policy=None, player="x",
        prompt_ids=(), ids=(), logprobs=(), versions=(), reply="", action=action, fault=fault,
        finish=None, reward=0.0, shaping=0.0,
    )  # fmt: skip


def test_a_game_in_one_line():
    game = Episode(
        id=0, attempt=0, game="kuhn_poker", group=0, seed=0,
        turns=(turn("p0", "pass"), turn("p1", None, Outcome.FORMAT)), seats={},
        returns={"p0": 1.0, "p1": -1.5},
        outcomes={"p0": Outcome.OTHER_FORFEIT, "p1": Outcome.FORMAT}, terminated=True,
    )  # fmt: skip
    assert game_line(game) == "p0 other_forfeit +1, p1 format -1.5 | p0 pass, p1 [format]"


def test_sparkline():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 24) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0], 24) == sparkline([], 24) == ""
    assert sparkline([2, 2, 2], 24) == "▁▁▁"
    # 100 values in 4 characters: every 25th, the last among them: 24, 49, 74, 99.
    assert sparkline(range(100), 4) == "▁▃▆█"


def test_printable():
    assert printable("a\x1b[31m\nb\x07é") == "a·[31m·b·é"


def of_policies(**busy):
    values = {f"serve/{policy}/busy_share": share for policy, share in busy.items()}
    return {
        **values,
        "learn/planner/version": 12.0,
        "store/planner/staleness_of_planner": 1.0,
        "store/planner/waiting": 64.0,
        "evaluate/planner/success": 0.25,
    }


def test_panel_has_a_line_per_policy():
    view = LiveView(RUN, console(terminal=True))
    view.update(1, {CONV: 0.5})
    assert "policy" not in drawn(view)
    view.update(2, of_policies(planner=0.724, executor=0.5))
    rows = [line.strip("│ ").split() for line in drawn(view, width=80).splitlines()]
    place = rows.index(["policy", "version", "behind", "busy", "queue", "success"])
    assert rows[place + 1] == ["planner", "12", "1", "72%", "64", "0.250"]
    assert rows[place + 2] == ["executor", "50%"]


def test_plain_lines_have_one_per_policy():
    out = console(terminal=False)
    with LiveView(RUN, out, every=10) as view:
        view.update(10, of_policies(planner=0.724, executor=0.5))
    assert out.file.getvalue().splitlines()[-2:] == [
        "  planner:  version 12  behind 1  busy 72%  queue 64  success 0.250",
        "  executor:  busy 50%",
    ]
