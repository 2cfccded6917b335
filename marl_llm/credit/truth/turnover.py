"""Open teams: what of a return came of actions, and what of who happened to be there.

One decision point, agents 1..n act, then an event e comes, drawn from ρ whatever they did:

    μ = E Q,   α(a) = E_e Q - μ,   τ(e) = E_a Q - μ,   ι(a, e) = Q - μ - α - τ
    b(e) = E_a Q = μ + τ,   A(a, e) = Q - b = α + ι

α is what the actions did, τ what the event did (no action's doing), ι what the actions did for this
event in particular. `open_team` is the same over several steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from marl_llm.credit.segments import Array
from marl_llm.credit.truth.process import Choice, Decision, Process, expand


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of Q at one decision point; actions are the first axes, the event is the last."""

    mean: float  # μ
    action: Array  # α, [A_1, ..., A_n]
    turnover: Array  # τ, [E]
    interaction: Array  # ι, [A_1, ..., A_n, E]

    @property
    def baseline(self) -> Array:
        """b(e), [E]: what the event leaves to expect, before anybody acts."""
        return self.mean + self.turnover

    @property
    def advantage(self) -> Array:
        """A(a, e) = α + ι, [A_1, ..., A_n, E]."""
        return self.action[..., None] + self.interaction


def split(q: Array, policies: Sequence[Array], law: Array) -> Split:
    """The centred decomposition of Q.

    Args:
        q: Q, [A_1, ..., A_n, E].
        policies: π_i of each agent, [A_i] each; they act independently.
        law: ρ(e), [E]; independent of the actions.
    """
    by_action = q @ law
    by_event = _mean_over(q, policies, range(len(policies)))
    mean = float(by_event @ law)
    return Split(
        mean,
        by_action - mean,
        by_event - mean,
        q - by_action[..., None] - by_event + mean,
    )


def counterfactual(q: Array, policies: Sequence[Array], agent: int) -> Array:
    """What one agent's action did, the others' actions and the event being as they were.

        A_i(a, e) = Q(a, e) - Σ_x π_i(x) Q((x, a_-i), e)

    Args:
        q: Q, [A_1, ..., A_n, E].
        policies: π_i of each agent, [A_i] each.
        agent: i, from 0.

    Returns:
        A_i, as Q.
    """
    own = np.tensordot(policies[agent], q, axes=(0, agent))
    return q - np.expand_dims(own, agent)


def hazard_split(q: Array, policies: Sequence[Array], law: Array) -> dict[str, Array]:
    """Where actions bring events about, b(e) is no baseline: what they do, and what they provoke.

        ρ̄(e) = E_a ρ(e|a),   A(a) = Σ_e ρ(e|a) Q(a, e) - V = direct + hazard + c
        direct = Σ_e ρ̄(e) [Q(a, e) - b(e)],   hazard = Σ_e [ρ(e|a) - ρ̄(e)] Q(a, e)
        c = Σ_e ρ̄(e) b(e) - V

    Args:
        q: Q, [A_1, ..., A_n, E].
        policies: π_i of each agent, [A_i] each.
        law: ρ(e|a), as Q, or what broadcasts to it.

    Returns:
        "total", "direct" and "hazard", [A_1, ..., A_n] each; "constant" c and "value" V, no axes;
        "law" ρ̄, [E].
    """
    everybody = range(len(policies))
    law = np.broadcast_to(law, q.shape)
    usual = _mean_over(law, policies, everybody)
    baseline = _mean_over(q, policies, everybody)
    expected = np.sum(law * q, axis=-1)
    value = _mean_over(expected[..., None], policies, everybody)[0]
    return {
        "total": expected - value,
        "direct": (q - baseline) @ usual,
        "hazard": np.sum((law - usual) * q, axis=-1),
        "constant": np.asarray(usual @ baseline - value),
        "value": np.asarray(value),
        "law": usual,
    }


def _mean_over(q: Array, policies: Sequence[Array], agents: Sequence[int]) -> Array:
    for agent in reversed(agents):
        q = np.tensordot(policies[agent], q, axes=(0, agent))
    return q


def open_team(
    *,
    steps: int = 3,
    slots: int = 2,
    rate: float = 0.3,
    cost: float = 0.0,
    gamma: float = 1.0,
    p: float = 0.5,
) -> Process:
    """Slots work or learn; after each step the agent of slot 0 may be replaced by a beginner.

    Action 1 pays ½ + ½ · own skill to the team, action 0 sets the own skill to 1; the default does
    only that. The replacement is an event that no action has a part in. All agents of an episode
    share its rewards from their first turn on, those that have left too. Slots move one after the
    other but do not see it.

    Args:
        steps: how often each slot acts.
        slots: agents at a time.
        rate: probability of a replacement after a step.
        cost: paid by the team at each replacement, which nobody could prevent.
        gamma: discount per step.
        p: probability of action 1.
    """
    names = [f"worker_{slot}" for slot in range(slots)]
    agents = dict.fromkeys(
        [*names, *(f"worker_0#{generation}" for generation in range(1, steps))], "worker"
    )
    beginners = (0,) * slots

    def decide(state: tuple[int, int, int, tuple[int, ...], tuple[int, ...]]) -> Decision:
        # Skills at the start of the step, and at its end as far as the slots have moved.
        step, slot, generation, skill, moved = state
        last = slot == slots - 1

        def then(action: int) -> tuple[tuple[float, float, object], ...]:
            pay = 0.5 + 0.5 * skill[slot] if action else 0.0
            learned = (*moved, skill[slot] if action else 1)
            if not last:
                return ((1.0, pay, (step, slot + 1, generation, skill, learned)),)
            stays = (step + 1, 0, generation, learned, ())
            new = (step + 1, 0, generation + 1, (0, *learned[1:]), ())
            over = step + 1 == steps
            return (
                (1 - rate, pay, None if over else stays),
                (rate, pay - cost, None if over else new),
            )

        return Decision(
            agent=f"worker_0#{generation}" if slot == 0 and generation else names[slot],
            choices=(Choice(1 - p, then(0)), Choice(p, then(1))),
            knob=(step, slot),
            event=last,
            default=(1.0, 0.0),
            discount=gamma if last else 1.0,
        )

    return expand("open_team", {(0, 0, 0, beginners, ()): 1.0}, decide, agents=agents)  # type: ignore[arg-type]


def joint_values(process: Process, values: Array, state: int, slots: int = 2) -> Array:
    """Q of all joint actions and events at the first slot of a step of `open_team`.

    Args:
        process: made by `open_team`.
        values: worth of each state to the team, [S+1, 1].
        state: number of a decision of slot 0.
        slots: agents at a time.

    Returns:
        Q, [2, ..., 2, 2]; the event is the last axis, 1 = replaced.
    """
    q = np.empty((2,) * (slots + 1))
    for actions in product((0, 1), repeat=slots):
        at, paid = state, 0.0
        for action in actions[:-1]:
            paid += float(process.pay[at, action, 0, 0])
            at = int(process.after[at, action, 0])
        last = actions[-1]
        then = values[process.after[at, last], 0]
        q[actions] = paid + process.pay[at, last, :, 0] + process.discount[at] * then
    return q
