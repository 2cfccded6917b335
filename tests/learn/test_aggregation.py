import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.errors import ConfigError
from marl_llm.learn.aggregation import Aggregation, token_weights

MODES = [
    Aggregation("turn"),
    Aggregation("token"),
    Aggregation("trajectory"),
    Aggregation("trajectory", per_role=True),
    Aggregation("constant", length=7),
]


def weigh(aggregation, lengths, weight=None, episode=None, agent=None, role=None):
    n = len(lengths)
    zero = np.zeros(n, np.int64)
    return token_weights(
        aggregation,
        np.array(lengths, np.int64),
        np.ones(n) if weight is None else np.array(weight, float),
        zero if episode is None else np.array(episode),
        zero if agent is None else np.array(agent),
        zero if role is None else np.array(role),
    )


def test_trajectory_worked_by_hand():
    # Episode 0: agent 0 took turns of 2 and 1 tokens, agent 1 one of 2. Episode 1: agent 0, 1.
    # Three trajectories; 1/3 × 1/K × 1/L: 1/12, 1/12, 1/6 | 1/6, 1/6 | 1/3.
    got = weigh(Aggregation("trajectory"), [2, 1, 2, 1], episode=[0, 0, 0, 1], agent=[0, 0, 1, 0])
    np.testing.assert_allclose(got, [1 / 12, 1 / 12, 1 / 6, 1 / 6, 1 / 6, 1 / 3])


def test_trajectory_per_role_worked_by_hand():
    # The same with agent 1 in a role of its own. P = 2: role 0 has 2 trajectories, role 1 has 1.
    # 1/2 × 1/2 × 1/2 × 1/2 = 1/16 twice, 1/8; role 1: 1/2 × 1 × 1/2 = 1/4 twice; then 1/2 × 1/2.
    got = weigh(
        Aggregation("trajectory", per_role=True), [2, 1, 2, 1],
        episode=[0, 0, 0, 1], agent=[0, 0, 1, 0], role=[0, 0, 1, 0],
    )  # fmt: skip
    np.testing.assert_allclose(got, [1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 4, 1 / 4])


def test_one_long_and_one_short_turn():
    # A one-token turn of loss 1 beside a nine-token turn of loss 0: .1 by tokens, .5 by turns.
    losses = np.array([1.0] + [0.0] * 9)
    assert weigh(Aggregation("token"), [1, 9]) @ losses == pytest.approx(0.1)
    assert weigh(Aggregation("turn"), [1, 9]) @ losses == pytest.approx(0.5)


@pytest.mark.parametrize("aggregation", MODES)
def test_dead_and_empty_turns_change_nothing_for_the_rest(aggregation):
    alone = weigh(aggregation, [2, 3], episode=[0, 1], agent=[0, 1], role=[0, 1])
    among = weigh(
        aggregation, [4, 2, 0, 3, 5], weight=[0, 1, 1, 1, 0],
        episode=[0, 0, 2, 1, 3], agent=[0, 0, 0, 1, 1], role=[1, 0, 2, 1, 0],
    )  # fmt: skip
    np.testing.assert_allclose(among[[4, 5, 6, 7, 8]], alone)
    assert np.all(np.delete(among, [4, 5, 6, 7, 8]) == 0)


def test_nothing_counts():
    assert np.all(weigh(Aggregation("trajectory"), [2, 0], weight=[0, 1]) == 0)
    assert weigh(Aggregation("token"), []).shape == (0,)


@pytest.mark.parametrize("aggregation", MODES)
def test_a_credit_weight_scales_its_turn_only(aggregation):
    plain = weigh(aggregation, [2, 3], episode=[0, 1])
    scaled = weigh(aggregation, [2, 3], weight=[1, 0.25], episode=[0, 1])
    np.testing.assert_allclose(scaled, plain * [1, 1, 0.25, 0.25, 0.25])


TURNS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12
)


@pytest.mark.parametrize("aggregation", MODES[:4])
@settings(max_examples=40, deadline=None)
@given(TURNS)
def test_means_sum_to_one_and_do_not_depend_on_order(aggregation, turns):
    lengths, episode, agent = (np.array(column) for column in zip(*turns, strict=True))
    weights = weigh(aggregation, lengths, episode=episode, agent=agent, role=agent)
    assert weights.sum() == pytest.approx(1)
    flipped = weigh(
        aggregation, lengths[::-1], episode=episode[::-1], agent=agent[::-1], role=agent[::-1]
    )
    np.testing.assert_allclose(flipped[::-1], weights)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Aggregation("turns"), "did you mean 'turn'"),
        (lambda: Aggregation("constant"), "the reply limit"),
        (lambda: Aggregation("turn", length=3), "only with it"),
        (lambda: Aggregation("constant", length=0), "at least 1"),
        (lambda: Aggregation("turn", per_role=True), "trajectory"),
    ],
)
def test_settings_out_of_range_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
