"""Alarms ring for what they say they ring for, name the figure, and else are silent."""

import pytest

from marl_llm.report.alarms import WINDOW, Alarm, alarms

RATE = "rollout/planner/delegation_rate"
ENTROPY = "learn/executor/entropy"
SUCCESS = "evaluate/planner/success"


def rows(key, values, first=1):
    return [{"update": first + n, key: value} for n, value in enumerate(values)]


def names(found):
    return [alarm.name for alarm in found]


def test_a_planner_that_stops_calling_is_named_with_its_figure_and_its_time():
    # The mean of ten is below 0.01 from the update on that drops the last 0.5: 5 + 10.
    (alarm,) = alarms(rows(RATE, [0.5] * 5 + [0.004] * 20))
    assert alarm == Alarm(
        "never delegates",
        "planner calls somebody in 0.4 % of its episodes",
        since=15,
    )


def test_it_takes_ten_updates_and_one_good_stretch_ends_it():
    assert alarms(rows(RATE, [0.0] * (WINDOW - 1))) == []
    assert names(alarms(rows(RATE, [0.0] * WINDOW))) == ["never delegates"]
    assert alarms(rows(RATE, [0.0] * 20 + [0.5])) == []
    # One call among ten updates of a hundred episodes does not.
    assert alarms(rows(RATE, [0.0] * 12 + [0.01] + [0.0] * 4))[0].since == 10
    # It rings anew after a pause: 0.5 at update 21 is gone at 31.
    assert alarms(rows(RATE, [0.0] * 20 + [0.5] + [0.0] * 12))[0].since == 31


@pytest.mark.parametrize(
    ("key", "bad", "good", "name"),
    [
        (RATE, 0.0, 0.02, "never delegates"),
        ("rollout/planner/same_task_share", 0.96, 0.94, "always the same sub-task"),
        ("rollout/player/keep_share", 0.995, 0.98, "always KEEP"),
        ("rollout/player/keep_share", 0.005, 0.02, "never KEEP"),
        ("rollout/all/forfeit_share", 0.51, 0.49, "forfeits"),
        (ENTROPY, 0.004, 0.006, "no entropy"),
    ],
)
def test_each_rings_on_its_side_of_the_bound_only(key, bad, good, name):
    assert names(alarms(rows(key, [bad] * WINDOW))) == [name]
    assert alarms(rows(key, [good] * WINDOW)) == []


def test_updates_without_the_metric_do_not_count():
    mixed = [row for value in [0.0] * 9 for row in ({RATE: value}, {RATE: None}, {})]
    numbered = [{"update": n, **row} for n, row in enumerate(mixed, start=1)]
    assert alarms(numbered) == []
    (alarm,) = alarms([*numbered, {"update": 28, RATE: 0.0}])
    assert alarm.since == 28


def test_who_has_solved_the_task_may_be_sure_of_it():
    quiet = rows(ENTROPY, [0.001] * 20)
    assert names(alarms(quiet)) == ["no entropy"]
    quiet[4][SUCCESS] = 0.97
    assert alarms(quiet) == []
    quiet[15][SUCCESS] = 0.6  # it has forgotten
    assert alarms(quiet)[0].since == 16


def test_an_exploitable_policy_without_entropy_has_solved_nothing():
    sure = rows(ENTROPY, [0.001] * 10)
    sure[0]["evaluate/self/nash_conv"] = 0.99
    assert names(alarms(sure)) == ["no entropy"]


def test_two_policies_ring_by_their_names():
    both = rows(ENTROPY, [0.001] * 10)
    for row in both:
        row["learn/planner/entropy"] = 0.002
    assert [alarm.says.split()[0] for alarm in alarms(both)] == ["executor", "planner"]


def test_a_healthy_run_is_silent():
    healthy = [
        {
            "update": n, RATE: 0.9, "rollout/planner/same_task_share": 0.2, ENTROPY: 0.05,
            "rollout/all/forfeit_share": 0.05, "rollout/player/keep_share": 0.6, SUCCESS: 0.4,
            "rollout/all/forfeit_format_share": 0.9,  # a part has no alarm of its own
        }
        for n in range(30)
    ]  # fmt: skip
    assert alarms(healthy) == [] == alarms([])
