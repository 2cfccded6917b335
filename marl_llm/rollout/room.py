"""A model without room to reply: one prompt that is too long is a forfeit, all are a mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marl_llm.errors import ConfigError
from marl_llm.types import Episode, Finish


def check_room(episodes: Sequence[Episode], contexts: Mapping[str, int]) -> None:
    """Refuse a rollout in which a policy could not reply a single time.

    Args:
        episodes: finished ones.
        contexts: tokens that prompt and reply may have together, by policy.

    Raises:
        ConfigError: every prompt of a policy filled its context.
    """
    turns = [turn for episode in episodes for turn in episode.turns]
    for policy, context in contexts.items():
        asked = [turn for turn in turns if turn.policy == policy]
        if asked and all(turn.finish is Finish.CONTEXT and not turn.ids for turn in asked):
            shortest = min(len(turn.prompt_ids) for turn in asked)
            raise ConfigError(
                f"no prompt of policy {policy!r} leaves room for a reply: the shortest of "
                f"{len(asked)} has {shortest} tokens, the context {context}; raise the context of "
                "model or engine, or shorten the role's texts"
            )
