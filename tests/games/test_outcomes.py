"""The outcome table: presets, who pays whom, and the gap that caps shaping."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_llm.errors import ConfigError
from marl_llm.games.outcomes import OutcomeTable, Payoff, Scoring
from marl_llm.types import FORFEITS, Outcome

BOARD = Scoring(
    2,
    "opposed",
    "result",
    {Outcome.WIN: (1.0,), Outcome.LOSS: (-1.0,), Outcome.DRAW: (0.0,)},
)
CHIPS = Scoring(3, "opposed", "amount", {Outcome.WIN: (2.0, 3.0, 4.0), Outcome.LOSS: (-2.0, -1.0)})
TEAM = Scoring(
    2,
    "shared",
    "points",
    {Outcome.WIN: (4.0,), Outcome.LOSS: (0.0,), Outcome.DRAW: (0.0, 1.0, 2.0, 3.0)},
    stakes=(0.0, 1.0, 2.0, 3.0),
)
MIXED = Scoring(
    2, "mixed", "amount", {Outcome.WIN: (10.0,), Outcome.LOSS: (0.0,), Outcome.DRAW: (1.0, 5.0)}
)


def settled(table, scoring, fault, offender=0, earned=None, stake=1.0):
    earned = earned or [0.0] * scoring.agents
    return table.settle({offender: table.fault(fault)}, earned, {offender: stake}, scoring)


@pytest.mark.parametrize("fault", sorted(FORFEITS))
@pytest.mark.parametrize("offender", [0, 1])
def test_default_forfeit_is_the_worst_loss_and_sums_to_zero(fault, offender):
    rewards = settled(OutcomeTable(), BOARD, fault, offender)
    assert rewards[offender] == -1.0 and rewards[1 - offender] == 1.0
    # Three players: the worst of the rules is -2, split over two others.
    assert settled(OutcomeTable(), CHIPS, fault, 0) == [-2.0, 1.0, 1.0]


@pytest.mark.parametrize("fault", sorted(FORFEITS))
def test_default_forfeit_of_a_team_takes_everybodys_points(fault):
    assert settled(OutcomeTable(), TEAM, fault, 1, earned=[3.0, 3.0]) == [-3.0, -3.0]


def test_default_forfeit_with_mixed_interests_leaves_the_other_alone():
    assert settled(OutcomeTable(), MIXED, Outcome.FORMAT, earned=[2.0, 1.0]) == [-2.0, 0.0]


@pytest.mark.parametrize("fault", sorted(FORFEITS))
def test_mars_values(fault):
    board = OutcomeTable.named("mars", "result")
    assert (board.win, board.loss, board.draw) == (1.0, -1.0, 0.1)
    assert settled(board, BOARD, fault) == [-11.0, 0.0]  # -(1) - 10
    chips = OutcomeTable.named("mars", "amount")
    assert (chips.win, chips.loss, chips.draw, chips.last_zero) == (None, None, None, None)
    assert settled(chips, CHIPS, fault, stake=2.0) == [-12.0, 0.0, 0.0]  # -(2) - 10
    team = OutcomeTable.named("mars", "points")
    assert team.last_zero == 0.1
    # The offender ends at 3 - 3 - 10 = -10, the other keeps its points.
    assert settled(team, TEAM, fault, earned=[3.0, 3.0], stake=3.0) == [-13.0, 0.0]


def test_spiral_values():
    table = OutcomeTable.named("spiral")
    for fault in FORFEITS:
        assert settled(table, BOARD, fault) == [-1.5, 0.5]
    assert table.truncated == Payoff(0.0, 0.0)
    assert table.ending(Outcome.WIN, 1.0) == 1.0


def test_two_offenders_at_once():
    def both(table, scoring, earned=(0.0, 0.0)):
        payoffs = dict.fromkeys((0, 1), table.format)
        return table.settle(payoffs, earned, {0: 1.0, 1: 1.0}, scoring)

    assert both(OutcomeTable(), BOARD) == [0.0, 0.0]  # -1 of the own, +1 of the other's
    assert both(OutcomeTable.named("spiral"), BOARD) == [-1.5, -1.5]  # no bonus for an offender
    assert both(OutcomeTable(), TEAM, (2.0, 2.0)) == [-2.0, -2.0]  # taken back once


def test_gap_worked():
    assert OutcomeTable().gap(BOARD) == 1.0  # -1, 0, 1
    # -11, -1, 0 (the other's forfeit), 0.1, 1
    assert OutcomeTable.named("mars").gap(BOARD) == pytest.approx(0.1)
    # -1.5, -1, 0, 0.5, 1
    assert OutcomeTable.named("spiral").gap(BOARD) == pytest.approx(0.5)
    assert OutcomeTable().gap(CHIPS) == 1.0  # -2, -1, 1 (share of a forfeit), 2, 3, 4
    # points 0..4, each also with 0.1 for an empty last step
    assert OutcomeTable.named("mars", "points").gap(TEAM) == pytest.approx(0.1)
    flat = Scoring(2, "mixed", "result", {Outcome.DRAW: (0.0,)})
    assert OutcomeTable().gap(flat) == math.inf


@given(
    st.floats(-20, 20).map(lambda x: round(x, 2)),
    st.floats(-20, 20).map(lambda x: round(x, 2)),
    st.floats(-20, 20).map(lambda x: round(x, 2)),
)
def test_shaping_below_half_the_gap_flips_nothing(draw, own, others):
    table = OutcomeTable(draw=draw, illegal=Payoff(own, others))
    gap = table.gap(BOARD)
    assert gap > 0
    values = sorted({1.0, -1.0, draw, own, others})
    for low in values:
        for high in values:
            if high - low > 1e-9:
                assert low + 0.499 * gap < high - 0.499 * gap


@pytest.mark.parametrize(
    ("table", "scoring", "balanced"),
    [
        (OutcomeTable(), BOARD, True),
        (OutcomeTable(), CHIPS, True),
        (OutcomeTable(), TEAM, False),
        (OutcomeTable(), MIXED, False),
        (OutcomeTable(win=2.0, loss=-2.0), BOARD, True),
        (OutcomeTable(win=2.0, loss=-1.0), BOARD, False),
        (OutcomeTable(win=2.0), BOARD, False),
        (OutcomeTable(draw=0.1), BOARD, False),
        (OutcomeTable(time=Payoff(-2.0, 1.0)), CHIPS, True),
        (OutcomeTable(time=Payoff(-2.0, 2.0)), CHIPS, False),
        (OutcomeTable(truncated=Payoff(-1.0, 0.0)), BOARD, False),
        (OutcomeTable.named("mars"), BOARD, False),
        (OutcomeTable.named("spiral"), BOARD, False),
    ],
)
def test_balanced(table, scoring, balanced):
    assert table.balanced(scoring) is balanced


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: OutcomeTable(win=-1.0, loss=1.0), "win must pay more"),
        (lambda: OutcomeTable(draw=math.nan), "draw must be a finite number"),
        (lambda: OutcomeTable(tries=0), "at least 1"),
        (lambda: OutcomeTable(retry=Payoff()), "retry.own"),
        (lambda: Payoff(minus_stake=True), "give `own` a number"),
        (lambda: Payoff(own=math.inf), "finite"),
        (lambda: OutcomeTable.named("marz"), "did you mean 'mars'"),
    ],
)
def test_errors_say_what_to_do(make, says):
    with pytest.raises(ConfigError, match=says):
        make()
