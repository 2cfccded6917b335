"""Panel matches: seats swapped on one deal, forfeits apart, comparisons that can say no."""

import json
from dataclasses import dataclass

import pytest
from rich.console import Console

from marl_llm.agents.chat import Chat
from marl_llm.agents.role import Role
from marl_llm.agents.scripted import Uniform
from marl_llm.agents.solvers import Minimax
from marl_llm.errors import ConfigError
from marl_llm.evaluate.matches import compare, panel_matches, table
from marl_llm.evaluate.statistics import verdict, wilson
from marl_llm.games.catalog import maker
from marl_llm.rollout.play import ModelSeat
from marl_llm.serve.tiny import build_model, build_tokenizer
from marl_llm.serve.transformers_engine import TransformersEngine
from marl_llm.types import Sampling


@dataclass(frozen=True)
class Always:
    """The same action whenever it is legal."""

    action: str
    name: str = "always"

    def act(self, game, agent, rng):
        legal = game.legal(agent)
        return self.action if self.action in legal else legal[0]


SCRIPTED = {
    "bettor": Always("bet"),
    "passer": Always("pass"),
    "random": Uniform(),
    "minimax": Minimax(),
}


def one(game, contender, opponent, *, pairs=10, seed=0, seats=SCRIPTED, engines=None):
    make = maker(game)
    (match,) = panel_matches(
        game, make, contender, [opponent], seats, engines or {}, pairs=pairs, seed=seed
    )
    return match


def test_a_pair_takes_the_luck_of_the_deal_out():
    # Both always bet: the better card wins 2. With seats swapped on the same deal the contender has
    # the other card, so every pair pays it (2 - 2)/2 = 0 and scores (1 + 0)/2, whatever was dealt.
    seats = {**SCRIPTED, "bettor2": Always("bet")}
    match = one("kuhn", "bettor", "bettor2", seats=seats, seed=1)
    assert set(match.pair_returns) == {0.0}
    assert set(match.pair_scores) == {0.5}
    assert (match.pooled.returns.low, match.pooled.returns.high) == (0.0, 0.0)
    first, second = match.seats.values()
    assert first.returns.value == -second.returns.value
    assert first.returns.high - first.returns.low > 1
    assert (match.pooled.games, first.games, match.pooled.returns.n) == (20, 10, 10)


def test_scores_and_returns_worked():
    # Against somebody who always passes a bet takes the ante in every deal, from either seat.
    match = one("kuhn", "bettor", "passer")
    assert match.pooled.returns.value == 1.0
    assert match.pooled.returns_without_forfeits == match.pooled.returns
    assert match.pooled.outcomes == {"win": 20}
    # Ten pairs won are no certainty: the interval is Wilson's.
    assert match.pooled.score == wilson(1.0, 10)
    assert one("kuhn", "passer", "bettor").pooled.score == wilson(0.0, 10)


def test_minimax_against_random_and_itself():
    make = maker("tictactoe")
    against_random, against_itself = panel_matches(
        "tictactoe", make, "minimax", ["random", "copy"],
        {**SCRIPTED, "copy": Minimax()}, {}, pairs=30, seed=1,
    )  # fmt: skip
    assert (against_random.opponent, against_itself.opponent) == ("random", "copy")
    assert "loss" not in against_random.pooled.outcomes
    assert against_random.pooled.score.low > 0.85
    assert against_itself.pooled.outcomes == {"draw": 60}
    assert against_itself.pooled.score.value == 0.5


def test_more_than_two_players_take_every_seat():
    match = one("kuhn_3p", "random", "bettor", pairs=6)
    assert list(match.seats) == ["player_0", "player_1", "player_2"]
    assert match.pooled.games == 18
    assert [tally.games for tally in match.seats.values()] == [6, 6, 6]
    mean = sum(tally.returns.value for tally in match.seats.values()) / 3
    assert match.pooled.returns.value == pytest.approx(mean)


def test_a_team_plays_each_deal_once():
    match = one("hanabi_mini", "random", "random", pairs=8)
    first, second = match.seats.values()
    assert match.pairs == len(match.pair_returns) == 8
    assert first.returns == second.returns  # a team wins and loses together
    assert match.pooled.returns == first.returns


def test_it_repeats_and_another_seed_is_another_match():
    assert one("leduc", "random", "bettor", seed=3) == one("leduc", "random", "bettor", seed=3)
    assert one("leduc", "random", "bettor", seed=3) != one("leduc", "random", "bettor", seed=4)


def test_a_member_is_met_on_the_same_deals_wherever_it_stands_in_the_panel():
    make = maker("kuhn")
    matches = panel_matches(
        "kuhn", make, "bettor", ["passer", "bettor2"],
        {**SCRIPTED, "bettor2": Always("bet")}, {}, pairs=10, seed=0,
    )  # fmt: skip
    alone = one("kuhn", "bettor", "bettor2", seats={**SCRIPTED, "bettor2": Always("bet")})
    assert matches[1].seats["player_0"] == alone.seats["player_0"]


def test_comparisons_say_who_is_better_or_that_no_difference_was_found():
    bettor, passer = (one("kuhn", name, "random", pairs=60) for name in ("bettor", "passer"))
    same = compare(bettor, bettor, seed=0)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    assert verdict(same, "one", "two").startswith("no difference found")
    better = compare(bettor, passer, seed=0, measure="return")
    assert better.value == pytest.approx(bettor.pooled.returns.value - passer.pooled.returns.value)
    assert verdict(better, "bettor", "passer").startswith("bettor is better than passer")


@pytest.fixture(scope="module")
def babbler():
    """A tiny model that was taught nothing and so forfeits every game."""
    tokenizer = build_tokenizer(["a1 b2 c3"])
    chat = Chat(tokenizer)
    engine = TransformersEngine(
        build_model(tokenizer, seed=0), end_ids=chat.end_ids, tokenizer=tokenizer
    )
    role = Role("player", sampling=Sampling(max_tokens=3))
    return {"babbler": ModelSeat(role, chat, "main"), **SCRIPTED}, {"main": engine}


def test_forfeits_are_counted_apart(babbler):
    seats, engines = babbler
    match = one("tictactoe", "babbler", "random", pairs=4, seats=seats, engines=engines)
    assert match.pooled.forfeits == 1.0
    assert match.pooled.opponent_forfeits == 0.0
    assert set(match.pooled.outcomes) <= {"format", "length"}
    assert match.pooled.score.value == 0.0
    assert match.pooled.returns.value == -1.0
    assert match.pooled.returns_without_forfeits is None
    other = one("tictactoe", "random", "babbler", pairs=4, seats=seats, engines=engines)
    assert other.pooled.outcomes == {"other_forfeit": 8}
    assert (other.pooled.forfeits, other.pooled.opponent_forfeits) == (0.0, 1.0)
    assert other.pooled.score.value == 1.0


def test_results_are_json_and_a_table(babbler):
    seats, engines = babbler
    matches = panel_matches(
        "tictactoe", maker("tictactoe"), "babbler", ["random"], seats, engines, pairs=2, seed=0
    )
    data = json.loads(json.dumps([match.as_json() for match in matches]))
    assert data[0]["pooled"]["score"]["n"] == 2
    assert data[0]["seats"]["player_1"]["forfeits"] == 1.0
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(matches, "tictactoe"))
    text = console.export_text()
    assert "100.0%" in text
    assert text.count("player_") == 2
    assert "-1.000 [-1.000, -1.000]" in text


def test_single_pairs_have_no_interval():
    match = one("kuhn", "bettor", "passer", pairs=1)
    assert match.pooled.returns is None
    assert match.pair_returns == (1.0,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pairs": 0}, "at least 1 pair"),
        ({"panel": []}, "the panel of kuhn is empty; known: bettor"),
        ({"panel": ["radnom"]}, "unknown player 'radnom'; did you mean 'random'?"),
        ({"contender": "self"}, "unknown player 'self'"),
    ],
)
def test_bad_casts_are_refused(change, words):
    cast = {"contender": "bettor", "panel": ["random"], "pairs": 2, **change}
    with pytest.raises(ConfigError) as caught:
        panel_matches(
            "kuhn", maker("kuhn"), cast["contender"], cast["panel"], SCRIPTED, {},
            pairs=cast["pairs"], seed=0,
        )  # fmt: skip
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("second", "measure", "words"),
    [
        (("kuhn", "bettor", "passer", 10), "score", "same opponent"),
        (("leduc", "random", "random2", 10), "score", "same game"),
        (("kuhn", "bettor", "random2", 9), "score", "same number of pairs"),
        (("kuhn", "bettor", "random2", 10), "scores", "did you mean 'score'?"),
    ],
)
def test_unlike_matches_cannot_be_compared(second, measure, words):
    seats = {**SCRIPTED, "random2": Uniform()}
    first = one("kuhn", "random", "random2", seats=seats)
    game, contender, opponent, pairs = second
    other = one(game, contender, opponent, pairs=pairs, seats=seats)
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        compare(first, other, seed=0, measure=measure)
