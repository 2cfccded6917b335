"""The cold start: a short supervised stage on scripted play, before any reinforcement.

A model that has never seen the format forfeits every game and learns nothing. So a scripted player
plays the run's games, each of its turns becomes a demonstration (the role's own prompt, the reply
in the parser's canonical form, with a short restatement of the observation as its thought), and the
model is fitted to those. The policy it ends with is also the reference of the KL term.

Where a role's parser is `PlanExecute`, the reply also says whether the sub-goal changes, and to
what. The episodes are told again, and the player is asked in front of every turn what it is after.
The agent's first turn and every turn with another sub-goal than the last is a SWITCH.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from marl_llm.agents import Player
from marl_llm.agents.chat import Chat
from marl_llm.agents.plan_execute import NO_SUBGOAL, PlanExecute
from marl_llm.agents.role import Role, Seat
from marl_llm.agents.subgoals import Purposeful
from marl_llm.errors import ConfigError
from marl_llm.games import Game
from marl_llm.rollout.plans import balanced
from marl_llm.rollout.play import play
from marl_llm.rollout.retelling import Retelling
from marl_llm.seeds import derive
from marl_llm.types import Completion, Episode, Finish, Turn

Makers = Mapping[str, Callable[[], Game]]
Cast = Mapping[str, Role]  # role in the game -> how the policy plays it; others' turns are left out
Goals = Mapping[int, Sequence[str]]  # episode -> sub-goal behind each turn, "" = none is asked for
Thought = Literal["brief", "none"]  # restate the observation before the answer?

_NO_GOALS: Goals = MappingProxyType({})


def scripted_games(games: Makers, player: Player, count: int, seed: int) -> list[Episode]:
    """`count` episodes, spread over the games, with a scripted player in every seat."""
    roles = {name: make().roles for name, make in games.items()}
    count += -count % len(games)
    plans = balanced(derive(seed, "coldstart"), 0, count, 1, roles, [("teacher",)])
    return play(plans, games, {"teacher": player}, {}, seed=derive(seed, "coldstart"))


def pursued(episodes: Sequence[Episode], games: Makers, cast: Cast, player: Player) -> Goals:
    """The sub-goal that the player was after in each turn of a role that states one.

    Args:
        episodes: the player's, in all seats.
        games: their makers.
        cast: the roles.
        player: who is asked.

    Returns:
        Empty if no role states sub-goals.

    Raises:
        ConfigError: a role does, and the player has none.
    """
    planning, planner = _planning(cast), purposeful(cast, player)
    if planner is None:
        return {}
    tables = {name: make() for name, make in games.items()}
    goals = {}
    for episode in episodes:
        telling = Retelling(episode, tables[episode.game], {})  # type: ignore[arg-type]
        found = goals[episode.id] = [""] * len(episode.turns)
        for number, turn in enumerate(episode.turns):
            if turn.observation.role in planning:
                telling.go(number)
                found[number] = planner.intent(telling.game, turn.observation.agent)  # type: ignore[arg-type]
    return goals


def purposeful(cast: Cast, player: Player) -> Purposeful | None:
    """The player as one who can be asked for sub-goals; None = no role states any.

    Raises:
        ConfigError: a role does, and the player has none.
    """
    if not _planning(cast):
        return None
    if not isinstance(player, Purposeful):
        raise ConfigError(
            f"coldstart.player {player.name!r} pursues no sub-goals, which the role's parser "
            "PlanExecute has it state; choose one that does, such as household_solver or skipper"
        )
    return player


def texts(
    episodes: Sequence[Episode], games: Makers, cast: Cast, goals: Goals = _NO_GOALS
) -> list[str]:
    """What the model will read and write: the corpus for a tokenizer made on the spot."""
    rules = _rules(games, cast)
    corpus = []
    for episode in episodes:
        for number, turn in enumerate(episode.turns):
            observation = turn.observation
            if observation.role in cast:
                role, told = cast[observation.role], rules[episode.game, observation.role]
                corpus.append(role.system_text(told, observation.agent))
                corpus.append(role.user_text(told, observation))
                corpus.append(observation.brief)
                corpus.append(turn.action or "")
                if isinstance(role.parser, PlanExecute):
                    goal = goals[episode.id][number]
                    corpus.append(role.user_text(told, observation, goal))
                    for held in (goal, NO_SUBGOAL):  # it is kept, or switched to
                        corpus.append(reply_text(turn, role, "none", goal, held))
    return corpus


def demonstrations(
    episodes: Sequence[Episode],
    games: Makers,
    cast: Cast,
    chat: Chat,
    thought: Thought,
    goals: Goals = _NO_GOALS,
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Scripted turns as (prompt ids, reply ids), each agent with the memory its role gives it."""
    rules = _rules(games, cast)
    pairs = []
    for episode in episodes:
        seats: dict[str, Seat] = {}
        for number, turn in enumerate(episode.turns):
            agent, plays = turn.observation.agent, turn.observation.role
            if plays not in cast:
                continue
            role = cast[plays]
            if agent not in seats:
                seats[agent] = Seat(role, chat, rules[episode.game, plays])
            prompt = seats[agent].prompt(turn.observation)
            goal = goals[episode.id][number] if goals else NO_SUBGOAL
            text = reply_text(turn, role, thought, goal, seats[agent].subgoal)
            reply = reply_ids(text, role, chat)
            seats[agent].read(Completion(0, reply, (0.0,) * len(reply), (), Finish.STOP))
            pairs.append((prompt, reply))
    return pairs


def reply_text(turn: Turn, role: Role, thought: Thought, goal: str, held: str) -> str:
    """The canonical reply of a scripted turn.

    Args:
        turn: the player's.
        role: whose form it is written in.
        thought: what it thinks.
        goal: the sub-goal that the player is after, where the form has such.
        held: the sub-goal that the agent has; if it is another one, the reply switches.
    """
    restated = turn.observation.brief if thought == "brief" else None
    if isinstance(role.parser, PlanExecute):
        return role.parser.render_plan(restated, goal, turn.action or "", switch=goal != held)
    return role.parser.render(restated, turn.action or "")


def reply_ids(text: str, role: Role, chat: Chat) -> tuple[int, ...]:
    """A canonical reply as an engine would have sampled it: it ends where sampling would stop."""
    ids = chat.encode(text)
    return ids if role.parser.stop else (*ids, chat.end_id)


def _planning(cast: Cast) -> frozenset[str]:
    """The roles whose replies state sub-goals."""
    return frozenset(name for name, role in cast.items() if isinstance(role.parser, PlanExecute))


def _rules(games: Makers, cast: Cast) -> dict[tuple[str, str], str]:
    """What each role is told of each game."""
    made = {name: make() for name, make in games.items()}
    return {(name, role): game.instructions(role) for name, game in made.items() for role in cast}
