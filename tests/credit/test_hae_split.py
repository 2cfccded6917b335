"""HAE split across policies, on a small team whose every episode is enumerated.

A planner has two turns. In the first it calls one executor or two side by side, in the second it
calls one or ends. An executor takes one turn or two: it goes on, or reports. There is chance in
what every action does. Each policy's learner gets thin records, and its gradient,

    Σ_episodes p(episode) · Σ_t γ^t · ∇ log π(t) · A(t)   over its own turns,

is compared with the exact one of the return, which automatic differentiation gives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from marl_llm.annotate.delegation_values import course, goes_on
from marl_llm.credit import assign
from marl_llm.credit.calls import callers
from marl_llm.credit.columns import from_episodes, turns_of
from marl_llm.credit.hae import HAE
from marl_llm.credit.hae_split import SIGNALS, HAESplit
from marl_llm.errors import ConfigError
from marl_llm.store.codec import encode
from marl_llm.store.episodes import thin
from marl_llm.types import Episode, Observation, Turn

STATES, TASKS, CALL_TURNS = 2, 2, 2
STAYS, REPORTS = 0, 1
POLICIES = ("planner", "executor")
SHAPES = {"planner": (2, STATES), "executor": (2, 2, TASKS, CALL_TURNS, STATES)}  # then [2] actions


@dataclass(frozen=True)
class Played:
    """One turn, and what only the task knows of it."""

    turn: Turn
    cell: tuple[int, ...]  # of the policy's table
    action: int
    state: str  # all that decides what is to come


@dataclass(frozen=True, eq=False)
class Team:
    """All episodes of the task and the policies' tables."""

    episodes: list[Episode]
    chance: np.ndarray  # [E]: of the episode, the policies' share left out
    played: list[list[Played]]
    logits: dict[str, np.ndarray]


def turn_of(role, number, parent, state, reward):
    """A turn with one token, whose texts and ids no other policy may see."""
    agent = role if role == "planner" else f"executor_{number}"
    observation = Observation(agent, role, f"{role} saw {state}", "", None, state, parent)
    return Turn(
        observation, role, role, (7,), (8,), (-0.5,), ((0, 0, 1),), f"{role} said", f"{role} did",
        None, None, reward, 0.0, parent,
    )  # fmt: skip


def enumerated(seed, paid):
    """A task at random; `paid` are the roles that get rewards."""
    rng = np.random.default_rng(seed)
    move = rng.dirichlet(0.3 * np.ones(STATES), size=(TASKS, 2, STATES))
    of_executor = rng.normal(size=(TASKS, 2, STATES, STATES)) * ("executor" in paid)
    of_planner = 5.0 * rng.normal(size=(2, STATES, 2)) * ("planner" in paid)
    start = rng.dirichlet(np.ones(STATES))
    found: list[tuple[float, list[Played]]] = []

    def plan(k, state, chance, played, agents):
        if k == 2:
            found.append((chance, played))
            return
        for choice in range(2):
            told = turn_of("planner", 0, None, f"{k} {state}", of_planner[k, state, choice])
            then = [*played, Played(told, (k, state), choice, f"{k} {state}")]
            tasks = ((0,), (0, 1))[choice] if k == 0 else ((0,), ())[choice]
            calls = [(agents + n, task, 0) for n, task in enumerate(tasks)]
            work((k, choice), len(then) - 1, calls, [], state, chance, then, agents + len(tasks))

    def work(at, parent, queue, again, state, chance, played, agents):
        """The queue's first call has a turn; who goes on comes again in the next round."""
        if not queue and not again:
            plan(at[0] + 1, state, chance, played, agents)
            return
        if not queue:
            work(at, parent, again, [], state, chance, played, agents)
            return
        (agent, task, turns), *rest = queue
        waiting = [call[1:] for call in (*rest, *again)]
        whole = f"{at} {task} {turns} {state} {len(rest)} {waiting}"
        for action, then in product(range(2), range(STATES)):
            reward = of_executor[task, action, state, then]
            turn = turn_of("executor", agent, parent, f"{at} {task} {turns} {state}", reward)
            cell = (*at, task, turns, state)
            goes = action == STAYS and turns + 1 < CALL_TURNS
            later = [*again, (agent, task, turns + 1)] if goes else again
            p = chance * move[task, action, state, then]
            more = [*played, Played(turn, cell, action, whole)]
            work(at, parent, rest, later, then, p, more, agents)

    for state in range(STATES):
        plan(0, state, start[state], [], 0)
    episodes = [
        Episode(number, 0, "team", 0, 0, tuple(each.turn for each in played), {}, {}, {}, True)
        for number, (_, played) in enumerate(found)
    ]
    return Team(
        episodes,
        np.array([chance for chance, _ in found]),
        [played for _, played in found],
        {policy: rng.normal(size=(*SHAPES[policy], 2)) for policy in POLICIES},
    )


@pytest.fixture(scope="module", params=["paid to all", "paid to the planner"])
def team(request):
    return enumerated(1, POLICIES if request.param == "paid to all" else ("planner",))


@cache
def own(team, policy):
    """The policy's turns: what was played, episode and number of each."""
    rows = [
        (each, e, number)
        for e, played in enumerate(team.played)
        for number, each in enumerate(played)
        if each.turn.policy == policy
    ]
    played, episode, number = zip(*rows, strict=True)
    return played, np.array(episode), np.array(number)


@cache
def told(team):
    """The tables, the log-prob of each policy's turns, and the probability of each episode."""
    logits = {k: torch.tensor(v, requires_grad=True) for k, v in team.logits.items()}
    total, each = torch.zeros(len(team.chance), dtype=torch.float64), {}
    for policy in POLICIES:
        played, episode, _ = own(team, policy)
        cells = tuple(np.array([p.cell for p in played]).T)
        chosen = (*cells, [p.action for p in played])
        each[policy] = logits[policy].log_softmax(-1)[chosen]
        total = total.index_add(0, torch.as_tensor(episode), each[policy])
    return logits, each, torch.as_tensor(team.chance) * total.exp()


def exact_gradients(team, gamma):
    """∇J of both tables, J = E Σ_t γ^t r_t over the turns of anybody."""
    logits, _, probability = told(team)
    returns = [
        sum(gamma**t * each.turn.reward for t, each in enumerate(played)) for played in team.played
    ]
    total = (probability * torch.tensor(returns, dtype=torch.float64)).sum()
    grads = torch.autograd.grad(total, [logits[p] for p in POLICIES], retain_graph=True)
    return {policy: grad.numpy() for policy, grad in zip(POLICIES, grads, strict=True)}


@cache
def exact_values(team, rewards, gamma):
    """V of every turn given all that decides what is to come, a list per episode."""
    probability = told(team)[2].detach().numpy()
    sums: dict[str, tuple[float, float]] = {}
    for played, p in zip(team.played, probability, strict=True):
        to_go = course([each.turn for each in played], rewards, gamma).to_go
        for each, value in zip(played, to_go, strict=True):
            total, weight = sums.get(each.state, (0.0, 0.0))
            sums[each.state] = total + p * value, weight + p
    return [
        [sums[each.state][0] / sums[each.state][1] for each in played] for played in team.played
    ]


def batch_of(team, policy, values, rewards, gamma):
    """What the policy's learner would have: thin records, and the signals with exact values."""
    records = [thin(episode, policy) for episode in team.episodes]
    columns = {"value": [], "value_behind": [], "span": [], "reward_others": []}
    for record, value in zip(records, values, strict=True):
        found = course(record.turns, rewards, gamma)
        for number, turn in enumerate(record.turns):
            if turn.policy == policy:
                then = found.ahead[number]
                columns["value"].append(value[number])
                columns["value_behind"].append([*value, 0.0][then])
                columns["span"].append(float(then - number))
                columns["reward_others"].append(found.others[number])
    signals = {name: np.array(column) for name, column in columns.items()}
    return from_episodes(records, policy).with_signals(signals)


def found_gradient(team, policy, batch, rule):
    """What the policy's gradient sums up to with the rule's credit."""
    logits, each, probability = told(team)
    _, episode, number = own(team, policy)
    advantage = assign(rule, batch).advantage
    weight = probability.detach().numpy()[episode] * rule.gamma ** number.astype(float)
    total = (torch.as_tensor(weight * advantage) * each[policy]).sum()
    return torch.autograd.grad(total, logits[policy], retain_graph=True)[0].numpy()


@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_each_policys_gradient_is_exact_with_exact_values(team, gamma):
    """Of what all earn; and of each one's own pay, where nobody but the planner is paid."""
    exact = exact_gradients(team, gamma)
    paid = any(turn.reward for turn in turns_of(team.episodes, "executor"))
    for rewards, policy in product(("team",) if paid else ("team", "own"), POLICIES):
        batch = batch_of(team, policy, exact_values(team, rewards, gamma), rewards, gamma)
        for lam_turn, lam_segment in [(1.0, 1.0), (1.0, 0.95), (0.3, 0.6), (0.0, 0.0)]:
            rule = HAESplit(gamma=gamma, lam_turn=lam_turn, lam_segment=lam_segment, whiten=False)
            found = found_gradient(team, policy, batch, rule)
            assert np.abs(exact[policy]).max() > 0.01
            np.testing.assert_allclose(found, exact[policy], atol=1e-10, err_msg=policy)


def test_with_rewards_of_their_own_the_planner_learns_its_own_return(team):
    """Not that of all: with `own` an executor's pay is none of the planner's business."""
    silent = replace(
        team,
        played=[
            [
                replace(each, turn=replace(each.turn, reward=0.0))
                if each.turn.policy == "executor"
                else each
                for each in played
            ]
            for played in team.played
        ],
    )
    exact = exact_gradients(silent, 1.0)["planner"]
    batch = batch_of(team, "planner", exact_values(team, "own", 1.0), "own", 1.0)
    found = found_gradient(team, "planner", batch, HAESplit(whiten=False))
    np.testing.assert_allclose(found, exact, atol=1e-10)


def test_the_planners_values_must_be_right_for_the_executors_and_need_not_for_itself(team):
    exact, values = exact_gradients(team, 1.0), exact_values(team, "team", 1.0)
    error = np.random.default_rng(4).normal(size=SHAPES["planner"])
    wrong = [
        [
            value + error[each.cell] if each.turn.policy == "planner" else value
            for each, value in zip(played, mine, strict=True)
        ]
        for played, mine in zip(team.played, values, strict=True)
    ]
    rule = HAESplit(lam_turn=1.0, lam_segment=1.0, whiten=False)
    for policy, is_exact in (("planner", True), ("executor", False)):
        batch = batch_of(team, policy, wrong, "team", 1.0)
        off = np.abs(found_gradient(team, policy, batch, rule) - exact[policy]).max()
        assert (off < 1e-10) == is_exact
        assert is_exact or off > 0.01


def test_no_text_and_no_token_of_the_other_policy_is_in_what_a_learner_gets(team):
    for policy, other in (POLICIES, POLICIES[::-1]):
        for episode in team.episodes[::50]:
            body = encode(thin(episode, policy))
            for words in ("saw", "said", "did"):
                assert f"{other} {words}".encode() not in body
                assert f"{policy} {words}".encode() in body
            others = [t for t in thin(episode, policy).turns if t.policy == other]
            assert not any(t.prompt_ids or t.ids or t.logprobs for t in others)


def turns(*rows):
    """Turns of (agent, parent, reward)."""
    out = []
    for agent, parent, reward in rows:
        seen = Observation(agent, agent.partition("_")[0], "", "", None, "", parent)
        none = ((), (), (), (), "", None, None, None)
        out.append(Turn(seen, "main", "self", *none, reward, 0.0, parent))
    return out


TREE = turns(
    ("planner", None, 1.0),  # 0 calls two
    ("executor_0", 0, 2.0),  # 1 calls a helper
    ("executor_1", 0, 4.0),  # 2 reports
    ("helper_0", 1, 8.0),  # 3
    ("helper_0", 1, 16.0),  # 4 reports
    ("executor_0", 0, 32.0),  # 5 reports
    ("planner", None, 64.0),  # 6 calls one, and never comes back
    ("executor_2", 6, 128.0),  # 7
)


def test_who_goes_on_and_what_others_earn_until_then():
    assert goes_on(TREE) == [6, 5, 6, 4, 5, 6, 8, 8]
    # Executor 0 waits for its helper from 1 to 5, and executor 1 earns 4 meanwhile.
    assert course(TREE, "team", 1.0).others.tolist() == [62, 28, 56, 0, 0, 0, 128, 0]
    assert course(TREE, "team", 1.0).to_go.tolist() == [255, 254, 252, 248, 240, 224, 192, 128]
    own_returns = course(TREE, "own", 1.0)
    assert not own_returns.others.any()
    # 64; 32 + 64; 16 + 96; 8 + 112; 4 + 64; 2 + 96; 1 + 64.
    assert own_returns.to_go.tolist() == [65, 98, 68, 120, 112, 96, 64, 128]
    # Two turns later counts a quarter: 1 + 64/2^6; 128 + nothing.
    assert course(TREE, "own", 0.5).to_go[[0, 7]].tolist() == [2, 128]


def test_a_caller_that_does_not_wait():
    """The executor acts once more after its caller did: it hands on to the turn after that."""
    rows = [("planner", None, 0.0), ("executor_0", 0, 0.0), ("planner", None, 0.0),
            ("executor_0", 0, 0.0), ("planner", None, 0.0)]  # fmt: skip
    assert goes_on(turns(*rows)) == [2, 3, 4, 4, 5]


def plain(estimator, batch):
    """The same, turn by turn from behind, in every call by itself."""
    size, parent = len(batch), callers(batch)
    value, span, behind, others = (batch.signals[name] for name in SIGNALS)
    chains: dict[tuple[int, int, int], list[int]] = {}
    for row in np.argsort(batch.agent_turn, kind="stable").tolist():
        at = parent[row]
        caller = batch.turn[at] if at >= 0 else batch.signals.get("caller", [-1] * size)[row]
        chains.setdefault((batch.episode[row], batch.agent[row], caller), []).append(row)
    advantage = np.zeros(size)
    for rows in chains.values():
        next_value = next_advantage = 0.0
        for row in reversed(rows):
            called, last = batch.depth[row] > 0, row == rows[-1]
            ended = batch.terminated[row] and not called
            if last:
                next_value = 0.0 if ended or np.isnan(behind[row]) else behind[row]
            decay = estimator.gamma ** np.nan_to_num(span[row])
            gained = batch.reward[row] + np.nan_to_num(others[row])
            mine = gained + decay * next_value if np.isnan(value[row]) else value[row]
            told = not np.isnan(span[row] + others[row])
            told = told and (not last or ended or not np.isnan(behind[row]))
            error = gained + decay * next_value - mine if told else 0.0
            lam = estimator.lam_turn if called else estimator.lam_segment
            next_advantage = error + decay * lam * next_advantage
            next_value, advantage[row] = mine, next_advantage
    out = np.zeros(size)
    for role in np.unique(batch.role):
        rows = (batch.role == role) & (batch.lengths > 0)
        found = advantage[rows]
        if estimator.whiten:
            found = (found - found.mean()) / (found.std() + estimator.epsilon)
        out[rows] = found
    return out


PLAIN = {"hae_split": plain}


def test_worked_value(make_batch):
    # A planner with two turns (spans 3 and 1), and an executor's two turns in the first call.
    batch = make_batch(
        [1, 2, 3, 4],
        episode=[0] * 4,
        agent=[0, 1, 1, 0],
        signals={
            "value": [5, 1, 2, 3],
            "value_behind": [0, 0, 3, 9],
            "span": [3, 1, 1, 1],
            "reward_others": [5, 0, 0, 0],
        },
    )
    batch = replace(
        batch,
        turn=np.arange(4),
        parent=np.array([-1, 0, 0, -1]),
        depth=np.array([0, 1, 1, 0]),
    )
    rule = HAESplit(gamma=0.5, lam_turn=0.5, lam_segment=0.5, whiten=False)
    credit = rule.estimate(batch)
    # Executor: 3 + 3/2 - 2 = 5/2, and nothing of the planner's turn; 2 + 2/2 - 1 + 5/2 /4 = 21/8.
    # Planner: 4 - 3 = 1, its episode ended; 1 + 5 + 3/8 - 5 + 1/8 · 1/2 · 1 = 23/16.
    assert credit.advantage.tolist() == [23 / 16, 21 / 8, 5 / 2, 1]
    assert credit.targets.tolist() == [103 / 16, 29 / 8, 9 / 2, 4]


def test_turns_that_are_each_a_call_of_one_turn_are_haes_sub_goals(make_batch):
    """A planner whose calls take d turns is HAE's planner with segments of d + 1 turns."""
    rng = np.random.default_rng(2)
    reward, value = rng.normal(size=8), rng.normal(size=8)
    starts = np.array([0, 3, 4])
    whole = make_batch(
        reward,
        episode=[0] * 8,
        signals={
            "value": value,
            "value_high": value,
            "value_switch": value,
            "switch": np.isin(np.arange(8), starts).astype(float),
            "block": np.ones(8),
        },
    )
    options = {"gamma": 0.9, "lam_segment": 0.7, "whiten": False}
    expected = HAE(**options).estimate(whole).advantage[starts]
    span = np.diff([*starts, 8])
    others = [
        sum(0.9**j * reward[s + j] for j in range(1, d)) for s, d in zip(starts, span, strict=True)
    ]
    split = make_batch(
        reward[starts],
        episode=[0] * 3,
        signals={
            "value": value[starts], "value_behind": [0.0] * 3, "span": span,
            "reward_others": others,
        },
    )  # fmt: skip
    got = HAESplit(**options).estimate(split).advantage
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_each_role_is_whitened_by_itself(random_batch):
    batch = random_batch(np.random.default_rng(0))
    credit = HAESplit().estimate(batch)
    for role in np.unique(batch.role):
        mine = credit.advantage[(batch.role == role) & (batch.lengths > 0)]
        assert (mine.mean(), mine.std()) == pytest.approx((0.0, 1.0), abs=1e-6)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"hae_split.lam_segment"):
        HAESplit(lam_segment=2)
