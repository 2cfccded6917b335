"""Turnover: agents join, leave or are replaced in mid-episode, by chance or by somebody's doing.

A baseline that knows the event takes its luck out of a return, as the idea of TOCA has it, arXiv
2610.02847. It is without bias only where no action had a part in the event.
"""

from __future__ import annotations

import numpy as np

from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.segments import Array, cells
from marl_llm.errors import EpisodeError


def event_depends_on_action(
    event: Array,
    action: Array,
    state: Array,
    rng: np.random.Generator,
    *,
    permutations: int = 999,
) -> float:
    """Test whether what happened hangs on what was done, in states that are alike.

    The statistic is the likelihood ratio of events given action and state against events given
    state, Σ n_{s,a,e} log n_{s,a,e} but for constants. Under the hypothesis that no action has a
    part in the event, the events of one state may change places. A baseline that knows the event
    is without bias only if that holds.

    Args:
        event: key of what happened, [N] int.
        action: key of what was done, or of a feature of it, [N] int.
        state: key of what was known before, [N] int; states seen once say nothing.
        rng: of the permutations.
        permutations: how many are drawn.

    Returns:
        p, the share of permutations, the data themselves included, whose statistic is as large; a
        small one, below 0.01 say, speaks against the baseline. 1 if there is nothing to tell.
    """
    n = len(event)
    if n == 0:
        return 1.0
    both, pairs = cells((state, action), n)
    what, kinds = cells((event,), n)
    by_state = np.argsort(state, kind="stable")

    def statistic(of: Array) -> float:
        count = np.bincount(both * kinds + of, minlength=pairs * kinds).astype(np.float64)
        return float(np.sum(count * np.log(np.maximum(count, 1.0))))

    seen = statistic(what)
    as_large = 1
    for _ in range(permutations):
        moved = np.empty_like(what)
        moved[by_state] = what[np.lexsort((rng.random(n), state))]
        as_large += statistic(moved) >= seen - 1e-9
    return as_large / (permutations + 1)


def refuse_endogenous(batch: TurnBatch, name: str, allowed: bool) -> None:
    """Refuse events in which an action had a part, unless that is allowed.

    Args:
        batch: N turns with the signal "event_exogenous".
        name: of the estimator, for the message.
        allowed: whether the user has decided to take them.

    Raises:
        EpisodeError: there are such events, and they are not allowed.
    """
    doubtful = (batch.signal("event_exogenous") == 0) & (batch.lengths > 0)
    if np.any(doubtful) and not allowed:
        i = np.flatnonzero(doubtful)[0]
        raise EpisodeError(
            f"{int(doubtful.sum())} turns (the first: turn {batch.turn[i]} of episode "
            f"{batch.episode[i]}) met events that are not known to be chance's alone; a baseline "
            "that knows the event takes away what an action did by bringing it about. Take a rule "
            f"that does not look at events, or set {name}.allow_endogenous: true"
        )
