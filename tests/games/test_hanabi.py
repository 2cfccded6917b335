"""Hanabi: who sees what, what the record says, and how points are paid and taken back."""

import numpy as np
import pytest

from marl_llm.games.hanabi import Hanabi, Size, action_names
from marl_llm.types import Move, Outcome

MINI = {"colours": 2, "ranks": 2, "hand": 3, "hints": 3, "lives": 3}
# Cards by number: 0 red 1, 1 red 2, 2 yellow 1, 3 yellow 2.
DEAL = [0, 2, 3, 0, 2, 1]  # player_0: red 1, yellow 1, yellow 2; player_1: red 1, yellow 1, red 2


def mini(table="zero_sum", deal=DEAL):
    return Hanabi(name="hanabi_mini", table=table, **MINI).at(deal)


def play(game, *actions):
    """Play; the rewards of each action, player_0's first."""
    paid = []
    for action in actions:
        game.act(game.acting()[0], Move(action))
        rewards = game.take_rewards()
        paid.append([rewards.get(agent, 0.0) for agent in game.possible_agents])
    return paid


def test_text():
    game = mini()
    assert game.observation("player_0").text == (
        "Lives: 3. Hints left: 3. Cards in the deck: 2.\n"
        "Fireworks: red 0, yellow 0.\n"
        "Your cards, unseen, as far as hints tell: 1 is unknown; 2 is unknown; 3 is unknown.\n"
        "player_1 holds: red 1 (knows: unknown), yellow 1 (knows: unknown), "
        "red 2 (knows: unknown).\n"
        "Discards: none.\n"
        "So far: nothing.\n"
        "Legal actions: play 1, play 2, play 3, hint red, hint yellow, hint 1, hint 2."
    )
    game.act("player_0", Move("hint red"))
    seen = game.observation("player_1")
    # With two colours, a card that is not red is yellow.
    assert "1 is red, any rank; 2 is yellow, any rank; 3 is red, any rank." in seen.text
    assert "So far: player_0 hint red (cards 1 3)." in seen.text
    assert seen.brief == (
        "red 0 yellow 0 hints 2 mine red ? yellow ? red ? theirs red 1 yellow 1 yellow 2"
    )
    game.act("player_1", Move("hint 2"))
    assert "you hint red (cards 1 3), player_1 hint 2 (cards 3)" in (
        game.observation("player_0").text
    )


def test_record_of_plays_and_discards():
    game = mini()
    play(game, "play 1", "play 1")  # both hold red 1 first: the second does not fit
    text = game.observation("player_0").text
    assert "you play 1 (red 1, fits), player_1 play 1 (red 1, does not fit)" in text
    assert "Lives: 2." in text and "Discards: red 1." in text
    play(game, "hint 1", "discard 1")  # player_1's first card is now yellow 1
    assert "player_1 discard 1 (yellow 1)" in game.observation("player_0").text


def test_own_cards_are_never_shown():
    """Deals that differ in player_0's cards look the same to it, until it plays one."""
    views, deals = set(), ([0, 2, 3], [0, 0, 2], [2, 2, 3], [3, 0, 2])
    for own in deals:
        game = mini(deal=[*own, 0, 2, 1])
        views.add(game.observation("player_0"))
        assert game.observation("player_1").text.count("player_0 holds") == 1
    assert len(views) == 1
    hinted = set()
    for own in ([0, 2, 3], [0, 2, 2]):  # both: first card red, the others yellow
        game = mini(deal=[*own, 0, 2, 1])
        play(game, "hint 1", "hint red")
        hinted.add(game.observation("player_0"))
    assert len(hinted) == 1


def test_a_drawn_card_is_shown_to_the_other_only():
    games = [mini(deal=[*DEAL, 3 + 0, card]) for card in (0, 2)]  # play 1, then draws red or yellow
    views = [{game.observation(agent).text for game in games} for agent in ("player_0", "player_1")]
    assert len(views[0]) == 1 and len(views[1]) == 2


def test_every_card_that_fits_pays_all_at_once():
    assert play(mini(), "play 1", "play 2") == [[1.0, 1.0], [1.0, 1.0]]  # red 1, yellow 1


def test_losing_all_lives_takes_the_points_back():
    game = mini(deal=[0, 3, 2, 0, 0, 2])
    # red 1 fits; the other's red 1 does not, nor yellow 2 on nothing, nor the last red 1.
    paid = play(game, "play 1", "play 1", "play 1", "play 1")
    assert paid[0] == [1.0, 1.0]
    assert paid[-1] == [-1.0, -1.0] and paid[1:-1] == [[0.0, 0.0]] * 2
    assert set(game.outcomes().values()) == {Outcome.LOSS}


def run_out(table):
    """Play red 1, then only hints and discards, so that the last step pays nothing."""
    game = mini(table)
    paid = play(game, "play 1")
    while game.acting():
        legal = game.observation(game.acting()[0]).legal
        quiet = [action for action in legal if not action.startswith("play")]
        paid += play(game, quiet[0])
    return game, paid


@pytest.mark.parametrize(("table", "last"), [("zero_sum", 0.0), ("mars", 0.1), ("spiral", 0.0)])
def test_a_last_step_without_a_point(table, last):
    game, paid = run_out(table)
    assert paid[0] == [1.0, 1.0] and paid[-1] == [last, last]
    assert all(pair == [0.0, 0.0] for pair in paid[1:-1])
    assert set(game.outcomes().values()) == {Outcome.DRAW}


@pytest.mark.parametrize(
    ("table", "paid"),
    [
        ("zero_sum", [-1.0, -1.0]),  # all points are taken back, from both
        ("mars", [0.0, -11.0]),  # -(1 point) - 10 to the offender, the other keeps its point
        ("spiral", [0.5, -1.5]),
    ],
)
def test_forfeits_after_a_point(table, paid):
    game = mini(table)
    play(game, "play 1")
    game.act("player_1", Move(None, Outcome.LENGTH))
    rewards = game.take_rewards()
    assert [rewards.get(agent, 0.0) for agent in game.possible_agents] == paid


def test_a_perfect_score_is_a_win():
    # player_0: red 1, yellow 1, yellow 2; player_1: red 2, ... The deck of two is empty after
    # player_0's second play, and then each has one more turn.
    game = mini(deal=[0, 2, 3, 1, 0, 2])
    paid = play(game, "play 1", "hint yellow", "play 1", "play 1", "play 1")
    assert sum(pair[0] for pair in paid) == 4.0
    assert set(game.outcomes().values()) == {Outcome.WIN}


@pytest.mark.parametrize(
    "size", [Size(2, 2, 2, 3), Size(2, 3, 2, 5), Size(2, 5, 5, 5), Size(3, 4, 3, 4)]
)
def test_action_names_are_openspiels_actions(size):
    """Each name against OpenSpiel's own string, for every action that comes up in random play."""
    game = Hanabi(players=size.players, colours=size.colours, ranks=size.ranks, hand=size.hand)
    letters = dict(zip("RYGWB", ("red", "yellow", "green", "white", "blue"), strict=True))
    met = set()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        game.reset(seed=seed)
        while game.acting():
            state = game.state
            for action in state.legal_actions():
                verb, *rest = state.action_to_string(action).strip("()").split()
                name = action_names(size)[action]
                met.add(action)
                if verb == "Reveal":  # player +1 color R
                    whom = "" if size.players == 2 else f"{rest[1]} "
                    assert name == f"hint {whom}{letters.get(rest[3], rest[3])}"
                else:  # OpenSpiel counts cards from 0
                    assert name == f"{verb.lower()} {int(rest[0]) + 1}"
            agent = game.acting()[0]
            game.act(agent, Move(str(rng.choice(game.observation(agent).legal))))
    assert met == set(range(len(game.actions)))


@pytest.mark.parametrize(
    "sizes", [MINI, {}, {"players": 3, "colours": 3, "ranks": 3, "hand": 4}], ids=str
)
def test_the_record_agrees_with_the_table(sizes):
    """Fireworks, lives and discards of OpenSpiel follow from the moves that the text tells."""
    game = Hanabi(**sizes)
    lives = 3
    for seed in range(15):
        rng = np.random.default_rng(seed)
        game.reset(seed=seed)
        while game.acting():
            (agent,) = game.acting()
            seen = game.observation(agent)
            told = seen.text.split("So far: ")[1].split("\nLegal")[0]
            heights = [int(word) for word in seen.brief.split(" hints ")[0].split()[1::2]]
            assert told.count(", fits)") == sum(heights)
            assert f"Lives: {lives - told.count('does not fit')}." in seen.text
            discards = seen.text.split("Discards: ")[1].split(".")[0]
            thrown = 0 if discards == "none" else discards.count(",") + 1
            assert thrown == told.count("does not fit") + told.count("discard ")
            game.act(agent, Move(str(rng.choice(seen.legal))))
