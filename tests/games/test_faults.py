"""Faults of tools: seeded, apart from each other, and no agent's loss where they are infra."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from marl_llm.agents.delegating import Solver
from marl_llm.errors import GameError
from marl_llm.games import catalog
from marl_llm.games.delegation import Ask
from marl_llm.games.departments.game import Departments
from marl_llm.games.departments.world import TOWNS, TRADES, twisted
from marl_llm.games.faults import INFRA, NOTHING, Fault, Faults, Kind, spoiled
from marl_llm.games.needle_pool import NeedlePool
from marl_llm.games.relay_chain import DIGITS, RelayChain
from marl_llm.seeds import generator
from marl_llm.types import Move, Outcome

RATES = Faults(timeout=0.05, malformed=0.05, empty=0.1, truncated=0.1, wrong=0.2)


class Faulty(RelayChain):
    """A relay chain whose table fails."""

    def __init__(self, faults):
        super().__init__(level=1, faults=faults)
        self.met = []

    def use(self, call, step):
        self.met.append(step.fault)
        super().use(call, step)


def played(game, seed, **options):
    """The first executor looks up the key three times, if it may."""
    game.reset(seed, options=options or None)
    game.act("planner", Move(f"ask {game.chain[0]}"))
    for _ in range(3):
        if game.acting() == ("executor_0",):
            game.act("executor_0", Move(f"get {game.chain[0]}"))
    return game.void()


def test_each_fault_has_its_rate():
    drawn = Counter(
        fault.kind if fault else None
        for seed in range(2000)
        for turn in range(5)
        for fault in [RATES.draw(seed, 0, (1,), turn)]
    )
    for kind, rate in RATES.rates():
        assert drawn[kind] / 10_000 == pytest.approx(rate, abs=0.015)


def test_a_draw_hangs_on_seed_attempt_path_and_turn_alone():
    where = (3, 0, (0, 2), 1)
    sure = Faults(wrong=1.0)
    assert sure.draw(*where) == sure.draw(*where)
    others = [(4, 0, (0, 2), 1), (3, 1, (0, 2), 1), (3, 0, (2, 0), 1), (3, 0, (0, 2), 2)]
    seeds = {sure.draw(*each).seed for each in [where, *others, (3, 0, (), 1), (3, 0, (0,), 1)]}
    assert len(seeds) == 7
    assert Faults().draw(*where) is None


@pytest.mark.parametrize("rates", [{"timeout": -0.1}, {"wrong": 2}, {"empty": 0.6, "wrong": 0.6}])
def test_rates_that_are_none_are_refused(rates):
    with pytest.raises(GameError):
        Faults(**rates)


def test_spoiled_text():
    text = "0123456789" * 10
    assert spoiled(text, None) == spoiled(text, Fault(Kind.WRONG, 1)) == text
    assert spoiled(text, Fault(Kind.EMPTY, 1)) == ""
    cut = spoiled(text, Fault(Kind.TRUNCATED, 1))
    assert text.startswith(cut)
    assert 10 <= len(cut) <= 60
    assert spoiled(text, Fault(Kind.TRUNCATED, 2)) != cut


@pytest.mark.parametrize("kind", list(INFRA))
def test_an_infra_fault_voids_the_episode_at_once(kind):
    game = Faulty(Faults(**{kind.value: 1.0}))
    reason = played(game, 0)
    assert reason == (f"attempt 0: the get of executor_0 in its turn 1 {INFRA[kind]}")
    assert game.acting() == ()
    assert game.met == []
    assert game.outcomes()["planner"] is game.outcomes()["executor_0"] is Outcome.TRUNCATED
    assert game.outcomes()["executor_1"] is Outcome.ABSENT
    assert all(game.truncations.values()) and not any(game.terminations.values())
    assert not game.take_rewards()
    game.reset(1)
    assert game.void() is None


def test_a_void_round_ends_before_its_other_moves():
    game = Faulty(Faults(timeout=1.0))

    def read(call, action, before=game.read):
        if action == "both":
            return Ask((("executor", "A"), ("executor", "B")))
        return before(call, action)

    game.read = read
    game.reset(0)
    game.act("planner", Move("both"))
    game.act("executor_0", Move("get A"))
    game.act("executor_1", Move("report 1"))
    assert game.void() is not None
    assert game.call_of("executor_1").report is None
    assert not game.take_rewards()


def test_another_attempt_draws_other_faults():
    game = Faulty(Faults(timeout=0.5))
    voids = {(seed, n): played(game, seed, attempt=n) for seed in range(30) for n in range(3)}
    assert voids == {key: played(game, key[0], attempt=key[1]) for key in voids}
    assert all(reason is None or f"attempt {n}" in reason for (_, n), reason in voids.items())
    ways = {tuple(voids[seed, n] is None for n in range(3)) for seed in range(30)}
    assert len(ways) > 2


def test_content_faults_reach_the_game_and_void_nothing():
    game = Faulty(Faults(empty=0.5, wrong=0.5))
    assert played(game, 0) is None
    assert {fault.kind for fault in game.met} <= {Kind.EMPTY, Kind.WRONG}
    assert len(game.met) == 3
    quiet = Faulty(Faults())
    played(quiet, 0)
    assert quiet.met == [None] * 3


def test_a_snapshot_keeps_the_attempt():
    game = Faulty(Faults(timeout=0.4))
    seed = next(s for s in range(99) if played(game, s, attempt=1) and not played(game, s))
    played(game, seed, attempt=1)
    state, reason = game.snapshot(), game.void()
    other = Faulty(Faults(timeout=0.4))
    other.restore(state)
    assert other.void() == reason
    assert other.acting() == ()


# The games whose tools can fail.

WITH_TOOLS = ("relay_chain", "needle_pool", "needle_crates", "departments", "phantom_search")
every_game = pytest.mark.parametrize("name", WITH_TOOLS)


def made(name, **rates):
    """A game as a configuration makes it."""
    faults = {"_target_": "marl_llm.games.faults.Faults", **rates}
    return catalog.build(name, {"level": 2, "faults": faults})


def solved(name, seed=0, attempt=0, **rates):
    """What the agents saw in an episode of the solver's, and the game at its end."""
    game, seen = made(name, **rates), []
    game.reset(seed, options={"attempt": attempt})
    while game.acting():
        agent = game.acting()[0]
        seen.append(game.observation(agent).text)
        rng = generator(seed, agent, len(seen))
        game.act(agent, Move(Solver().act(game, agent, rng)))
    return seen, game


@every_game
def test_an_infra_fault_of_a_real_game_ends_it_and_another_attempt_may_not_have_it(name):
    voids = [
        [solved(name, seed, attempt, timeout=0.4)[1].void() for attempt in range(4)]
        for seed in range(4)
    ]
    flat = [void for row in voids for void in row]
    assert None in flat and any(flat)
    assert all("timed out" in void for void in flat if void)
    assert any(row[0] and None in row for row in voids), "a later attempt goes well"
    game = solved(name, malformed=1.0)[1]
    assert not any(game.take_rewards().values())
    assert game.outcomes()["planner"] is Outcome.TRUNCATED


@every_game
@pytest.mark.parametrize("kind", ["empty", "truncated", "wrong"])
def test_a_content_fault_of_a_real_game_is_read_and_voids_nothing(name, kind):
    changed = 0
    for seed in range(5):
        plain, spoilt = solved(name, seed), solved(name, seed, **{kind: 1.0})
        assert spoilt[1].void() is None
        changed += plain[0] != spoilt[0]
        assert spoilt[0] == solved(name, seed, **{kind: 1.0})[0]
    assert changed


@every_game
def test_the_solver_copes_with_some_content_faults(name):
    wins = sum(
        solved(name, seed, empty=0.1, truncated=0.1)[1].outcomes()["planner"] is Outcome.WIN
        for seed in range(20)
    )
    assert wins >= 15


def looked(fault, remarks=0):
    """What an executor of a relay chain reads after a look that met this fault."""
    game = RelayChain(level=3, remarks=remarks, faults=Faults(**({fault: 1.0} if fault else {})))
    game.reset(3)
    key = game.chain[0]
    game.act("planner", Move(f"ask {key}"))
    game.act("executor_0", Move(f"get {key}"))
    return game, key, game.observation("executor_0")


def test_what_a_faulty_page_of_a_relay_chain_says():
    for fault in ("empty", "truncated"):  # a single symbol has no first part
        _, key, seen = looked(fault)
        assert f"You looked up {key}. Its page: {NOTHING}." in seen.text
        assert seen.brief == f"{key} ?"
    game, key, seen = looked("wrong")
    told = seen.brief.split()[-1]
    assert told != game.links[key]
    assert (told in DIGITS) == (game.links[key] in DIGITS), "of the same kind"
    assert f"Its page: {told}." in seen.text
    game, key, seen = looked("truncated", remarks=30)
    words, whole = seen.brief.split()[1:], [game.links[key], *game.beside[key].split()]
    assert 3 <= len(words) <= 18
    assert words == whole[: len(words)]


def test_what_a_faulty_lock_shows():
    for fault in ("empty", "truncated", "wrong"):
        game = NeedlePool(level=3, faults=Faults(**{fault: 1.0}))
        game.reset(0)
        game.act("planner", Move("open A"))
        game.act("executor_0", Move("inspect"))
        seen = game.observation("executor_0")
        key = game.solve(game.call_of("executor_0"), generator(0)).removeprefix("key ")
        if fault == "wrong":
            assert seen.brief.split()[-1] in set(game.keys) - {key}
        else:
            assert seen.brief.endswith(" ?") and NOTHING in seen.text


def test_what_faulty_tables_say():
    answers = {}
    for fault in (None, "empty", "truncated", "wrong"):
        game = Departments(level=3, faults=Faults(**({fault: 1.0} if fault else {})))
        game.reset(0)
        game.act("planner", Move("ask pay: all"))
        game.act("clerk_0", Move("sql: SELECT * FROM wages"))
        (note,) = game.call_of("clerk_0").notes
        answers[fault] = note.text
        assert note.answered == (fault != "empty")
    assert answers["empty"] == NOTHING
    assert answers[None].startswith(answers["truncated"])
    assert len(answers["truncated"]) < len(answers[None])
    right, wrong = (answers[fault].split() for fault in (None, "wrong"))
    assert len(right) == len(wrong) and right != wrong


def test_twisted_tables_keep_their_form():
    text = "w12 welder 2100; w31 null 0; w12 riga 12345678901234567890123"
    other = twisted(text, 1)
    assert other == twisted(text, 1) != twisted(text, 2)
    values = list(zip(re.findall(r"\w+", text), re.findall(r"\w+", other), strict=True))
    assert [was for was, now in values if was == now] == ["null"]
    codes = [(was, now) for was, now in values if was.isalnum() and not was.isalpha()]
    assert all(len(was) == len(now) for was, now in codes)
    assert values[0] == values[6], "one value stays one value"
    assert values[1][1] in TRADES and values[7][1] in TOWNS
    assert values[0][1][0] == values[3][1][0] == "w"
