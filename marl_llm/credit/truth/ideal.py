"""Signals as an ideal annotator would attach them, and then with errors of a known size.

What a signal would say if its annotator were perfect follows from the process: the exact value, the
exact hindsight ratio, the true role of a turn. `Noise` says how far from it the attached signal is.
So estimators are compared on what they make of their signals, not on who had the better judge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marl_llm.credit import checks, returns, tokens
from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.calls import call_chains, nested_shares
from marl_llm.credit.segments import Array, cells, chains, sums
from marl_llm.credit.truth.counterfactual import replayed
from marl_llm.credit.truth.hindsight import hindsight_ratios
from marl_llm.credit.truth.process import Process, Solution, as_known, returns_between
from marl_llm.credit.truth.sample import Sample

Signals = dict[str, Array]

CRITIQUES = 4  # of each step, behind "wrong_share"
PUSH = 4.0  # by how much a teacher's log-odds follow the advantage, per range of the return
EVIDENCE = 0.5  # "judge_credit" of a turn that helped
SCORE = 0.8  # "judge_score" above or below 1
STEP = 0.2  # "token_reward" above or below 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How far annotators are from the truth."""

    judge: float = 0.85  # probability that a label, a citation or an edge is right
    probe: float = 0.3  # sd of probed probabilities, in logits
    floor: float = 0.02  # a probe says at least this, and at most 1 minus this
    hindsight: float = 0.3  # sd of the log of a hindsight ratio
    critic: float = 0.0  # sd of the values of critics and progress models, in reward

    def __post_init__(self) -> None:
        checks.within("noise.judge", self.judge, 0.0, 1.0)
        checks.within("noise.floor", self.floor, 1e-9, 0.5)
        checks.within("noise.probe", self.probe, 0.0)
        checks.within("noise.hindsight", self.hindsight, 0.0)
        checks.within("noise.critic", self.critic, 0.0)


def annotate(sample: Sample, rng: np.random.Generator, noise: Noise | None = None) -> TurnBatch:
    """The batch of a sample with every signal that its process can offer.

    Args:
        sample: episodes that were drawn.
        rng: of the annotators' errors, and of what they replay.
        noise: how large the errors are.
    """
    noise = noise or Noise()
    return sample.batch.with_signals({
        **values(sample, rng, noise),
        **probes(sample, rng, noise),
        **labels(sample, rng, noise),
        **rubrics(sample, rng, noise),
        **policies(sample, rng, noise),
        **models(sample, rng, noise),
        **events(sample, rng, noise),
        **replayed(sample, rng),
    })  # fmt: skip


def values(sample: Sample, rng: np.random.Generator, noise: Noise) -> Signals:
    """Critics. An agent's critic knows what the agent can tell, a team's the whole state."""
    batch, solution = sample.batch, sample.solution
    policy = sample.process.policy[sample.state]
    known, exact, q = (
        x[sample.state] for x in (solution.known, solution.value, solution.action_value)
    )
    gain = solution.advantage[sample.state, sample.action]
    value, told = (_off(x, rng, noise) for x in (known, q))
    agents = batch.agents()
    before = np.zeros(len(batch), dtype=bool)  # whether the agent's turn before this one mattered
    before[agents.order[1:]] = sample.decisive[agents.order[:-1]]
    switch = before | (agents.before == 0)
    return {
        "value": value,
        "value_next": np.zeros(len(batch)),
        "token_value": _choosing(value, _off(known + gain, rng, noise), batch),
        "value_high": value,
        "value_switch": value,
        "value_keep": value,
        # Who is called is paid its own share here, to the end: nothing follows with its caller.
        "value_behind": np.zeros(len(batch)),
        "span": np.ones(len(batch)),
        "reward_others": np.zeros(len(batch)),
        "switch": switch.astype(np.float64),
        "switch_probability": np.full(len(batch), switch.mean()) if len(batch) else value,
        "value_others": _off(exact, rng, noise),
        "action_value": told[np.arange(len(batch)), sample.action],
        "action_value_mean": exact + (policy * (told - q)).sum(axis=1),
    }


def _off(exact: Array, rng: np.random.Generator, noise: Noise) -> Array:
    """What a critic says of an exact value, or a progress model of an exact gain."""
    return exact + noise.critic * rng.normal(size=exact.shape)


def _choosing(first: Array, others: Array | float, batch: TurnBatch) -> Array:
    """One number for the token of each turn that chooses, and one for those after it, [M]."""
    out = tokens.spread(np.broadcast_to(others, first.shape), batch.offsets).astype(np.float64)
    out[batch.offsets[:-1]] = first
    return out


def chances(sample: Sample) -> tuple[Array, Array, Array]:
    """Expected returns as numbers in [0, 1], from the worst possible to the best.

    Returns:
        before each turn and after it, as the agent can tell; and what came out; [N] each. In a
        team, after one turn is before the next.
    """
    process, solution, batch = sample.process, sample.solution, sample.batch
    column = process.payee(batch.agent)
    rows = np.arange(len(batch))
    pay = process.pay[sample.state, sample.action, sample.branch]
    of = sample.played, batch.turn
    paid = np.zeros((*sample.row_of.shape, pay.shape[1]))
    paid[of] = pay
    earned = (np.cumsum(paid, axis=1) - paid)[of][rows, column]
    total = paid.sum(axis=1)[sample.played, column]
    before = earned + solution.known[sample.state]
    after = before + solution.advantage[sample.state, sample.action]
    if pay.shape[1] == 1:
        later = np.append(sample.row_of, np.full((len(sample.row_of), 1), -1), axis=1)
        following = later[sample.played, batch.turn + 1]
        after = np.where(following >= 0, before[following], after)
    low, high = (ends[column] for ends in returns_between(process))
    span = np.where(high > low, high - low, 1.0)
    first, second, third = ((x - low) / span for x in (before, after, total))
    return np.clip(first, 0.0, 1.0), np.clip(second, 0.0, 1.0), third


def probes(sample: Sample, rng: np.random.Generator, noise: Noise) -> Signals:
    """What the model itself says of the answer, before and after turns, and in hindsight.

    The right answer is as probable as the expected return is high. Hindsight makes an action
    likelier by Bayes' ratio; as log-probs do, it ends at 0.
    """
    batch = sample.batch
    before, after, came = chances(sample)
    shape = (sample.row_of.shape[0], sample.row_of.shape[1] + 1)
    gold, gold_after, prm, prm_after = (
        _probe(x, errors[sample.played, batch.turn + later], noise)
        for errors in (rng.normal(size=shape), rng.normal(size=shape))
        for later, x in enumerate((before, after))
    )
    chosen = np.log(sample.process.policy[sample.state, sample.action])
    hindsight = chosen + np.log(hindsight_ratios(sample))
    hindsight += noise.hindsight * rng.normal(size=len(batch))
    right = came > 0.5  # an agent answers right or wrong: two clusters
    own, own_after = (np.where(right, x, 1 - x) for x in (gold, gold_after))
    return {
        "gold_before": np.log(gold),
        "gold_after": np.log(gold_after),
        "answer_before": own,
        "answer_after": own_after,
        "answer_share": _share_alike(right, batch),
        "success_before": prm,
        "success_after": prm_after,
        "potential": prm,
        "potential_next": prm_after,
        "hindsight_logprob": np.minimum(hindsight, 0.0) / batch.lengths,
    }


def _probe(chance: Array, error: Array, noise: Noise) -> Array:
    """A probability with an error in logits, [N]."""
    chance = np.clip(chance, noise.floor, 1 - noise.floor)
    return 1 / (1 + np.exp(-np.log(chance / (1 - chance)) - noise.probe * error))


def _share_alike(right: Array, batch: TurnBatch) -> Array:
    """Share of the agent's episodes of the group in which it answers as in this one, [N]."""
    once = (batch.agents().before == 0).astype(np.float64)
    who, whos = cells((batch.group, batch.agent), len(batch))
    alike, clusters = cells((who, right), len(batch))
    return sums(once, alike, clusters)[alike] / sums(once, who, whos)[who]


def labels(sample: Sample, rng: np.random.Generator, noise: Noise) -> Signals:
    """Judges of single turns: whether the turn helped, harmed, or did neither."""
    batch, n = sample.batch, len(sample.batch)
    sign = np.sign(sample.advantage)

    def wrong() -> Array:
        return rng.random(n) >= noise.judge

    def told() -> Array:
        """The sign, or where the judge is wrong one of the two others."""
        return np.where(wrong(), (sign + 1 + rng.integers(1, 3, n)) % 3 - 1, sign)

    helped, evidence = ((sign > 0) ^ wrong() for _ in range(2))
    matters, cited = (sign != 0) ^ wrong(), sample.decisive ^ wrong()
    role = np.select([sign > 0, sign < 0], [0, 3], 2)
    role = np.where(wrong(), (role + rng.integers(1, 4, n)) % 4, role)
    scored = told()
    critique = rng.binomial(CRITIQUES, np.where(sign < 0, noise.judge, 1 - noise.judge))
    return {
        "judge_good": helped.astype(np.float64),
        "judge_role": role.astype(np.float64),
        "judge_credit": EVIDENCE * evidence,
        "judge_score": 1.0 + SCORE * told(),
        "prm_error": (1 - scored) / 2,
        "token_reward": tokens.spread(STEP * scored, batch.offsets),
        "cited": cited.astype(np.float64),
        "wrong_share": tokens.spread(critique / CRITIQUES, batch.offsets),
        "commitment": tokens.spread(told(), batch.offsets),
        "informative_outcome": matters.astype(np.float64),
        "informative_shaping": np.zeros(n),
    }


def rubrics(sample: Sample, rng: np.random.Generator, noise: Noise) -> Signals:
    """Judges of whole episodes. Each turn that can matter has a criterion and a step of its own.

    A criterion passes if the choice was good, and cites its turn; a good step is used by the good
    ones after it, a bad one is faulty, and its use fails. A wrong citation is of a turn at random.
    """
    batch, n = sample.batch, len(sample.batch)
    good = quality(sample.process, sample.solution)[sample.state, sample.action] >= 0
    rows = np.flatnonzero(sample.decisive)
    episodes = chains((sample.played,), batch.turn)
    start = np.arange(n) - episodes.before
    anywhere = start + np.floor(rng.random(n) * (episodes.before + episodes.after + 1)).astype(int)
    passed = good ^ (rng.random(n) >= noise.judge)
    cites = np.where(rng.random(n) < noise.judge, np.arange(n), anywhere)
    traced = rng.random(n) < noise.judge
    item = np.where(sample.decisive & traced, batch.turn, -1)
    used = (sample.decisive & good).astype(np.float64)
    ahead = returns.to_go(used, episodes)  # good steps from here on
    total = returns.totals(used, episodes)
    seen = np.where(rng.random(n) < noise.judge, np.arange(n), anywhere)
    bad = (sample.decisive & ~good).astype(np.float64)
    return {
        "rubric_pass": np.bincount(cites[rows], passed[rows], n),
        "rubric_fail": np.bincount(cites[rows], ~passed[rows], n),
        "rubric_item": tokens.spread(item, batch.offsets),
        "rubric_verdict": tokens.spread(passed.astype(np.float64), batch.offsets),
        "support_out": (used * ahead)[seen],  # the final answer uses the last one
        "support_in": (used * (total - ahead))[seen],
        "contradicted": bad[seen],
        "faulty": bad[seen],
    }


def quality(process: Process, solution: Solution) -> Array:
    """What an action is worth on average over the states of an agent's turn, [S, A].

        m(t, a) = Σ_s d(s) π(a|s) A(s, a) / Σ_s d(s) π(a|s)

    The best additive account of the return: an action's main effect.
    """
    spot, count = cells((process.turn, process.agent), len(process))
    weight = solution.reach[:, None] * process.policy
    columns = zip(weight.T, (weight * solution.advantage).T, strict=True)
    pairs = [(sums(above, spot, count), sums(below, spot, count)) for below, above in columns]
    effect = [np.divide(a, b, out=np.zeros(count), where=b > 0)[spot] for a, b in pairs]
    return np.stack(effect, axis=1)


def models(sample: Sample, rng: np.random.Generator, noise: Noise) -> Signals:
    """A progress model that knows main effects; the states, pages and callers that agents name."""
    batch = sample.batch
    progress = quality(sample.process, sample.solution)[sample.state, sample.action]
    last = sample.process.legal.sum(axis=1)[sample.state] - 1
    return {
        "progress": _off(progress, rng, noise),
        "grounded": np.ones(len(batch)),
        "caller": np.where(batch.parent >= 0, batch.turn[batch.parent], -1),
        "call_share": nested_shares(batch, call_chains(batch)),
        "belief_key": batch.state_key,
        "belief_reward": np.ones(len(batch)),
        "evidence_unit": np.where(sample.action == last, batch.turn, -1),
    }


def policies(sample: Sample, rng: np.random.Generator, noise: Noise) -> Signals:
    """Log-probs. The first token of a turn chooses; the others follow from it, for everybody.

    Reference, old and new policy are the one that played. A teacher prefers what is better than
    its own average, a negative prompt what is worse.
    """
    process, batch = sample.process, sample.batch
    low, high = returns_between(process)
    span = np.maximum(high - low, 1e-9)[process.payee(process.agent)]
    policy = process.policy[sample.state]
    push = PUSH * (sample.solution.advantage / span[:, None])[sample.state]
    better, worse = (
        _tilted(policy, sign * push + noise.probe * rng.normal(size=policy.shape))[
            np.arange(len(batch)), sample.action
        ]
        for sign in (1.0, -1.0)
    )
    log = np.log(np.where(policy > 0, policy, 1.0))
    legal = (policy > 0).sum(axis=1)
    first = {
        "teacher_logprob": np.log(better),
        "negative_logprob": np.log(worse),
        "entropy": -(policy * log).sum(axis=1),
        "certainty": -np.log(legal) - log.sum(axis=1) / legal,
    }
    same = ("reference_logprob", "old_logprob", "new_logprob", "logit")
    return {
        **{name: _choosing(x, 0.0, batch) for name, x in first.items()},
        **dict.fromkeys(same, batch.logprobs),
        "collision": _choosing((policy**2).sum(axis=1), 1.0, batch),
        "token_id": tokens.spread(sample.action, batch.offsets),
        "segment": np.zeros(len(batch.logprobs), dtype=np.int64),
        "block": tokens.spread(np.full(len(batch), 2), batch.offsets),
        "ratio_before": np.ones(len(batch)),
    }


def _tilted(policy: Array, push: Array) -> Array:
    """π · exp(push), normalised, [N, A]."""
    weight = policy * np.exp(push)
    return weight / weight.sum(axis=1, keepdims=True)


def events(sample: Sample, rng: np.random.Generator, noise: Noise) -> Signals:
    """The schedule of each episode's events, and values that know the event at hand."""
    process, batch = sample.process, sample.batch
    schedule = np.zeros(len(sample.row_of), dtype=np.int64)
    value = sample.solution.known[sample.state]
    if sample.luck is not None and process.event.any():
        value = _given_event(sample)
        for turn in np.unique(process.turn[process.event]):
            chance = process.chance[np.flatnonzero(process.event & (process.turn == turn))[0], 0]
            # Scheduled, whether or not the episode lives to see it.
            met = np.searchsorted(np.cumsum(chance)[:-1], sample.luck.chance[:, turn], side="right")
            schedule = schedule * len(chance) + met
    return {
        "event": schedule[sample.played],
        "event_exogenous": np.ones(len(batch)),
        "value_event": _off(value, rng, noise),
    }


def _given_event(sample: Sample) -> Array:
    """V before the turn if the next event is known to be the one that came, [N]."""
    process, values = sample.process, sample.solution.values
    width = process.chance.shape[2]
    given = np.zeros((*values.shape, width))  # [S+1, P, B], the last by what the next event is
    for layer in reversed(process.layers):
        after, discount = process.after[layer], process.discount[layer, None, None, None]
        at_once = process.pay[layer] + discount * values[after]  # [s, A, B, P]
        event = np.einsum("sa,sabp->spb", process.policy[layer], at_once)
        later = process.pay[layer][..., None] + discount[..., None] * given[after]
        wait = np.einsum("sa,sab,sabpe->spe", process.policy[layer], process.chance[layer], later)
        given[layer] = np.where(process.event[layer, None, None], event, wait)
    row = _next_event(sample)
    met = np.where(row >= 0, sample.branch[row], 0)
    own = given[np.arange(len(process)), process.payee(process.agent)]
    known = as_known(own, process.key, (sample.solution.reach,))
    return known[sample.state, met]


def _next_event(sample: Sample) -> Array:
    """The row of the next turn with an event, itself included, [N] int; -1 = none comes."""
    grid = np.full(sample.row_of.shape, -1)
    there = sample.process.event[sample.state]
    grid[sample.played[there], sample.batch.turn[there]] = np.flatnonzero(there)
    ahead = np.where(grid >= 0, grid, np.iinfo(np.int64).max)[:, ::-1]
    nearest = np.minimum.accumulate(ahead, axis=1)[:, ::-1]
    found = nearest[sample.played, sample.batch.turn]
    return np.where(found == np.iinfo(np.int64).max, -1, found)
