"""Calls read from an episode, and what they say of a team, counted by hand and on real games."""

from marl_llm.agents.delegating import Solver
from marl_llm.games.needle_pool import NeedlePool
from marl_llm.games.relay_chain import RelayChain
from marl_llm.report.calls import Call, call_metrics, calls_of, is_delegation
from marl_llm.rollout.plans import Plan, seating
from marl_llm.rollout.play import play
from marl_llm.types import Episode, Move, Observation, Outcome, Turn

WIN, LOSS, ABSENT = Outcome.WIN, Outcome.LOSS, Outcome.ABSENT


def turn(agent, action, parent=None, fault=None, text="from F"):
    return Turn(
        observation=Observation(agent, agent.partition("_")[0], text, "", None, "k", parent),
        policy="main", player="self", prompt_ids=(), ids=(), logprobs=(), versions=(), reply="",
        action=None if fault else action, fault=fault, finish=None, reward=0.0, shaping=0.0,
        parent=parent,
    )  # fmt: skip


def episode(turns, outcomes, **returns):
    return Episode(
        id=0, attempt=0, game="relay", group=0, seed=0, turns=tuple(turns),
        seats=dict.fromkeys(outcomes, "self"), returns=returns, outcomes=outcomes, terminated=True,
    )  # fmt: skip


NESTED = episode(
    [
        turn("planner", "ask A B"),
        turn("helper_0", "ask C", parent=0),
        turn("helper_1", "get B", parent=0),
        turn("clerk_0", None, parent=1, fault=Outcome.FORMAT),
        turn("helper_1", "report 7", parent=0),
        turn("helper_0", "report 2", parent=0),
        turn("planner", "answer 7"),
    ],
    {"planner": WIN, "helper_0": LOSS, "helper_1": WIN, "clerk_0": Outcome.FORMAT},
    planner=1.0, helper_0=0.5, helper_1=1.0, clerk_0=0.0,
)  # fmt: skip
ALONE = episode(
    [turn("planner", "answer 3", text="from G")],
    {"planner": LOSS, "helper_0": ABSENT, "helper_1": ABSENT, "clerk_0": ABSENT},
)
PLAIN = episode([turn("player_0", "bet"), turn("player_1", "pass")], {"player_0": WIN})


def test_a_call_says_who_asked_whom_for_what_and_what_came_back():
    assert calls_of(NESTED) == [
        Call("helper_0", "planner", 0, (1, 5), "ask A B", "report 2", LOSS, 0.5),
        Call("helper_1", "planner", 0, (2, 4), "ask A B", "report 7", WIN, 1.0),
        Call("clerk_0", "helper_0", 1, (3,), "ask C", None, Outcome.FORMAT, 0.0),
    ]


def test_who_could_have_called_and_did_not_is_a_delegation_too():
    assert is_delegation(NESTED) and is_delegation(ALONE) and not is_delegation(PLAIN)
    assert calls_of(ALONE) == [] == calls_of(PLAIN)


def test_metrics_of_two_episodes_by_hand():
    assert call_metrics([NESTED, ALONE, PLAIN]) == {
        "rollout/planner/calls": 3 / 2,
        "rollout/planner/delegation_rate": 1 / 2,
        "rollout/planner/reports_right": 1 / 3,
        "rollout/planner/same_task_share": 2 / 3,  # ask A B twice, ask C once
    }


def test_what_needs_a_call_or_several_questions_is_left_out_without():
    assert call_metrics([PLAIN]) == {}
    assert call_metrics([ALONE]).keys() == {
        "rollout/planner/calls", "rollout/planner/delegation_rate"
    }  # fmt: skip
    assert "rollout/planner/same_task_share" not in call_metrics([NESTED, NESTED])


def played(game, episodes=20):
    solver = dict.fromkeys(game().roles.values(), "solver")
    players = seating(game().roles, solver)
    plans = [Plan(id=n, group=n, game="g", seed=n, players=players) for n in range(episodes)]
    return play(plans, {"g": game}, {"solver": Solver()}, {}, seed=0)


def test_the_solver_of_a_chain_calls_once_a_link_and_hears_the_truth():
    found = call_metrics(played(RelayChain))
    assert found["rollout/planner/delegation_rate"] == found["rollout/planner/reports_right"] == 1
    assert 1 < found["rollout/planner/calls"] < 3
    assert found["rollout/planner/same_task_share"] < 0.5


def test_calls_are_nested_as_the_game_says():
    game = NeedlePool(depth=2)
    (one,) = played(lambda: NeedlePool(depth=2), episodes=1)
    game.reset(0)
    for each in one.turns:
        game.act(each.observation.agent, Move(each.action, each.fault))
    told = {call.agent: call.caller.agent for call in game.all_calls()[1:]}
    assert {call.agent: call.caller for call in calls_of(one)} == told
    assert {"executor_0", "opener_0"} <= told.keys()


def test_one_agent_alone_makes_no_calls():
    assert call_metrics(played(lambda: RelayChain(solo=True))) == {}
