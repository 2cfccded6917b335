"""Exact credit in real games: what each action changed in the mover's expected return.

    exact = exact_credit(text_tree(KuhnPoker()), policy)
    exact.of(batch)        # [N], for turns that were really played

The whole game is summed over, so small games only. The credit is that of an information state: the
mean over what the agent could not see, weighted by how often it was so when all play the policy.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np
import pyspiel

from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.segments import Array
from marl_llm.credit.truth import Truth
from marl_llm.credit.truth.process import (
    Branch,
    Choice,
    Decision,
    Process,
    Solution,
    expand,
    solve,
)
from marl_llm.credit.truth.sample import Look
from marl_llm.errors import ConfigError, EpisodeError
from marl_llm.evaluate.text_tree import Numbered, PolicyTable, TextTree, numbered

History = tuple[int, ...]


def game_process(game: pyspiel.Game, policy: Numbered) -> Process:
    """A game under a policy as a process, whose credit is that of information states.

    Args:
        game: in turns, small enough to walk.
        policy: information state -> OpenSpiel's action -> probability, for all players.

    Raises:
        ConfigError: players move at the same time.
    """
    if game.get_type().dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        raise ConfigError(f"{game} has simultaneous moves; exact credit is of games in turns")
    states: dict[History, pyspiel.State] = {}
    agents = {f"player_{i}": f"player_{i}" for i in range(game.num_players())}

    def settled(state: pyspiel.State, chance: float = 1.0) -> list[Branch]:
        """The next decisions and ends behind what chance does."""
        if state.is_chance_node():
            return [
                branch
                for action, p in state.chance_outcomes()
                for branch in settled(state.child(action), chance * p)
            ]
        if state.is_terminal():
            return [(chance, tuple(state.returns()), None)]
        at = tuple(state.history())
        states[at] = state
        return [(chance, (0.0,) * len(agents), at)]

    def decide(at: Hashable) -> Decision:
        state = states[at]  # type: ignore[index]
        mover, key = state.current_player(), state.information_state_string()
        return Decision(
            agent=f"player_{mover}",
            known=key,
            choices=tuple(
                Choice(policy[key][action], tuple(settled(state.child(action))))
                for action in state.legal_actions()
            ),
        )

    start = {at: p for p, _, at in settled(game.new_initial_state())}
    return expand(game.get_type().short_name, start, decide, agents=agents, hidden=True)


@dataclass(frozen=True, slots=True)
class ExactCredit:
    """Q - V of every action in every information state of a game, under one policy."""

    process: Process
    solution: Solution
    advantage: Mapping[str, Mapping[str, float]]  # key of an observation -> legal action -> A

    def of(self, batch: TurnBatch) -> Array:
        """Exact credit of turns that were played, [N].

        A turn whose action was not legal, or could not be read, has none and gets 0.

        Args:
            batch: turns of this game only, with the names of states and actions.

        Raises:
            EpisodeError: an information state is not one of this game.
        """
        names = batch.names["state_key"], batch.names["action_key"]
        pairs, row = np.unique(
            np.stack((batch.state_key, batch.action_key), axis=1), axis=0, return_inverse=True
        )
        values = np.zeros(len(pairs))
        for i, (state, action) in enumerate(pairs.tolist()):
            key = names[0][state]
            if key not in self.advantage:
                raise EpisodeError(f"{self.process.name} has no information state {key!r}")
            values[i] = self.advantage[key].get(names[1][action], 0.0)
        return values[row.ravel()]


def exact_credit(tree: TextTree, policy: PolicyTable) -> ExactCredit:
    """The exact credit of a policy against itself.

    Args:
        tree: of the game, from `text_tree`.
        policy: of every information state in it.
    """
    chances = numbered(tree, {key: state.actions for key, state in policy.states.items()})
    process = game_process(tree.game, chances)
    solution = solve(process)
    seen = np.unique(process.key, return_index=True)[1]
    rows = dict(zip(_keys(tree.game, process, seen), solution.advantage[seen], strict=True))
    return ExactCredit(
        process,
        solution,
        {
            state.observation.key: {
                name: float(rows[key][place])
                for place, name in enumerate(sorted(state.actions, key=state.actions.__getitem__))
            }
            for key, state in tree.states.items()
        },
    )


def _keys(game: pyspiel.Game, process: Process, decisions: Array) -> list[str]:
    """The information states of some decisions, as OpenSpiel calls them."""
    keys = []
    for number in decisions.tolist():
        state = game.new_initial_state()
        for action in process.states[number]:  # type: ignore[attr-defined]
            state.apply_action(action)
        keys.append(state.information_state_string())
    return keys


def game_truth(tree: TextTree, policy: PolicyTable) -> Truth:
    """A game under a policy, for the bench: the episodes of a group have the same deal.

    Args:
        tree: of the game.
        policy: of every information state in it.
    """
    chances = numbered(tree, {key: state.actions for key, state in policy.states.items()})
    name = tree.game.get_type().long_name
    return Truth(
        f"{name} by a policy against itself",
        lambda: game_process(tree.game, chances),
        Look(shared_keys=True),
    )
