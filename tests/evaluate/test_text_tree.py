"""Trees of texts: known NashConv values, reach and equilibria, all through the games' own text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.errors import ConfigError, GameError
from marl_llm.evaluate.nash_conv import nash_conv
from marl_llm.evaluate.text_tree import (
    equilibrium_policy,
    nodes,
    numbered,
    text_tree,
    uniform,
    written_policy,
)
from marl_llm.games.catalog import build

KUHN = text_tree(build("kuhn"))


@pytest.mark.parametrize(
    ("game", "states", "value"),
    [
        ("kuhn", 12, 11 / 12),
        ("kuhn_3p", 48, 2.0625),
        ("leduc", 288, 4.747222),
        # Uniform play is the equilibrium of matching pennies. In the dilemma cooperation pays 5 or
        # 0, mean 2.5, defection 10 or 1, mean 5.5: each has 4 and gains 1.5 by defecting.
        ("matching_pennies", 2, 0.0),
        ("prisoners_dilemma", 2, 3.0),
    ],
)
def test_uniform_play_through_our_text(game, states, value):
    tree = text_tree(build(game))
    assert len(tree.states) == states
    result = nash_conv(written_policy(tree, uniform), tree)
    assert result.nash_conv == pytest.approx(value, abs=1e-6)
    assert (result.legal_mass, result.states) == (1.0, states)
    assert sum(result.best_responses.values()) - sum(result.values.values()) == pytest.approx(value)


def test_every_state_is_read_by_its_own_agent_as_in_play():
    game = build("kuhn")
    first, second = ("", "pb"), ("p", "b")
    assert set(KUHN.states) == {card + bets for card in "012" for bets in first + second}
    state = KUHN.states["1pb"]  # the queen after a pass and a bet
    assert state.observation.agent == "player_0"
    assert state.observation.brief == "Q pass bet"
    assert state.actions == {"pass": 0, "bet": 1}
    game.at([1, 0, 0, 1])
    assert game.observation("player_0") == state.observation


def test_reach_worked():
    # Uniform Kuhn: each first card 1/3; after a pass (1/2) then a bet (1/2) 1/3 · 1/4.
    table = written_policy(KUHN, uniform)
    assert table.states["0"].reach == pytest.approx(1 / 3)
    assert table.states["1p"].reach == pytest.approx(1 / 6)
    assert table.states["2pb"].reach == pytest.approx(1 / 12)


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12))
@settings(max_examples=25, deadline=None)
def test_values_and_gains_of_any_policy(bets):
    chances = dict(zip(KUHN.states, bets, strict=True))
    rows = {key: {"pass": 1 - chances[key], "bet": chances[key]} for key in KUHN.states}
    by_observation = {state.observation: rows[key] for key, state in KUHN.states.items()}
    policy = written_policy(KUHN, lambda state: by_observation[state.observation])
    result = nash_conv(policy, KUHN)
    assert sum(result.values.values()) == pytest.approx(0, abs=1e-9)
    assert result.nash_conv >= -1e-9
    for agent, value in result.values.items():
        assert result.best_responses[agent] >= value - 1e-9
    # Ends carry all the probability, and each first decision its card's.
    ends = [p for s, p in nodes(KUHN.game, numbered(KUHN, rows)) if s.is_terminal()]
    assert sum(ends) == pytest.approx(1)
    assert sum(policy.states[key].reach for key in "012") == pytest.approx(1)


@pytest.mark.parametrize("game", ["kuhn", "leduc", "matching_pennies"])
def test_equilibria_are_found_again(game):
    tree = text_tree(build(game))
    result = nash_conv(equilibrium_policy(tree), tree)
    assert result.nash_conv < 1e-3
    if game == "kuhn":
        assert result.values["player_0"] == pytest.approx(-1 / 18, abs=1e-4)


@pytest.mark.parametrize(
    ("move", "value"),
    [
        # Both always bet: each best response folds the jack, saving 1 chip in 1/3 of the deals.
        ("bet", 2 / 3),
        # Both always pass: whoever bets wins the other's ante instead of 0 on average.
        ("pass", 2.0),
    ],
)
def test_the_same_move_everywhere(move, value):
    policy = written_policy(KUHN, lambda state: {a: float(a == move) for a in state.actions})
    assert nash_conv(policy, KUHN).nash_conv == pytest.approx(value)


@pytest.mark.parametrize(
    ("game", "words"),
    [
        ("hanabi_mini", "no information states in OpenSpiel"),
        ("tictactoe", "more than 50000 information states"),
    ],
)
def test_games_that_cannot_be_walked_say_so(game, words):
    with pytest.raises(ConfigError, match=words):
        text_tree(build(game))


def test_no_equilibrium_where_interests_are_mixed():
    with pytest.raises(GameError):
        equilibrium_policy(text_tree(build("stag_hunt")))
