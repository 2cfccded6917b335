"""Hindsight: how much likelier an action is, once one knows what came of it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from marl_llm.credit.segments import Array
from marl_llm.credit.truth.process import Process, Solution
from marl_llm.credit.truth.sample import Sample

Law = dict[float, float]  # return to go -> probability

DIGITS = 9  # returns that agree so far are the same


def hindsight_ratios(sample: Sample) -> Array:
    """How much the return makes each turn's action likelier, by Bayes, [N].

        ρ = P(a | s, G) / π(a | s) = P(G | s, a) / P(G | s)

    s is what the agent can tell, G the return from its turn on.

    Args:
        sample: played episodes.
    """
    process, batch = sample.process, sample.batch
    column = process.payee(batch.agent)
    paid = np.zeros((*sample.row_of.shape, process.pay.shape[-1]))
    paid[sample.played, batch.turn] = process.pay[sample.state, sample.action, sample.branch]
    to_go = np.cumsum(paid[:, ::-1], axis=1)[:, ::-1][sample.played, batch.turn, column]
    cases, case = np.unique(
        np.stack((process.key[sample.state], sample.action, column, to_go.round(DIGITS)), axis=1),
        axis=0,
        return_inverse=True,
    )
    laws = [_known_laws(process, sample.solution, payee) for payee in range(process.pay.shape[-1])]
    ratio = np.ones(len(cases))
    for i, (key, action, payee, came) in enumerate(cases.tolist()):
        of_key, of_action = laws[int(payee)]
        ratio[i] = of_action[key, action][came] / of_key[key][came]
    return ratio[case.ravel()]


def _known_laws(
    process: Process, solution: Solution, payee: int
) -> tuple[dict[int, Law], dict[tuple[int, int], Law]]:
    """What a payee gets from a decision on, by what can be told there, and by action too."""
    by_state: list[Law] = [{} for _ in range(len(process))] + [{0.0: 1.0}]
    of_key: dict[int, Law] = defaultdict(lambda: defaultdict(float))
    of_action: dict[tuple[int, int], Law] = defaultdict(lambda: defaultdict(float))
    for state in range(len(process))[::-1]:
        key, reach = int(process.key[state]), float(solution.reach[state])
        for action in np.flatnonzero(process.policy[state]).tolist():
            law = _after(process, state, action, payee, by_state)
            probability = float(process.policy[state, action])
            for came, p in law.items():
                by_state[state][came] = by_state[state].get(came, 0.0) + probability * p
                of_key[key][came] += reach * probability * p
                of_action[key, action][came] += reach * p
    # Both are weighted by how often the key is met, which drops out of the ratio.
    return of_key, of_action


def _after(process: Process, state: int, action: int, payee: int, by_state: list[Law]) -> Law:
    """The law of what is still to come when an action is taken."""
    law: Law = {}
    for branch in np.flatnonzero(process.chance[state, action]).tolist():
        chance = float(process.chance[state, action, branch])
        pay = float(process.pay[state, action, branch, payee])
        for came, p in by_state[process.after[state, action, branch]].items():
            total = round(pay + came, DIGITS)
            law[total] = law.get(total, 0.0) + chance * p
    return law
