"""The cold start: a short supervised stage on scripted play, before any reinforcement.

A model that has never seen the format forfeits every game and learns nothing. So a scripted player
plays the run's games, each of its turns becomes a demonstration (the role's own prompt, the reply
in the parser's canonical form, with a short restatement of the observation as its thought), and the
model is fitted to those. The policy it ends with is also the reference of the KL term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from marl_llm.agents import Player
from marl_llm.agents.chat import Chat
from marl_llm.agents.role import Role, Seat
from marl_llm.games import Game
from marl_llm.rollout.plans import balanced
from marl_llm.rollout.play import play
from marl_llm.seeds import derive
from marl_llm.types import Completion, Episode, Finish, Observation

Makers = Mapping[str, Callable[[], Game]]
Cast = Mapping[str, Role]  # role in the game -> how the policy plays it; others' turns are left out


def scripted_games(games: Makers, player: Player, count: int, seed: int) -> list[Episode]:
    """`count` episodes, spread over the games, with a scripted player in every seat."""
    roles = {name: make().roles for name, make in games.items()}
    count += -count % len(games)
    plans = balanced(derive(seed, "coldstart"), 0, count, 1, roles, [("teacher",)])
    return play(plans, games, {"teacher": player}, {}, seed=derive(seed, "coldstart"))


def texts(episodes: Sequence[Episode], games: Makers, cast: Cast) -> list[str]:
    """What the model will read and write: the corpus for a tokenizer made on the spot."""
    rules = _rules(games, cast)
    corpus = []
    for episode in episodes:
        for turn in episode.turns:
            observation = turn.observation
            if observation.role in cast:
                role, told = cast[observation.role], rules[episode.game, observation.role]
                corpus.append(role.system_text(told, observation.agent))
                corpus.append(role.user_text(told, observation))
                corpus.append(observation.brief)
                corpus.append(turn.action or "")
    return corpus


def demonstrations(
    episodes: Sequence[Episode],
    games: Makers,
    cast: Cast,
    chat: Chat,
    thought: Literal["brief", "none"],
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Scripted turns as (prompt ids, reply ids), each agent with the memory its role gives it."""
    rules = _rules(games, cast)
    pairs = []
    for episode in episodes:
        seats: dict[str, Seat] = {}
        for turn in episode.turns:
            agent, plays = turn.observation.agent, turn.observation.role
            if plays not in cast:
                continue
            role = cast[plays]
            if agent not in seats:
                seats[agent] = Seat(role, chat, rules[episode.game, plays])
            prompt = seats[agent].prompt(turn.observation)
            reply = reply_ids(turn.observation, turn.action or "", role, chat, thought)
            seats[agent].read(Completion(0, reply, (0.0,) * len(reply), (), Finish.STOP))
            pairs.append((prompt, reply))
    return pairs


def reply_ids(
    observation: Observation, action: str, role: Role, chat: Chat, thought: str
) -> tuple[int, ...]:
    """The canonical reply as an engine would have sampled it: it ends where sampling would stop."""
    text = role.parser.render(observation.brief if thought == "brief" else None, action)
    ids = chat.encode(text)
    return ids if role.parser.stop else (*ids, chat.end_id)


def _rules(games: Makers, cast: Cast) -> dict[tuple[str, str], str]:
    """What each role is told of each game."""
    made = {name: make() for name, make in games.items()}
    return {(name, role): game.instructions(role) for name, game in made.items() for role in cast}
