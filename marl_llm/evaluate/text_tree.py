"""A game as a tree of texts, and policies written down on it.

Every information state of an OpenSpiel game is put through the game's own text, so that what is
measured on the tree is what an agent reads in play. Everything here is exact: small games only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import pyspiel

from marl_llm.agents.equilibrium import equilibrium
from marl_llm.errors import ConfigError
from marl_llm.games.openspiel import OpenSpielGame
from marl_llm.types import Observation

MAX_STATES = 50_000  # information states; liar's dice has 24,576, tic-tac-toe too many

Numbered = Mapping[str, Mapping[int, float]]  # information state -> OpenSpiel's action -> chance


@dataclass(frozen=True, slots=True)
class TextState:
    """One information state: what its agent reads there and what it may do."""

    observation: Observation
    actions: Mapping[str, int]  # legal names -> OpenSpiel's action


@dataclass(frozen=True, slots=True)
class TextTree:
    """A whole game through its text. It depends on the game only: make it once."""

    game: pyspiel.Game
    agents: tuple[str, ...]
    rules: str
    states: Mapping[str, TextState]  # by OpenSpiel's information state string


@dataclass(frozen=True, slots=True)
class StatePolicy:
    """What a policy does in one information state."""

    observation: Observation
    actions: Mapping[str, float]  # probability of each legal action; they sum to 1
    legal_mass: float  # probability of a reply that names a legal action
    reach: float  # probability that the state is met when all agents play this policy


@dataclass(frozen=True, slots=True)
class PolicyTable:
    """A policy written down, state by state."""

    states: Mapping[str, StatePolicy]  # by OpenSpiel's information state string
    thoughts: str  # how thoughts were treated
    version: int | None = None  # of the weights


def text_tree(game: OpenSpielGame) -> TextTree:
    """All information states of a game, each as its agent reads it.

    Args:
        game: is stood at every state in turn, and left at the last.

    Raises:
        ConfigError: OpenSpiel has no information states for it, or they are too many.
    """
    spiel = game.spiel_game
    if not spiel.get_type().provides_information_state_string:
        raise ConfigError(
            f"{game.name} has no information states in OpenSpiel, so no NashConv; measure it by "
            "matches"
        )
    found: dict[str, tuple[int, pyspiel.State]] = {}
    for state, _ in nodes(spiel, None):
        for player, key in _movers(state):
            found.setdefault(key, (player, state))
        if len(found) > MAX_STATES:
            raise ConfigError(
                f"{game.name} has more than {MAX_STATES} information states, too many to walk; "
                "measure it by matches against a solver"
            )
    states = {}
    for key, (player, state) in found.items():
        legal = {game.actions[number]: number for number in state.legal_actions(player)}
        seen = game.set_state(state).observation(game.agent(player))
        states[key] = TextState(seen, legal)
    return TextTree(spiel, tuple(game.possible_agents), game.rules(), states)


def written_policy(
    tree: TextTree, rule: Callable[[TextState], Mapping[str, float]], thoughts: str = "none"
) -> PolicyTable:
    """A policy by a rule instead of a model: scripted play, a solver's table, a truth for tests.

    Args:
        tree: of the game.
        rule: probability of each legal action in a state; they sum to 1.
        thoughts: how to call it in results.
    """
    chances = {key: dict(rule(state)) for key, state in tree.states.items()}
    return table(tree, chances, dict.fromkeys(chances, 1.0), thoughts, None)


def uniform(state: TextState) -> dict[str, float]:
    """All legal actions equally likely."""
    return dict.fromkeys(state.actions, 1 / len(state.actions))


def equilibrium_policy(tree: TextTree) -> PolicyTable:
    """A Nash equilibrium, to compare a policy with; there may be others.

    Raises:
        GameError: not two players with opposed interests, or too large.
    """
    chances = equilibrium(tree.game)
    rows = {
        key: {name: chances[key][number] for name, number in state.actions.items()}
        for key, state in tree.states.items()
    }
    return table(tree, rows, dict.fromkeys(rows, 1.0), "none", None)


def table(
    tree: TextTree,
    chances: Mapping[str, Mapping[str, float]],
    mass: Mapping[str, float],
    thoughts: str,
    version: int | None,
) -> PolicyTable:
    """A policy table from its probabilities, with the reach of every state added.

    Args:
        tree: of the game.
        chances: state -> legal action -> probability.
        mass: state -> probability of a legal reply.
        thoughts: how thoughts were treated.
        version: of the weights; None = no model.
    """
    reach = dict.fromkeys(tree.states, 0.0)
    for state, probability in nodes(tree.game, numbered(tree, chances)):
        for _, key in _movers(state):
            reach[key] += probability
    states = {
        key: StatePolicy(state.observation, chances[key], mass[key], reach[key])
        for key, state in tree.states.items()
    }
    return PolicyTable(states, thoughts, version)


def numbered(tree: TextTree, chances: Mapping[str, Mapping[str, float]]) -> Numbered:
    """A policy by OpenSpiel's action numbers."""
    return {
        key: {tree.states[key].actions[name]: p for name, p in row.items()}
        for key, row in chances.items()
    }


def nodes(game: pyspiel.Game, policy: Numbered | None) -> Iterator[tuple[pyspiel.State, float]]:
    """Decisions and ends with their probabilities under a policy; None = all, actions weigh 1."""
    stack = [(game.new_initial_state(), 1.0)]
    while stack:
        state, probability = stack.pop()
        if state.is_chance_node():
            after = [(state.child(a), probability * p) for a, p in state.chance_outcomes()]
        else:
            yield state, probability
            after = [(child, probability * p) for child, p in _after(state, policy)]
        stack += reversed(after)  # first things first


def _after(state: pyspiel.State, policy: Numbered | None) -> list[tuple[pyspiel.State, float]]:
    """What follows a decision, with its probability; nothing after the end."""
    choices = [
        dict.fromkeys(state.legal_actions(player), 1.0) if policy is None else policy[key]
        for player, key in _movers(state)
    ]
    if not choices:
        return []
    if not state.is_simultaneous_node():
        return [(state.child(action), p) for action, p in choices[0].items()]
    after = []
    for moves in product(*(choice.items() for choice in choices)):
        child = state.clone()
        child.apply_actions([action for action, _ in moves])
        after.append((child, math.prod(p for _, p in moves)))
    return after


def _movers(state: pyspiel.State) -> list[tuple[int, str]]:
    """(player, information state) of everybody who decides here; none at the end."""
    player = state.current_player()
    if player >= 0:
        return [(player, state.information_state_string(player))]
    if state.is_simultaneous_node():
        players = range(state.num_players())
        return [(player, state.information_state_string(player)) for player in players]
    return []
