"""Values of delegations, counted from what thin records hold."""

from dataclasses import replace

import numpy as np
import pytest

from marl_llm.annotate.delegation_values import DelegationValues
from marl_llm.credit.columns import from_episodes, turns_of
from marl_llm.errors import ConfigError
from marl_llm.store.episodes import thin
from marl_llm.types import Episode, Observation, Turn


def turn(policy, key, parent=None, reward=0.0, number=0):
    agent = policy if policy == "planner" else f"{policy}_{number}"
    seen = Observation(agent, policy, "text", "", None, key, parent)
    return Turn(
        seen, policy, policy, (1,), (2,), (-0.5,), ((0, 0, 1),), "said", "did", None, None,
        reward, 0.0, parent,
    )  # fmt: skip


def episode(number, *turns, terminated=True):
    return Episode(number, 0, "team", 0, 0, turns, {}, {}, {}, terminated)


def play(number, asked, seen, paid, after="told"):
    """The planner asks, an executor looks and is paid, the planner ends and is paid 1 or 0."""
    return episode(
        number,
        turn("planner", asked),
        turn("executor", seen, 0, reward=paid),
        turn("planner", after, reward=float(number % 2)),
    )


# Returns with own rewards: the planner's 0 1 0 1, the executor's those plus what it is paid.
EPISODES = (
    play(0, "q", "near", 10.0),
    play(1, "q", "near", 20.0),
    play(2, "q", "far", 30.0),
    play(3, "r", "far", 40.0, after="rare"),
)


@pytest.fixture
def ask(make_material, make_table):
    """The columns that an annotator makes of what a policy's learner gets of these episodes."""
    material = make_material(make_table())

    def asked(annotator, policy, episodes=EPISODES, whole=False):
        got = tuple(episodes if whole else (thin(each, policy) for each in episodes))
        return annotator.annotate(
            replace(
                material,
                policy=policy,
                episodes=got,
                turns=tuple(turns_of(got, policy)),
                batch=from_episodes(got, policy),
            )
        )

    return asked


def test_a_planners_values_are_means_over_the_other_episodes(ask):
    columns = ask(DelegationValues(), "planner")
    # q: 0 1 0, each against the two others; r and its end were met by nobody else.
    expected = [0.5, 0.5, 0, 0, 0.5, 0.5, np.nan, np.nan]
    np.testing.assert_allclose(columns["value"], expected)
    assert columns["span"].tolist() == [2, 1] * 4
    # Behind a first turn stands the second's value; the rare one is filled in with what came.
    np.testing.assert_allclose(columns["value_behind"], [0.5, 0, 0, 0, 0.5, 0, 1, 0])
    assert not columns["reward_others"].any()


def test_an_executors_values_are_of_its_state_and_its_callers(ask):
    columns = ask(DelegationValues(), "executor")
    # near, called from q: 10 + 0 and 20 + 1. far was met once from q and once from r: both against
    # all in that state, 40 + 1 and 30 + 0.
    np.testing.assert_allclose(columns["value"], [21, 10, 41, 30])
    np.testing.assert_allclose(columns["value_behind"], [0.5, 0, 0.5, 1])
    assert columns["span"].tolist() == [1] * 4


def test_the_caller_counts_where_enough_others_met_it(ask):
    """Far, called from r: with one more such episode its own mean, not that of all."""
    more = (*EPISODES, play(5, "r", "far", 50.0))
    assert ask(DelegationValues(), "executor", more)["value"].tolist()[3] == 51
    assert ask(DelegationValues(least=2), "executor", more)["value"].tolist()[3] == 40.5


def test_a_team_counts_what_all_earn(ask):
    columns = ask(DelegationValues(rewards="team", gamma=0.5), "planner")
    # Half of the next turn's reward.
    assert columns["reward_others"].tolist() == [5, 0, 10, 0, 15, 0, 20, 0]
    # q: 5, 10 + 1/4, 15; each against the two others.
    np.testing.assert_allclose(columns["value"][[0, 2, 4]], [12.625, 10, 7.625])


def test_thin_records_say_as_much_as_whole_episodes(ask):
    for policy in ("planner", "executor"):
        for annotator in (DelegationValues(), DelegationValues(rewards="team", least=2, gamma=0.9)):
            thinned, whole = (ask(annotator, policy, whole=whole) for whole in (False, True))
            for name in annotator.signals:
                np.testing.assert_array_equal(thinned[name], whole[name], err_msg=name)


def test_behind_an_episode_cut_short_stands_the_mean_of_the_planners_elsewhere(ask):
    cut = episode(4, turn("planner", "q"), turn("executor", "near", 0, 5.0), terminated=False)
    columns = ask(DelegationValues(), "executor", (*EPISODES, cut))
    # The planners' turns elsewhere: four at the start and four at the end, 0 1 0 1 each.
    assert columns["value_behind"][4] == 0.5
    assert ask(DelegationValues(), "planner", (cut,))["value_behind"].tolist() == [0.0]


def test_bad_settings():
    with pytest.raises(ConfigError, match="did you mean 'team'"):
        DelegationValues(rewards="teams")
