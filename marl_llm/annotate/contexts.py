"""Contexts: what a policy would read around a stored turn, and how likely words are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from marl_llm.annotate.material import Ids, Material, Pair, Scorer
from marl_llm.credit.segments import Array
from marl_llm.rollout.play import ModelSeat
from marl_llm.rollout.retelling import Retelling
from marl_llm.types import Turn


def told(material: Material) -> Iterator[tuple[int, Turn, Retelling]]:
    """The policy's turns in the order of the batch: number, turn, the episode in front of it.

    Who wants to know what came of a turn has the retelling go on to the next number.
    """
    games = {}
    for episode in material.episodes:
        numbers = [k for k, turn in enumerate(episode.turns) if turn.policy == material.policy]
        if not numbers:
            continue
        if episode.game not in games:
            games[episode.game] = material.reach.games[episode.game]()
        telling = Retelling(episode, games[episode.game], material.reach.seats)
        for number in numbers:
            telling.go(number)
            yield number, episode.turns[number], telling


def noted_prompts(material: Material, note: Callable[[int, Retelling], str]) -> list[Ids]:
    """The prompts of the policy's turns with a note behind the user text, N.

    Args:
        material: the episodes.
        note: its words, for a row of the batch in front of which the retelling stands.
    """
    return [
        telling.memory(turn.observation.agent).prompt(turn.observation, note(row, telling))
        for row, (_, turn, telling) in enumerate(told(material))
    ]


def prompts_after(material: Material) -> list[Ids]:
    """What the agent of each of the policy's turns would be asked right after it, N.

    It is the agent's next prompt if nobody else moves in between. What others do meanwhile is not
    in it, and after the last turn it is the prompt that would have come, rendered by the same chat
    from what the agent knows at the end.
    """
    out = []
    for number, turn, telling in told(material):
        agent = turn.observation.agent
        telling.go(number + 1)
        out.append(telling.memory(agent).prompt(telling.game.observation(agent)))
    return out


def endings(material: Material) -> list[str]:
    """What the agent of each of the policy's turns knows once its episode is over, N."""
    out = []
    for _, turn, telling in told(material):
        telling.go(len(telling.episode.turns))
        out.append(telling.game.observation(turn.observation.agent).text)
    return out


def seat_of(material: Material, turn: Turn) -> ModelSeat:
    """The seat from which one of the policy's turns was played."""
    seat = material.reach.seats[turn.player]
    assert isinstance(seat, ModelSeat), "a policy plays from models' seats"
    return seat


def logprobs(scorer: Scorer, pairs: Sequence[Pair], temperatures: Array) -> list[Array | None]:
    """Log-probs of each reply's ids, nats; None where there are no ids, or no room for them.

    Args:
        scorer: the model; it shares what prompts begin with.
        pairs: P prompts and replies; equal ones are scored once.
        temperatures: [P].
    """
    found: dict[tuple[float, Pair], Array] = {}
    for temperature in np.unique(temperatures).tolist():
        asked = dict.fromkeys(
            pair
            for pair, own in zip(pairs, temperatures.tolist(), strict=True)
            if own == temperature and pair[1] and len(pair[0]) + len(pair[1]) <= scorer.context
        )
        scored = scorer.score(list(asked), temperature) if asked else []
        for pair, nats in zip(asked, scored, strict=True):
            found[temperature, pair] = np.array(nats)
    return [found.get((own, pair)) for pair, own in zip(pairs, temperatures.tolist(), strict=True)]


def mean_logprobs(scorer: Scorer, pairs: Sequence[Pair], temperatures: Array) -> Array:
    """Mean log-prob of each reply's ids, [P] nats; NaN where there are none, or no room."""
    scored = logprobs(scorer, pairs, temperatures)
    return np.array([np.nan if nats is None else nats.mean() for nats in scored])
