import pyspiel
import pytest

from marl_llm.agents.equilibrium import average_policy, equilibrium
from marl_llm.errors import GameError

KUHN = pyspiel.load_game("kuhn_poker")
LEDUC = pyspiel.load_game("leduc_poker(suit_isomorphism=true)")


def nash_conv(game, policy):
    table = {key: list(row.items()) for key, row in policy.items()}
    return pyspiel.nash_conv(game, pyspiel.TabularPolicy(table))


def value(state, policies):
    """Player 0's expected return when the players follow these policies."""
    if state.is_terminal():
        return state.player_return(0)
    if state.is_chance_node():
        return sum(p * value(state.child(a), policies) for a, p in state.chance_outcomes())
    mover = state.current_player()
    chances = policies[mover](state, mover)
    return sum(p * value(state.child(a), policies) for a, p in chances.items())


def follow(policy):
    return lambda state, player: policy[state.information_state_string(player)]


def uniform(state, player):
    legal = state.legal_actions()
    return {action: 1 / len(legal) for action in legal}


@pytest.mark.parametrize(("game", "worth"), [(KUHN, -1 / 18), (LEDUC, -0.0856064)])
def test_without_trembles_it_is_exact(game, worth):
    policy = equilibrium(game, tremble=0.0)
    assert nash_conv(game, policy) < 1e-9
    both = (follow(policy), follow(policy))
    assert value(game.new_initial_state(), both) == pytest.approx(worth, abs=1e-6)


@pytest.mark.parametrize("game", [KUHN, LEDUC])
def test_trembles_cost_little(game):
    assert nash_conv(game, equilibrium(game)) < 2e-4


def test_kuhn_is_of_the_known_family():
    """Kuhn (1950): with a = P(bet | J), a in [0, 1/3], all else follows."""
    policy = equilibrium(KUHN)
    bet = {key: row[1] for key, row in policy.items()}
    a = bet["0"]
    assert -1e-4 < a < 1 / 3 + 1e-4
    known = {
        "0": a, "1": 0, "2": 3 * a, "0pb": 0, "1pb": a + 1 / 3, "2pb": 1,
        "0p": 1 / 3, "1p": 0, "2p": 1, "0b": 0, "1b": 1 / 3, "2b": 1,
    }  # fmt: skip
    assert bet == pytest.approx(known, abs=1e-3)


def test_trembles_punish_mistakes():
    def earns(policy):
        start, own = KUHN.new_initial_state(), follow(policy)
        return (value(start, (own, uniform)) - value(start, (uniform, own))) / 2

    # Uniform play errs everywhere. An equilibrium that throws nothing away off its path earns 1/6;
    # with tremble=0 the program may end in one that earns as little as 1/9.
    assert earns(equilibrium(KUHN)) == pytest.approx(1 / 6, abs=1e-3)


def test_simultaneous_moves():
    assert all(
        row == pytest.approx({0: 0.5, 1: 0.5})
        for row in equilibrium(pyspiel.load_game("matrix_mp")).values()
    )
    rps = equilibrium(pyspiel.load_game("matrix_rps"))
    assert all(p == pytest.approx(1 / 3) for row in rps.values() for p in row.values())


def test_probabilities_are_complete():
    for policy in (equilibrium(LEDUC), average_policy(LEDUC, 2)):
        assert all(min(row.values()) >= 0 for row in policy.values())
        assert all(sum(row.values()) == pytest.approx(1.0) for row in policy.values())
    # Our walk finds the information states that OpenSpiel's solver finds.
    assert equilibrium(LEDUC).keys() == average_policy(LEDUC, 2).keys()


def test_it_is_computed_once_and_cannot_be_changed():
    assert equilibrium(KUHN) is equilibrium(pyspiel.load_game("kuhn_poker"))
    with pytest.raises(TypeError):
        equilibrium(KUHN)["0"] = {}  # type: ignore[index]


def test_cfr_comes_near_and_cfr_plus_nearer():
    plain, plus = (nash_conv(KUHN, average_policy(KUHN, 500, plus)) for plus in (False, True))
    assert plus < plain < 0.01
    assert plus < 0.001


def test_cfr_takes_three_players():
    policy = average_policy(pyspiel.load_game("kuhn_poker(players=3)"), 50)
    assert len(policy) == 48  # 4 cards at 12 betting histories
    # Facing a bet and a call, the highest card always calls, after a first iterate that is uniform:
    # 1 - 0.5 / 50 = 0.99.
    assert policy["3bb"][1] == pytest.approx(0.99)


def test_games_that_do_not_fit(monkeypatch):
    with pytest.raises(GameError, match="two players with opposed interests"):
        equilibrium(pyspiel.load_game("kuhn_poker(players=3)"))
    with pytest.raises(GameError, match="two players with opposed interests"):
        equilibrium(pyspiel.load_game("matrix_pd"))
    with pytest.raises(GameError, match="moves in turns"):
        average_policy(pyspiel.load_game("matrix_pd"))
    with pytest.raises(GameError, match="tremble"):
        equilibrium(KUHN, tremble=0.5)
    monkeypatch.setattr("marl_llm.agents.equilibrium.MAX_HISTORIES", 1_000)
    with pytest.raises(GameError, match="1,000 histories, too many for an exact"):
        equilibrium(pyspiel.load_game("tic_tac_toe"))
    with pytest.raises(GameError, match="1,000 histories, too many for cfr"):
        average_policy(pyspiel.load_game("tic_tac_toe"))
