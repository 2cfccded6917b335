"""How likely an answer is before and after a turn: a teacher-forced probe of the policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marl_llm.annotate.contexts import mean_logprobs, prompts_after, seat_of
from marl_llm.annotate.material import Ids, Material
from marl_llm.credit.segments import Array


def answer_logprobs(
    material: Material, asked: Sequence[tuple[int, str]], temperature: float
) -> tuple[Array, Array]:
    """Mean log-prob of the tokens of an answer before and after turns.

    The context before a turn is its own prompt, the one after it is what the agent would be asked
    right then (`contexts.prompts_after`). An answer is written as the role writes an action without
    a thought, and only its own tokens count. T turns of an agent that is alone cost T + 1 scores,
    since equal contexts are scored once.

    Args:
        material: the episodes.
        asked: rows of the batch, each with an answer, K.
        temperature: of the softmax.

    Returns:
        Before and after, [K] nats each; NaN where the context has no room for the answer.
    """
    behind = prompts_after(material)
    contexts: list[Ids] = []
    answers: list[Ids] = []
    for row, answer in asked:
        seat = seat_of(material, material.turns[row])
        parser, encode = seat.role.parser, seat.chat.encode
        opening = encode(parser.before_action(None))
        contexts += [(*material.turns[row].prompt_ids, *opening), (*behind[row], *opening)]
        answers += [encode(parser.action_text(answer))] * 2
    pairs = list(zip(contexts, answers, strict=True))
    nats = mean_logprobs(material.reach.scorer, pairs, np.full(len(pairs), temperature))
    return nats[0::2], nats[1::2]
