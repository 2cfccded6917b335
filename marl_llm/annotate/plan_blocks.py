"""Which tokens of a reply decide on the sub-goal, name it, or act; and where sub-goals start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_llm.agents.chat import Chat
from marl_llm.annotate.material import Ids, Material
from marl_llm.annotate.plans import Stated, stated
from marl_llm.credit.hae import ACTION, NONE, SUB_GOAL, SWITCH
from marl_llm.credit.segments import Array


def first_token_at(chat: Chat, ids: Ids, place: int) -> int:
    """The number of the first token that begins at or behind a character of the reply.

    Tokens may run over a border and characters over several tokens, so the texts of whole
    beginnings are measured, by halving.

    Args:
        chat: of the model that sampled.
        ids: the reply.
        place: from 0.
    """
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        text = chat.tokenizer.decode(
            ids[:middle], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        if len(text) < place:
            low = middle + 1
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBlocks:
    """The parts of replies that the parser `PlanExecute` reads.

    "block" [M]: 0 up to the sub-goal's block, a thought included, since the switch is the first
    decision that it leads to; 1 in the sub-goal's block, 2 from the action's block to the end. A
    token belongs to the part in which it begins. A reply that cannot be read is action from end to
    end, so that a fault has credit; a turn of a seat with another parser is -1.

    "switch" [N]: 1 where the reply says SWITCH and at an agent's first turn, 0 where it says KEEP,
    missing where it cannot be read.
    """

    signals: ClassVar[tuple[str, ...]] = ("block", "switch")

    def annotate(self, material: Material) -> Mapping[str, Array]:
        """The columns of its signals."""
        turns = stated(material)
        known: dict[tuple[int, Ids, int, int], Array] = {}
        blocks = [np.zeros(0)]
        for each in turns:
            plan, ids = each.plan, each.turn.ids
            if plan is None:
                blocks.append(np.full(len(ids), float(ACTION if each.plans else NONE)))
                continue
            key = id(each.seat.chat), ids, plan.subgoal_at, plan.action_at
            if key not in known:
                known[key] = _blocks(each)
            blocks.append(known[key])
        return {
            "block": np.concatenate(blocks),
            "switch": np.array(
                [np.nan if each.plan is None else float(each.switches) for each in turns]
            ),
        }


def _blocks(each: Stated) -> Array:
    """The part of each token of a reply that can be read."""
    assert each.plan is not None  # it can be read
    chat, ids = each.seat.chat, each.turn.ids
    subgoal = first_token_at(chat, ids, each.plan.subgoal_at)
    action = first_token_at(chat, ids, each.plan.action_at)
    blocks = np.full(len(ids), float(ACTION))
    blocks[:action] = SUB_GOAL
    blocks[:subgoal] = SWITCH
    return blocks
