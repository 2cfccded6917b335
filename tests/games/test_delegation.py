"""Delegation: calls and their order, faults that end a call and no other, pay, nesting."""

import numpy as np
import pytest

from marl_llm.errors import GameError
from marl_llm.games.delegation import Ask, Delegation, Pay, Report, Use
from marl_llm.games.relay_chain import REMARKS, RelayChain, follow
from marl_llm.games.text_game import View
from marl_llm.types import Move, Outcome

PAY = Pay(format=0.1, correct=0.9, sub_format=0.1, sub_main=0.4, sub_own=0.5)


class Offices(Delegation):
    """A boss calls heads, who call clerks. A report is right if it says the task backwards."""

    def __init__(self, pay=PAY, turns=3, heads=2, clerks=3):
        super().__init__(
            name="offices",
            seats={"boss": 1, "head": heads, "clerk": clerks},
            turns={"boss": turns, "head": turns, "clerk": 2},
            pay=pay,
        )

    def rules(self):
        return "Say it backwards."

    def question(self, rng, options):
        return "abc"

    def read(self, call, action):
        word, _, rest = action.partition(" ")
        if word == "ask" and rest:
            role = "head" if call.role == "boss" else "clerk"
            return None if call.role == "clerk" else Ask(tuple((role, t) for t in rest.split(",")))
        if word == "say":
            return Report(rest)
        return Use("look") if word == "look" else None

    def use(self, call, step):
        call.notes.append("seen")

    def right(self, call):
        return float(call.report == call.task[::-1])

    def told(self, call):
        heard = "; ".join(f"{each.task}: {each.report or each.ended}" for each in call.calls)
        return View(f"{call.task} {len(call.notes)} {heard}", call.task, f"{call.task} {heard}")


@pytest.fixture
def offices():
    game = Offices()
    game.reset(0)
    return game


def act(game, agent, action):
    game.act(agent, Move(None, action) if isinstance(action, Outcome) else Move(action))


def test_calls_of_one_turn_work_side_by_side_and_report_in_their_order(offices):
    act(offices, "boss", "ask ab,cd")
    assert offices.acting() == ("head_0", "head_1")
    assert [offices.observation(a).parent for a in ("boss", "head_0", "head_1")] == [None, 0, 0]
    act(offices, "head_0", "look")
    act(offices, "head_1", "say dc")
    assert offices.acting() == ("head_0",)  # the caller waits for all
    act(offices, "head_0", "say ba")
    assert offices.acting() == ("boss",)
    assert offices.observation("boss").text == "abc 0 ab: ba; cd: dc"


def test_nested_calls_have_paths_parents_and_their_caller_waits_alone(offices):
    act(offices, "boss", "ask ab,cd")
    act(offices, "head_0", "ask x,y")  # turn 1
    act(offices, "head_1", "look")
    assert offices.acting() == ("clerk_0", "clerk_1", "head_1")
    assert [call.path for call in offices.all_calls()] == [(), (0,), (0, 0), (0, 1), (1,)]
    assert offices.observation("clerk_1").parent == 1
    act(offices, "clerk_0", "say x")
    act(offices, "clerk_1", "say z")
    act(offices, "head_1", "say dc")
    assert offices.acting() == ("head_0",)
    act(offices, "head_0", "say ba")
    act(offices, "boss", "say cba")
    assert offices.acting() == ()
    assert offices.outcomes() == {
        "boss": Outcome.WIN, "head_0": Outcome.WIN, "head_1": Outcome.WIN,
        "clerk_0": Outcome.WIN, "clerk_1": Outcome.LOSS, "clerk_2": Outcome.ABSENT,
    }  # fmt: skip


@pytest.mark.parametrize("fault", [Outcome.FORMAT, Outcome.LENGTH, Outcome.TIME, "nonsense"])
def test_a_fault_ends_its_call_and_no_other(offices, fault):
    act(offices, "boss", "ask ab,cd")
    act(offices, "head_0", fault)
    act(offices, "head_1", "say dc")
    ended = Outcome.ILLEGAL if fault == "nonsense" else fault
    assert offices.acting() == ("boss",)
    assert offices.observation("boss").text == f"abc 0 ab: {ended}; cd: dc"
    act(offices, "boss", "say cba")
    assert offices.outcomes()["head_0"] is ended
    paid = offices.take_rewards()
    assert paid["boss"] == pytest.approx(1.0)
    assert paid.get("head_0", 0.0) == 0.0
    assert paid["head_1"] == pytest.approx(1.0)


def test_pay_is_own_part_at_the_report_and_main_part_at_the_end(offices):
    act(offices, "boss", "ask ab,cd")
    act(offices, "head_0", "say ba")
    act(offices, "head_1", "say no")
    assert offices.take_rewards() == pytest.approx({"head_0": 0.6, "head_1": 0.1})
    act(offices, "boss", "say wrong")
    assert offices.take_rewards() == pytest.approx({"boss": 0.1})
    assert offices.outcomes()["boss"] is Outcome.LOSS


def test_a_price_is_paid_by_who_calls():
    game = Offices(Pay(price=0.05))
    game.reset(0)
    act(game, "boss", "ask ab")
    act(game, "head_0", "ask x,y")
    act(game, "clerk_0", "say x")
    act(game, "clerk_1", "say y")
    act(game, "head_0", "say ba")
    act(game, "boss", "say cba")
    got = game.take_rewards()
    assert (got["boss"], got["head_0"]) == pytest.approx((0.95, 0.9))


def test_a_planner_that_faults_gets_nothing_and_the_episode_ends(offices):
    act(offices, "boss", "ask ab")
    act(offices, "head_0", "say ba")
    act(offices, "boss", Outcome.FORMAT)
    assert offices.acting() == ()
    assert offices.outcomes()["boss"] is Outcome.FORMAT
    assert offices.take_rewards() == pytest.approx({"head_0": 0.6})


def test_turns_run_out_down_the_line():
    game = Offices(turns=1)
    game.reset(0)
    act(game, "boss", "ask ab")  # its only turn
    act(game, "head_0", "ask x")  # its only turn too
    act(game, "clerk_0", "look")
    act(game, "clerk_0", "look")  # the clerk's last: all three are at their end
    assert game.acting() == ()
    assert set(game.outcomes().values()) == {Outcome.LOSS, Outcome.ABSENT}
    assert game.take_rewards() == {}


def test_nobody_is_called_beyond_the_seats(offices):
    assert offices.accepts("boss", "ask a,b")
    assert not offices.accepts("boss", "ask a,b,c")
    act(offices, "boss", "ask a")
    act(offices, "head_0", "say a")
    assert not offices.accepts("boss", "ask b,c")
    assert offices.accepts("boss", "ask b")


def test_of_those_who_call_in_one_round_the_first_by_path_gets_the_last_agents(offices):
    act(offices, "boss", "ask ab,cd")
    act(offices, "head_1", "ask z,w")  # moves first, and is the second by its path
    act(offices, "head_0", "ask x,y")
    assert [(c.agent, c.task) for c in offices.all_calls()[1:]] == [
        ("head_0", "ab"), ("clerk_0", "x"), ("clerk_1", "y"), ("head_1", "cd"), ("clerk_2", "z"),
    ]  # fmt: skip
    assert [offices.observation(f"clerk_{k}").parent for k in range(3)] == [2, 2, 1]


def test_without_a_worth_there_are_no_values_of_calls(offices):
    act(offices, "boss", "ask ab")
    with pytest.raises(GameError, match="give it a `worth`"):
        offices.call_values()


def test_uncalled_agents_know_nothing_and_cannot_act(offices):
    assert "not been called" in offices.observation("clerk_0").text
    with pytest.raises(GameError, match="cannot move"):
        act(offices, "clerk_0", "look")


def test_a_snapshot_in_the_middle_of_parallel_calls_goes_on(offices):
    act(offices, "boss", "ask ab,cd")
    act(offices, "head_0", Outcome.FORMAT)
    copy = Offices()
    copy.restore(offices.snapshot())
    for game in (offices, copy):
        act(game, "head_1", "say dc")
        act(game, "boss", "say cba")
    assert copy.outcomes() == offices.outcomes()
    assert copy.take_rewards() == pytest.approx(offices.take_rewards())


def test_pay_below_zero_is_refused():
    with pytest.raises(GameError, match=r"pay\.price"):
        Pay(price=-0.1)


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("solo", [False, True])
@pytest.mark.parametrize("remarks", [0, 5])
def test_the_solver_follows_every_chain(level, solo, remarks):
    game = RelayChain(level=level, calls=6, solo=solo, remarks=remarks)
    rng = np.random.default_rng(0)
    for seed in range(50):
        game.reset(seed)
        while game.acting():
            agent = game.acting()[0]
            action = game.solve(game.call_of(agent), rng)
            assert action in game.legal(agent)
            act(game, agent, action)
        assert game.right_answer() == 1.0


def test_worth_of_calls_is_all_or_nothing_along_the_chain():
    game = RelayChain(level=5, calls=6)
    game.reset(1)
    rng = np.random.default_rng(0)
    while game.acting():
        agent = game.acting()[0]
        act(game, agent, game.solve(game.call_of(agent), rng))
    links = len(game.chain)
    assert game.worth(frozenset(range(links))) == 1.0
    assert [game.worth(frozenset(range(links)) - {i}) for i in range(links)] == [0.0] * links
    values = game.call_values()
    assert list(values) == [f"executor_{i}" for i in range(links)]
    assert [each.shapley for each in values.values()] == pytest.approx([1 / links] * links)
    assert [each.left_out for each in values.values()] == [1.0] * links


def test_a_chain_is_preserved_by_asking_where_the_reports_have_led():
    game = RelayChain(level=5, calls=6)
    game.reset(1)
    start, second = game.chain[:2]
    other = next(key for key in game.keys if key not in (start, second))
    for key, report in ((start, second), (other, "5"), (second, other), (second, "7")):
        act(game, "planner", f"ask {key}")
        act(game, game.acting()[0], f"report {report}")
    planner, *calls = game.all_calls()
    assert game.preserved(planner) is None
    # The reports lead to the second key, until its own leads on: to the other key and to 5.
    assert [game.preserved(call) for call in calls] == [True, False, True, False]
    assert game.has_preserved and game.has_worth
    assert not Offices().has_preserved and not Offices().has_worth


def test_links_in_a_circle_end():
    assert follow({"A": "B", "B": "A"}, "A") == "A"
    assert follow({"A": None}, "A") == "A"


def test_an_executor_is_told_its_key_alone():
    seen = set()
    for seed in range(200):
        game = RelayChain()
        game.reset(seed)
        act(game, "planner", "ask C")
        seen.add(game.observation("executor_0").text)
    assert len(seen) == 1


def test_a_page_says_first_where_its_key_leads_and_then_so_many_remarks():
    game, plain = RelayChain(remarks=4), RelayChain()
    for each in (game, plain):
        each.reset(5)
        act(each, "planner", "ask C")
        act(each, "executor_0", "get C")
    task, symbol, *words = game.observation("executor_0").brief.split()
    assert (task, symbol, len(words)) == ("C", game.links["C"], 4)
    assert set(words) <= set(REMARKS)
    assert plain.links == game.links
    assert plain.observation("executor_0").brief == f"C {symbol}"


def test_one_agent_keeps_all_pages_and_a_planner_sees_none():
    alone, team = RelayChain(remarks=4, solo=True), RelayChain(remarks=4)
    for each in (alone, team):
        each.reset(5)
    for key in "CDE":
        act(alone, "planner", f"get {key}")
    for number, key in enumerate("CDE"):
        act(team, "planner", f"ask {key}")
        act(team, f"executor_{number}", f"report {team.links[key]}")
    assert len(alone.observation("planner").brief.split()) == 1 + 3 * 5
    assert len(team.observation("planner").brief.split()) == 1 + 3
