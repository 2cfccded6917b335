"""Corrections: a failed episode with its first error put right, as demonstrations to fit.

This is the data of intervention training, and no estimator: nothing gets an advantage.
"""

from __future__ import annotations

from collections.abc import Sequence

from marl_llm.errors import EpisodeError
from marl_llm.learn.rows import Pair
from marl_llm.types import Turn


def corrected_pairs(turns: Sequence[Turn], first_error: int, reply: tuple[int, ...]) -> list[Pair]:
    """The turns before the first error as they were, and the turn of the error with another reply.

    What came after is left out: it answers to an error that was not made. A step inside a long
    reply is corrected by a `reply` that starts with the ids of the sampled one up to the error.

    Args:
        turns: of one policy in one episode, in playing order.
        first_error: index in `turns` of the turn whose reply is to be replaced.
        reply: ids of the corrected reply, with the token that ends it.

    Returns:
        (prompt ids, reply ids), for `supervised.fit`; turns that sampled nothing are left out.

    Raises:
        EpisodeError: there is no such turn, or the reply is empty or the one that was wrong.

    Source: InT, arXiv 2601.14209, as its abstract has it.
    """
    if not 0 <= first_error < len(turns):
        raise EpisodeError(
            f"the first error is in turn {first_error}, but there are {len(turns)} turns, "
            "counted from 0"
        )
    wrong = turns[first_error]
    if not reply or reply == wrong.ids:
        raise EpisodeError(
            f"the corrected reply to turn {first_error} is "
            f"{'the wrong one itself' if reply else 'empty'}; give the ids of another one, or "
            "leave the episode out"
        )
    kept = [(turn.prompt_ids, turn.ids) for turn in turns[:first_error] if turn.ids]
    return [*kept, (wrong.prompt_ids, reply)]
