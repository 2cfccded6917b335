import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_llm.errors import ConfigError
from marl_llm.rollout.shaping import Shaping


def test_worked_by_hand():
    # 0.05 for an accepted action; half of the way from 10 to 20 tokens costs half of 0.5
    shaping = Shaping(valid=0.05, free=10, full=20, weight=0.5)
    assert shaping.of_turn(10, True) == pytest.approx(0.05)
    assert shaping.of_turn(15, True) == pytest.approx(0.05 - 0.25)
    assert shaping.of_turn(40, False) == pytest.approx(-0.5)


def test_off_by_default():
    assert not Shaping().active
    assert Shaping().of_turn(10_000, True) == 0


@given(
    st.lists(st.tuples(st.integers(0, 9000), st.booleans()), max_size=60),
    st.lists(st.tuples(st.integers(0, 9000), st.booleans()), max_size=60),
    st.floats(0.01, 5),
)
def test_two_agents_shaping_never_makes_up_for_a_worse_outcome(mine, other, gap):
    shaping = Shaping(valid=0.05, weight=0.5)

    def total(turns):
        so_far = 0.0
        for tokens, accepted in turns:
            so_far += shaping.capped(so_far, shaping.of_turn(tokens, accepted), gap)
        return so_far

    assert abs(total(mine) - total(other)) < gap


def test_bad_settings_are_refused():
    for bad in ({"share": 1.0}, {"weight": -1}, {"free": 5, "full": 5}):
        with pytest.raises(ConfigError):
            Shaping(**bad)
