"""HAE's gradients against the exact ones: a small two-level task, every episode enumerated.

Two states, two sub-goals, two actions, at most three turns, chance in transitions and rewards. The
policies are tables of logits, other ones for every turn, so that the parts of a cut episode can be
told apart. What is compared is

    Σ_episodes p(episode) · Σ_t γ^t · ∇ log π_part(t) · A_part(t)

with the gradient of J = Σ p · Σ_t γ^t r_t that automatic differentiation gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch

from marl_llm.credit.hae import HAE

STATES, GOALS, ACTIONS, TURNS, END = 2, 2, 2, 3, 2  # a state of 2 ends the episode
EXACT = {"atol": 1e-10, "rtol": 0.0}
PARTS = ("switch", "sub_goal", "action")
LAMBDAS = [(1.0, 1.0), (1.0, 0.95), (0.4, 0.7), (0.0, 0.0)]


@dataclass(frozen=True)
class Task:
    """Tables of the task and of the policies; all episodes, a row per turn."""

    gamma: float
    logits: dict[str, np.ndarray]  # switch [T, S, O], sub_goal [T, S, O], action [T, S, O, A]
    chance: np.ndarray  # [E]: of the episode, the policies' share left out
    rows: dict[str, np.ndarray]  # [N]: episode, time, state, before, switch, goal, action, reward

    @property
    def keys(self):
        """The index of each turn in the logits of each part, [N] each."""
        time, state = self.rows["time"], self.rows["state"]
        goal = self.rows["goal"]
        return {
            "switch": (time, state, self.rows["before"]),
            "sub_goal": (time, state),
            "action": (time, state, goal),
        }


def enumerated(seed, gamma):
    """A task at random, and all its episodes."""
    rng = np.random.default_rng(seed)
    move = rng.dirichlet(np.ones(STATES + 1), size=(STATES, ACTIONS))
    reward = rng.normal(size=(TURNS, STATES, ACTIONS, STATES + 1))
    start = rng.dirichlet(np.ones(STATES))
    episodes: list[tuple[float, list[tuple]]] = []

    def play(time, state, before, chance, turns):
        if time == TURNS or state == END:
            episodes.append((chance, turns))
            return
        choices = [(1, o) for o in range(GOALS)] + ([(0, before)] if time else [])
        for (switch, goal), action, then in product(choices, range(ACTIONS), range(STATES + 1)):
            turn = (time, state, before, switch, goal, action, reward[time, state, action, then])
            play(time + 1, then, goal, chance * move[state, action, then], [*turns, turn])

    for state in range(STATES):
        play(0, state, 0, start[state], [])
    names = ("time", "state", "before", "switch", "goal", "action", "reward")
    columns = zip(*(turn for _, turns in episodes for turn in turns), strict=True)
    rows = {name: np.array(column) for name, column in zip(names, columns, strict=True)}
    lengths = [len(turns) for _, turns in episodes]
    rows["episode"] = np.repeat(np.arange(len(episodes)), lengths)
    shapes = {"switch": (GOALS,), "sub_goal": (GOALS,), "action": (GOALS, ACTIONS)}
    return Task(
        gamma,
        {part: rng.normal(size=(TURNS, STATES, *shape)) for part, shape in shapes.items()},
        np.array([chance for chance, _ in episodes]),
        rows,
    )


@pytest.fixture(scope="module", params=[1.0, 0.8])
def task(request):
    return enumerated(3, request.param)


@pytest.fixture(scope="module")
def exact(task):
    return exact_gradient(task)


@pytest.fixture(scope="module")
def signals(task):
    return exact_signals(task)


def logprobs(task, logits):
    """Log-prob of what was chosen in each part, [N] each; 0 where nothing was to choose."""
    keys, rows = task.keys, task.rows
    free = torch.as_tensor(rows["time"] > 0)
    switched = torch.as_tensor(rows["switch"] == 1)
    beta = logits["switch"][keys["switch"]]
    switch = torch.where(switched, beta, -beta).sigmoid().log()
    goal = logits["sub_goal"].log_softmax(-1)[(*keys["sub_goal"], rows["goal"])]
    action = logits["action"].log_softmax(-1)[(*keys["action"], rows["action"])]
    return {
        "switch": torch.where(free, switch, 0.0),
        "sub_goal": torch.where(switched, goal, 0.0),
        "action": action,
    }


def told(task):
    """The log-probs of a task's own logits; and the probability of each episode, [E]."""
    logits = {k: torch.tensor(v, requires_grad=True) for k, v in task.logits.items()}
    each = logprobs(task, logits)
    episode = torch.as_tensor(task.rows["episode"])
    total = torch.zeros(len(task.chance), dtype=torch.float64)
    total = total.index_add(0, episode, sum(each.values()))
    return logits, each, torch.as_tensor(task.chance) * total.exp()


def discount(task):
    return task.gamma ** task.rows["time"].astype(float)


def exact_gradient(task):
    """∇J of the three tables."""
    logits, _, probability = told(task)
    paid = np.bincount(task.rows["episode"], discount(task) * task.rows["reward"])
    (probability * torch.as_tensor(paid)).sum().backward()
    return {part: logits[part].grad.numpy() for part in PARTS}


def mean(task, weight, *keys):
    """The return from a turn on, expected over all episodes given its keys and a weight, [N]."""
    rows = task.rows
    probability = told(task)[2].detach().numpy()[rows["episode"]] * weight
    to_go = np.zeros(len(probability))
    for time in reversed(range(TURNS)):  # the turns of an episode stand side by side
        here = np.flatnonzero(rows["time"] == time)
        later = np.minimum(here + 1, len(to_go) - 1)
        goes_on = (rows["episode"][later] == rows["episode"][here]) & (later > here)
        to_go[here] = rows["reward"][here] + task.gamma * goes_on * to_go[later]
    cell = np.ravel_multi_index(keys, (4,) * len(keys))
    total = np.bincount(cell, probability)
    return (np.bincount(cell, probability * to_go) / np.where(total > 0, total, 1.0))[cell]


def by(value, keys, wanted):
    """Values of turns looked up under other keys, [N]; 0 where there are none."""
    table = dict(zip(zip(*keys, strict=True), value.tolist(), strict=True))
    return np.array([table.get(key, 0.0) for key in zip(*wanted, strict=True)])


def exact_signals(task):
    """Every value that HAE reads, exactly."""
    rows = task.rows
    time, state, before, goal = (rows[n] for n in ("time", "state", "before", "goal"))
    ones, switched = np.ones(len(time)), rows["switch"].astype(float)
    low = mean(task, ones, time, state, goal)
    beta = 1.0 / (1.0 + np.exp(-task.logits["switch"][time, state, before]))
    return {
        "value": low,
        "value_high": mean(task, switched, time, state),
        "value_switch": mean(task, ones, time, state, before),
        "value_keep": by(low, (time, state, goal), (time, state, before)),
        "switch": switched,
        "switch_probability": np.where(time == 0, 1.0, beta),
    }


def as_batch(make_batch, task, signals, rows=slice(None), cut=()):
    """Turns of all episodes, a token for each of the three parts."""
    n = len(task.rows["time"][rows])
    return make_batch(
        task.rows["reward"][rows],
        episode=task.rows["episode"][rows],
        lengths=[3] * n,
        truncated=cut,
        signals={**{k: v[rows] for k, v in signals.items()}, "block": np.tile([0.0, 1, 2], n)},
    )


def found_gradient(task, credit, rows=slice(None)):
    """What the policies' gradients sum up to, with the credit of each part's token."""
    logits, each, probability = told(task)
    episode = task.rows["episode"][rows]
    weight = probability.detach().numpy()[episode] * discount(task)[rows]
    advantage = {
        part: credit.components[part].reshape(-1, 3)[:, place] for place, part in enumerate(PARTS)
    }
    loss = sum(
        (torch.as_tensor(weight * advantage[part]) * each[part][rows]).sum() for part in PARTS
    )
    loss.backward()
    return {part: logits[part].grad.numpy() for part in PARTS}


def off(found, exact):
    """The largest error of each part, as a share of its largest entry."""
    return {p: np.abs(found[p] - exact[p]).max() / np.abs(exact[p]).max() for p in PARTS}


@pytest.mark.parametrize("form", ["shipped", "theory"])
@pytest.mark.parametrize(("lam_turn", "lam_segment"), LAMBDAS)
def test_with_exact_values_all_three_gradients_are_exact(
    make_batch, task, exact, signals, form, lam_turn, lam_segment
):
    """For every λ, a boundary's bootstrap included."""
    rule = HAE(
        gamma=task.gamma, lam_turn=lam_turn, lam_segment=lam_segment, form=form, whiten=False
    )
    credit = rule.estimate(as_batch(make_batch, task, signals))
    found = found_gradient(task, credit)
    for part in PARTS:
        assert np.abs(exact[part]).max() > 1e-3
        np.testing.assert_allclose(found[part], exact[part], err_msg=part, **EXACT)


def wrong(task, signals, *names):
    """Values that are off by something that is known before the choice."""
    known = {
        "value": ("time", "state", "goal"),
        "value_high": ("time", "state"),
        "value_switch": ("time", "state", "before"),
        "value_keep": ("time", "state", "before"),
    }
    rng = np.random.default_rng(5)
    out = dict(signals)
    for name in names:
        error = rng.normal(size=(TURNS, STATES, GOALS)[: len(known[name])])
        out[name] = signals[name] + error[tuple(task.rows[key] for key in known[name])]
    return out


def gradient_with(make_batch, task, signals, **settings):
    rule = HAE(gamma=task.gamma, whiten=False, **settings)
    return found_gradient(task, rule.estimate(as_batch(make_batch, task, signals)))


def test_values_that_only_compare_may_be_wrong_and_those_that_stand_for_the_future_may_not(
    make_batch, task, exact, signals
):
    """At λ = 1: V^L and V^T may be anything; V^H ends every sub-goal, whatever λ is."""
    ones = {"lam_turn": 1.0, "lam_segment": 1.0}
    found = gradient_with(make_batch, task, wrong(task, signals, "value", "value_switch"), **ones)
    for part in PARTS:
        np.testing.assert_allclose(found[part], exact[part], err_msg=part, **EXACT)
    errors = off(gradient_with(make_batch, task, wrong(task, signals, "value_high"), **ones), exact)
    assert errors["sub_goal"] < 1e-10, "A^H runs on to the end of the episode"
    assert min(errors["switch"], errors["action"]) > 0.01
    errors = off(
        gradient_with(make_batch, task, wrong(task, signals, "value_high"), lam_segment=0.5), exact
    )
    assert min(errors.values()) > 0.01
    errors = off(
        gradient_with(make_batch, task, wrong(task, signals, "value"), lam_turn=0.5), exact
    )
    assert errors["action"] > 0.01
    assert max(errors["switch"], errors["sub_goal"]) < 1e-10
    errors = off(
        gradient_with(make_batch, task, wrong(task, signals, "value_keep"), form="theory"), exact
    )
    assert errors["switch"] > 0.01, "in theory the switch rests on two values alone"
    assert max(errors["sub_goal"], errors["action"]) < 1e-10


def test_whitening_stretches_the_three_gradients_by_three_factors(make_batch, task, exact, signals):
    """Each keeps its direction here, where everything is enumerated; their sum does not."""
    rule = HAE(gamma=task.gamma)
    credit = rule.estimate(as_batch(make_batch, task, signals))
    found = found_gradient(task, credit)
    factors = {}
    for part in PARTS:
        factors[part] = (found[part] * exact[part]).sum() / (exact[part] ** 2).sum()
        np.testing.assert_allclose(found[part], factors[part] * exact[part], atol=1e-10)
    assert max(factors.values()) / min(factors.values()) > 1.02


@pytest.mark.parametrize("form", ["shipped", "theory"])
@pytest.mark.parametrize(("lam_turn", "lam_segment"), LAMBDAS)
def test_of_an_episode_cut_short_the_turns_that_were_played_are_exact(
    make_batch, task, exact, signals, form, lam_turn, lam_segment
):
    """Play ends after two turns of three; their gradients are those of the whole task."""
    time, episode = task.rows["time"], task.rows["episode"]
    rows = np.flatnonzero(time < 2)
    cut = np.unique(episode[time == 2])
    # V of what comes: of the state behind the turn, with the sub-goal that is held there.
    then = np.append(signals["value_switch"][1:], 0.0)
    behind = np.where((time == 1) & np.isin(episode, cut), then, 0.0)
    batch = as_batch(make_batch, task, {**signals, "value_next": behind}, rows, cut)
    assert batch.truncated.sum() == len(cut)
    settings = {
        "gamma": task.gamma, "lam_turn": lam_turn, "lam_segment": lam_segment, "form": form
    }  # fmt: skip
    credit = HAE(**settings, whiten=False).estimate(batch)
    found = found_gradient(task, credit, rows)
    for part in PARTS:
        np.testing.assert_allclose(found[part][:2], exact[part][:2], err_msg=part, **EXACT)
    for truncation in ("same_state", "zero"):
        credit = HAE(**settings, whiten=False, truncation=truncation).estimate(batch)
        found = found_gradient(task, credit, rows)
        off_by = {part: np.abs(found[part][:2] - exact[part][:2]).max() for part in PARTS}
        assert min(off_by["action"], off_by["sub_goal"]) > 1e-3, truncation
        assert off_by["switch"] < 1e-10 if form == "theory" else off_by["switch"] > 1e-3
