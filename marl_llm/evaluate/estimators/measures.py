"""How good credit is, where the truth is known.

    pairs      of two turns of a group with unlike true credit, how often they are ranked right
    leak       mean |â| on turns that cannot matter, over that on turns that can; 1 = broadcast
    cosine     between the policy gradient that a group implies and the true one; mean over groups
    bias, sd   of â per (state, action), after the best common scale, in units of the true credit
    sign       share of turns with true credit whose sign is right; ½ = no claim
    dummy      mean |credit| of agents that cannot matter, over that of the others; 1 = as much

Each is a function of sums over groups, so that one bootstrap over groups gives all intervals.
Copies of a decision (a shared trunk) are measured once, with the sum of their credit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from marl_llm.credit.batch import Credit, TurnBatch, per_token
from marl_llm.credit.segments import Array, cells, sums
from marl_llm.credit.truth.sample import Sample
from marl_llm.evaluate.statistics import Interval
from marl_llm.seeds import generator

MEASURES = ("pairs", "leak", "cosine", "bias", "sd", "sign", "dummy")
RESAMPLES = 1000
ENOUGH = 500_000  # numbers in a bootstrap; measures of very many sums have fewer resamples
TIE = 1e-9  # of the largest |â|: credits closer than this are equal but for rounding


def of_turns(credit: Credit, batch: TurnBatch) -> Array:
    """What moves the choice of each turn: its weight times the credit of the token that chooses.

    In a `Sample` that is the first token of a turn; the others follow from it, and so have no
    gradient.
    """
    return credit.weight * per_token(credit, batch)[batch.offsets[:-1]]


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What credit is measured against. It hangs on the sample only; made by `yardstick`."""

    sample: Sample
    rows: Array  # [R] int: the turns that are measured, copies left out
    group: Array  # [R] int: 0..G-1
    better: Array  # [pairs] int: of each pair the one with more true credit, among the R
    worse: Array  # [pairs] int
    direction: Array  # [blocks, A]: the exact policy gradient
    block: Array  # [R] int: whose probabilities a turn moves; -1 = it cannot matter
    cell: Array  # [R] int: (state, action)
    dummy: Array  # [R] bool: turns of agents that cannot matter
    draws: Array  # [resamples, G]: how often each group is drawn

    @property
    def truth(self) -> Array:
        """Exact credit of the turns that are measured, [R]."""
        return self.sample.advantage[self.rows]


def yardstick(sample: Sample, seed: int, resamples: int = RESAMPLES) -> Yardstick:
    """Prepare a sample.

    The gradient is that of a table of logits, a row for each of the process's knobs.

    Args:
        sample: turns with exact credit.
        seed: of the bootstrap; equal seeds draw equal groups, whatever is measured.
        resamples: bootstrap samples.
    """
    process, solution = sample.process, sample.solution
    rows = np.flatnonzero(~sample.copied)
    state, action = sample.state[rows], sample.action[rows]
    group, groups = cells((sample.batch.group[rows],), len(rows))
    better, worse = _pairs(sample.advantage[rows], group)
    block, blocks = process.knob, int(process.knob.max()) + 1
    # Σ_a π(a) A(a) (1[a = j] - π(j)) = π(j) A(j), since Σ_a π(a) A(a) = 0.
    flow = (solution.reach * solution.decisive)[:, None] * process.policy * solution.advantage
    agents = np.arange(len(process.agents))
    return Yardstick(
        sample=sample,
        rows=rows,
        group=group,
        better=better,
        worse=worse,
        direction=np.stack([sums(column, block, blocks) for column in flow.T], axis=1),
        block=np.where(solution.decisive[state], block[state], -1),
        cell=cells((process.key[state] if process.hidden else state, action), len(rows))[0],
        dummy=~np.isin(agents, process.agent[solution.decisive])[process.agent[state]],
        draws=generator(seed, "groups").multinomial(groups, [1 / groups] * groups, size=resamples),
    )


def _pairs(truth: Array, group: Array) -> tuple[Array, Array]:
    """All pairs of rows of one group with different truth: the greater one, and the other."""
    order = np.argsort(group, kind="stable")
    better, worse = [], []
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        more, less = np.nonzero(truth[members][:, None] > truth[members] + 1e-12)
        better.append(members[more])
        worse.append(members[less])
    return np.concatenate(better), np.concatenate(worse)


def measure(credit: Array, against: Yardstick) -> dict[str, Interval | None]:
    """All measures of an estimator's credit; None where there is nothing to measure.

    Args:
        credit: per turn of the sample, [N], on any scale.
        against: made of the same sample.
    """
    sample = against.sample
    moved = sums(credit, sample.node, len(credit))  # a decision with copies is moved by all of them
    said = moved[against.rows]
    said = np.where(np.abs(said) <= TIE * np.abs(said).max(initial=0.0), 0.0, said)
    errors = _error_sums(said, against)
    found = {
        "pairs": (_ranked(said, against), _ratio),
        "leak": (_leaked(np.abs(said), against.block < 0, against), _double_ratio),
        "cosine": (_aligned(said, against), _ratio),
        "bias": (errors, _bias),
        "sd": (errors, _spread),
        "sign": (_signed(said, against), _ratio),
        "dummy": (_dummies(moved, against), _double_ratio),
    }
    return {name: _interval(*found[name], against) for name in MEASURES}


Finish = Callable[[Array], Array]  # sums [R, k] -> values [R], not finite where undefined


def _interval(parts: Array, finish: Finish, against: Yardstick) -> Interval | None:
    """The value and its percentile bootstrap; None where it is undefined.

    Args:
        parts: sums of each group, [G, k].
        finish: what is made of their sums.
        against: who draws groups.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        value = finish(parts.sum(axis=0, keepdims=True))[0]
        drawn = finish(against.draws[: max(200, ENOUGH // parts.shape[1])] @ parts)
    if not np.isfinite(value):
        return None
    held = drawn[np.isfinite(drawn)]
    low, high = np.quantile(held if len(held) else [value], [0.025, 0.975])
    return Interval(float(value), min(low, value), max(high, value), len(parts))


def _ratio(parts: Array) -> Array:
    return parts[:, 0] / parts[:, 1]


def _double_ratio(parts: Array) -> Array:
    return (parts[:, 0] / parts[:, 1]) / (parts[:, 2] / parts[:, 3])


def _grouped(against: Yardstick, group: Array, *columns: Array) -> Array:
    """Sums of some columns in each group, [G, columns]."""
    groups = against.draws.shape[1]
    return np.stack([sums(column, group, groups) for column in columns], axis=1)


def _ranked(credit: Array, against: Yardstick) -> Array:
    apart = credit[against.better] - credit[against.worse]
    tie = np.abs(apart) <= TIE * np.abs(credit).max(initial=0.0)
    right = np.where(tie, 0.5, apart > 0)
    return _grouped(against, against.group[against.better], right, np.ones(len(right)))


def _leaked(size: Array, null: Array, against: Yardstick) -> Array:
    return _grouped(against, against.group, size * null, null, size * ~null, ~null)


def _aligned(credit: Array, against: Yardstick) -> Array:
    """Cosine of each group, and 1, [G, 2]; not a number where the true gradient is 0."""
    sample, groups = against.sample, against.draws.shape[1]
    rows = against.rows[against.block >= 0]
    policy = sample.process.policy[sample.state[rows]]
    score = (np.arange(policy.shape[1]) == sample.action[rows][:, None]) - policy
    blocks = len(against.direction)
    at = (against.group * blocks + against.block)[against.block >= 0]
    pushed = score * credit[against.block >= 0][:, None]
    gradient = np.stack([sums(column, at, groups * blocks) for column in pushed.T], axis=1)
    gradient = gradient.reshape(groups, -1)
    size = np.linalg.norm(gradient, axis=1)
    loud = size > TIE * size.max(initial=0.0)  # a group that says nothing points nowhere: 0
    along = gradient @ against.direction.ravel() / np.where(loud, size, 1.0)
    length = np.linalg.norm(against.direction)
    aligned = np.where(loud, along, 0.0) / (length if length > TIE else np.nan)
    return np.stack([aligned, np.ones(groups)], axis=1)


def _signed(credit: Array, against: Yardstick) -> Array:
    matters = against.truth != 0
    right = np.where(credit == 0, 0.5, np.sign(credit) == np.sign(against.truth))
    return _grouped(against, against.group, right * matters, matters)


def _dummies(credit: Array, against: Yardstick) -> Array:
    """As `_leaked`, the agents of episodes in place of turns; those that began in a copy left out.

    Args:
        credit: of the turns, [N], what copies got being at the turn that they are copies of.
        against: of the same sample.
    """
    agents = against.sample.batch.agents()
    turns = sums(np.ones(len(credit)), agents.of, agents.count)
    worth = np.abs(sums(credit, agents.of, agents.count) / turns)[agents.of]
    once = agents.before[against.rows] == 0
    dummy, worth = against.dummy & once, worth[against.rows]
    other = ~against.dummy & once
    return _grouped(against, against.group, worth * dummy, dummy, worth * other, other)


def _error_sums(credit: Array, against: Yardstick) -> Array:
    """Per group and cell: their number, Σ â, Σ â², Σ A, Σ â A, [G, 5 · cells]."""
    groups, count = against.draws.shape[1], int(against.cell.max(initial=-1)) + 1
    at, truth = against.group * count + against.cell, against.truth
    columns = (np.ones(len(credit)), credit, credit**2, truth, credit * truth)
    parts = [sums(column, at, groups * count).reshape(groups, count) for column in columns]
    return np.stack(parts, axis=1).reshape(groups, -1)


def _scaled(parts: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Number, scaled mean and scaled Σ â² of each cell, its truth; and Σ A² of all, [R, cells]."""
    n, total, squares, truth, product = np.moveaxis(parts.reshape(len(parts), 5, -1), 1, 0)
    scale = product.sum(axis=1, keepdims=True) / squares.sum(axis=1, keepdims=True)
    held = np.maximum(n, 1)
    exact = truth / held
    return n, scale * total / held, scale**2 * squares, exact, (n * exact**2).sum(axis=1)


def _bias(parts: Array) -> Array:
    """√(Σ n (c·mean â - A)² / Σ n A²) with c = Σ â A / Σ â²: 1 = knows nothing."""
    n, mean, _, exact, power = _scaled(parts)
    return np.sqrt((n * (mean - exact) ** 2).sum(axis=1) / power)


def _spread(parts: Array) -> Array:
    """√(Σ (c·â - c·mean â)² / Σ n A²), over the turns of each cell."""
    n, mean, squares, _, power = _scaled(parts)
    return np.sqrt(np.maximum(squares - n * mean**2, 0.0).sum(axis=1) / power)
