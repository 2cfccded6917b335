"""Faults of tools: seeded, apart from each other, and no agent's loss where they are infra."""

from __future__ import annotations

from collections import Counter

import pytest

from marl_llm.errors import GameError
from marl_llm.games.delegation import Ask
from marl_llm.games.faults import INFRA, Fault, Faults, Kind, spoiled
from marl_llm.games.relay_chain import RelayChain
from marl_llm.types import Move, Outcome

RATES = Faults(timeout=0.05, malformed=0.05, empty=0.1, truncated=0.1, wrong=0.2)


class Faulty(RelayChain):
    """A relay chain whose table fails."""

    def __init__(self, faults):
        super().__init__(level=1)
        self.faults, self.met = faults, []

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
