"""Episodes to columns."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from marl_llm.credit.calls import call_chains, nested_shares
from marl_llm.credit.columns import from_episodes, turns_of
from marl_llm.errors import EpisodeError
from marl_llm.store.episodes import thin
from marl_llm.types import Episode, Finish, Observation, Outcome, Turn


def turn(agent="player_0", policy="main", **more) -> Turn:
    """A turn of two tokens by default; `role` and `key` go to the observation."""
    observation = Observation(
        agent=agent,
        role=more.pop("role", "player"),
        text="",
        brief="",
        legal=None,
        key=more.pop("key", "start"),
    )
    ids = more.pop("ids", (5, 6))
    defaults = {
        "player": "self",
        "prompt_ids": (1, 2, 3),
        "ids": ids,
        "logprobs": tuple(-0.1 * (i + 1) for i in range(len(ids))),
        "versions": ((0, 0, len(ids)),),
        "reply": "",
        "action": "bet",
        "fault": None,
        "finish": Finish.STOP,
        "reward": 0.0,
        "shaping": 0.0,
    }
    return Turn(observation=observation, policy=policy, **(defaults | more))


def episode(turns, id=0, group=0, game="kuhn", terminated=True) -> Episode:
    agents = {t.observation.agent for t in turns}
    return Episode(
        id=id,
        attempt=0,
        game=game,
        group=group,
        seed=0,
        turns=tuple(turns),
        seats=dict.fromkeys(agents, "self"),
        returns=dict.fromkeys(agents, 0.0),
        outcomes=dict.fromkeys(agents, Outcome.DRAW),
        terminated=terminated,
    )


def test_columns_of_one_policy():
    episodes = [
        episode(
            [
                turn("player_0", reward=1.0, shaping=0.25, versions=((3, 0, 1), (4, 1, 2))),
                turn("player_1", policy=None, ids=(), versions=()),
                turn("player_0", key="later", action=None, ids=(7,)),
            ],
            id=8,
            group=2,
        ),
        episode(
            [turn("player_1", action="pass"), turn("player_0", ids=())],
            id=9,
            group=3,
            game="leduc",
            terminated=False,
        ),
    ]
    batch = from_episodes(episodes, "main")
    assert len(batch) == 4
    assert batch.group.tolist() == [2, 2, 3, 3]
    assert batch.episode.tolist() == [8, 8, 9, 9]
    assert [batch.name("agent", i) for i in batch.agent] == [
        "player_0", "player_0", "player_1", "player_0"
    ]  # fmt: skip
    assert batch.turn.tolist() == [0, 2, 0, 1]
    assert batch.agent_turn.tolist() == [0, 1, 0, 0]
    assert batch.reward.tolist() == [1.25, 0, 0, 0]
    assert batch.shaping.tolist() == [0.25, 0, 0, 0]
    assert batch.terminated.tolist() == [False, True, False, False]
    assert batch.truncated.tolist() == [False, False, True, True]
    assert batch.version.tolist() == [3, 0, 0, 0]
    assert batch.lengths.tolist() == [2, 1, 2, 0]
    np.testing.assert_allclose(batch.logprobs, [-0.1, -0.2, -0.1, -0.1, -0.2])
    # Same key, other game: another information state.
    assert batch.state_key.tolist() == [0, 1, 2, 2]
    assert [batch.name("state_key", i) for i in batch.state_key] == [
        "start", "later", "start", "start"
    ]  # fmt: skip
    assert [batch.name("action_key", i) for i in batch.action_key] == ["bet", "", "pass", "bet"]
    assert batch.names["policy"] == ("main",)
    assert batch.names["game"] == ("kuhn", "leduc")
    assert [t.observation.agent for t in turns_of(episodes, "main")] == [
        batch.name("agent", i) for i in batch.agent
    ]


def test_calls_by_another_policy_have_a_depth_and_no_parent_row():
    calls = episode(
        [
            turn("planner", role="planner"),
            turn("searcher_1", role="searcher", policy="small", parent=0),
            turn("reader_1", role="reader", parent=1),
            turn("checker_1", role="checker", parent=2),
        ]
    )
    planner = from_episodes([calls], "main")
    assert planner.depth.tolist() == [0, 2, 3]
    assert planner.parent.tolist() == [-1, -1, 1]
    assert planner.signals["caller"].tolist() == [-1, 1, 2]
    searcher = from_episodes([calls], "small")
    assert searcher.depth.tolist() == [1]
    assert searcher.parent.tolist() == [-1]
    assert searcher.signals["caller"].tolist() == [0]


def test_each_policy_knows_what_its_calls_weigh_in_the_tree():
    """A planner calls a and b; a calls two readers, b calls three, one of whom says nothing."""
    turns = [
        turn("planner", role="planner"),
        turn("a", role="executor", policy="middle", parent=0),
        turn("b", role="executor", policy="middle", parent=0),
        *(turn(f"r{n}", role="reader", policy="small", parent=1) for n in (0, 1, 1)),
        *(turn(f"r{n}", role="reader", policy="small", parent=2) for n in (2, 3)),
        turn("r4", role="reader", policy="small", parent=2, ids=()),
        turn("a", role="executor", policy="middle", parent=0),
    ]
    shares = {"main": [1.0], "middle": [0.5] * 3, "small": [0.25] * 6}
    for policy, share in shares.items():
        whole, other = episode(turns), thin(episode(turns, id=1), policy)
        batch = from_episodes([whole, other], policy)
        assert nested_shares(batch, call_chains(batch)).tolist() == 2 * share
        assert ("call_share" in batch.signals) == (policy != "main")
    together = from_episodes([episode([replace(t, policy="main") for t in turns])], "main")
    given = together.signals["call_share"]
    alone = replace(together, signals={"caller": together.signals["caller"]})
    assert nested_shares(alone, call_chains(alone)).tolist() == given.tolist()


def test_no_turn_of_this_policy_is_an_empty_batch():
    batch = from_episodes([episode([turn()])], "other")
    assert len(batch) == 0
    assert batch.offsets.tolist() == [0]
    assert len(from_episodes([], "main")) == 0


def test_two_episodes_with_one_id_are_refused():
    with pytest.raises(EpisodeError, match="same id"):
        from_episodes([episode([turn()]), episode([turn()])], "main")


def test_trap_of_log_probs_of_other_ids():
    # TRL#5224: ids that were decoded and encoded again. One too many here, one too few there: the
    # columns would be as long as they should be, and shifted.
    turns = [turn(logprobs=(-0.1, -0.2, -0.3)), turn(logprobs=(-0.1,))]
    with pytest.raises(EpisodeError, match="turn 0 of episode 0 has 2 ids and 3 log-probs"):
        from_episodes([episode(turns)], "main")


def test_a_bad_reward_is_named():
    with pytest.raises(EpisodeError, match="reward of turn 1 of episode 4 is nan"):
        from_episodes([episode([turn(), turn(reward=float("nan"))], id=4)], "main")


def test_seven_hundred_turns_are_a_matter_of_milliseconds():
    episodes = [episode([turn("player_0"), turn("player_1")] * 2, id=i) for i in range(175)]
    times = []
    for _ in range(5):
        start = time.perf_counter()
        from_episodes(episodes, "main")
        times.append(time.perf_counter() - start)
    assert min(times) < 0.02, "four times the aim of 5 ms, for a busy machine"
