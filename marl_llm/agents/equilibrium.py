"""Equilibrium policies of small games, computed once and kept: a linear program, or CFR.

A policy maps OpenSpiel's information state text to the probabilities of the legal action numbers,
for all players in one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import pyspiel
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, hstack, vstack

from marl_llm.agents.spiel import require
from marl_llm.errors import GameError

Policy = Mapping[str, Mapping[int, float]]

MAX_HISTORIES = 500_000  # a tree of this size takes a few seconds to walk


@dataclass(slots=True)
class _Player:
    """One player's side of the sequence form.

    A sequence is an information state of the player with an action there, and so stands for all its
    own choices on the way; number 0 is the empty one.
    """

    parents: list[int] = field(default_factory=lambda: [0])  # of each sequence, the one before it
    states: dict[str, tuple[int, dict[int, int]]] = field(default_factory=dict)
    # ^ information state -> (sequence that leads there, action -> sequence)

    def choices(self, state: pyspiel.State, player: int, before: int) -> dict[int, int]:
        """The sequences that go on from `before` at this state, by action."""
        key = state.information_state_string(player)
        if key not in self.states:
            start = len(self.parents)
            legal = state.legal_actions(player)
            self.states[key] = before, {a: start + i for i, a in enumerate(legal)}
            self.parents += [before] * len(legal)
        return self.states[key][1]


@dataclass(slots=True)
class _Tree:
    """A game walked to its ends: what pairs of sequences pay the first player, chance included."""

    players: tuple[_Player, _Player] = field(default_factory=lambda: (_Player(), _Player()))
    pays: dict[tuple[int, int], float] = field(default_factory=dict)
    histories: int = 0

    def walk(self, state: pyspiel.State, at: tuple[int, int], chance: float) -> None:
        """Visit everything below `state`, reached by the sequences `at` and chance's luck."""
        self.histories += 1
        if self.histories > MAX_HISTORIES:
            raise GameError(
                f"{state.get_game()} has more than {MAX_HISTORIES:,} histories, too many for an "
                "exact equilibrium; choose another player, e.g. mcts_100 or win_or_block"
            )
        if state.is_terminal():
            self.pays[at] = self.pays.get(at, 0.0) + chance * state.player_return(0)
        elif state.is_chance_node():
            for action, probability in state.chance_outcomes():
                self.walk(state.child(action), at, chance * probability)
        elif state.is_simultaneous_node():
            first, second = (self.players[i].choices(state, i, at[i]) for i in (0, 1))
            for a, x in first.items():
                for b, y in second.items():
                    child = state.clone()
                    child.apply_actions([a, b])
                    self.walk(child, (x, y), chance)
        else:
            mover = state.current_player()
            for action, sequence in self.players[mover].choices(state, mover, at[mover]).items():
                after = (sequence, at[1]) if mover == 0 else (at[0], sequence)
                self.walk(state.child(action), after, chance)


def equilibrium(game: pyspiel.Game, tremble: float = 1e-5) -> Policy:
    """A Nash equilibrium of a small two-player zero-sum game, by linear programming.

    Without trembles a policy is only right where both play it: what it does after a mistake of the
    other may throw the advantage away. So every action gets at least a share `tremble` in the
    computation, which makes every information state matter, and the share is taken out again
    afterwards. The NashConv that remains is of its order (with the default 5e-6 in Kuhn and 8e-5 in
    Leduc, with 0 nothing but rounding). Against uniform play the default earns .167 in Kuhn, the
    equilibrium found without trembles .111.

    Args:
        game: with at most `MAX_HISTORIES` histories.
        tremble: least share of each action, in [0, 1 / number of actions).

    Returns:
        Probabilities of all legal actions at every information state of both players; read-only.

    Raises:
        GameError: not two players with opposed interests, or too large.

    Source: the sequence form, Koller, Megiddo and von Stengel (1996); trembles as in Miltersen and
    Sørensen (2010).
    """
    require(game, "nash", zero_sum_pair=True)
    if not 0 <= tremble < 1 / game.num_distinct_actions():
        raise GameError(
            f"tremble must be at least 0 and below 1 / {game.num_distinct_actions()} (the number "
            f"of actions of {game}), got {tremble}"
        )
    return _equilibrium(str(game), tremble)


@lru_cache(32)
def _equilibrium(name: str, tremble: float) -> Policy:
    tree = _Tree()
    tree.walk(pyspiel.load_game(name).new_initial_state(), (0, 0), 1.0)
    first, second = tree.players
    ends = np.array(list(tree.pays)).T
    shape = (len(first.parents), len(second.parents))
    pays = coo_array((list(tree.pays.values()), (ends[0], ends[1])), shape=shape).tocsr()
    return MappingProxyType({
        **_behaviour(first, _best_plan(first, second, pays, tremble), tremble),
        **_behaviour(second, _best_plan(second, first, -pays.T.tocsr(), tremble), tremble),
    })  # fmt: skip


def _best_plan(own: _Player, other: _Player, pays: csr_array, tremble: float) -> np.ndarray:
    """The realisation plan x of `own` that is best against the best answer to it.

    With E, F the flow matrices of own and other and R, S the tremble matrices (`_flow`, `_floors`):

        max q_0   subject to   Fᵀq + Sᵀw ≤ payᵀx,   E x = e_0,   R x ≥ 0,   x, w ≥ 0

    which is max over x of min over the other's plans y, the inner minimum replaced by its dual.
    """
    flow, other_flow = _flow(own), _flow(other)
    floors, other_floors = _floors(own, tremble), _floors(other, tremble)
    n, m, states = len(own.parents), len(other.parents), other_flow.shape[0]
    gain = np.zeros(n + states + m)
    gain[n] = 1.0
    start = np.zeros(flow.shape[0])
    start[0] = 1.0
    nothing = csr_array((1, states + m))
    result = linprog(
        -gain,
        A_ub=vstack([
            hstack([-pays.T, other_flow.T, other_floors.T]),
            hstack([-floors, csr_array((n, states + m))]),
        ]),
        b_ub=np.zeros(m + n),
        A_eq=hstack([flow, vstack([nothing] * flow.shape[0])]),
        b_eq=start,
        bounds=[(0, None)] * n + [(None, None)] * states + [(0, None)] * m,
    )  # fmt: skip
    if not result.success:
        raise GameError(f"no equilibrium was found: {result.message}; use player cfr instead")
    return result.x[:n]


def _flow(player: _Player) -> csr_array:
    """[1 + states, sequences]: the empty sequence has weight 1, each state passes its weight on."""
    rows, columns, values = [0], [0], [1.0]
    for row, (before, after) in enumerate(player.states.values(), start=1):
        rows += [row] * (1 + len(after))
        columns += [before, *after.values()]
        values += [-1.0] + [1.0] * len(after)
    shape = (1 + len(player.states), len(player.parents))
    return coo_array((values, (rows, columns)), shape=shape).tocsr()


def _floors(player: _Player, tremble: float) -> csr_array:
    """[sequences, sequences]: the weight of each sequence less `tremble` times the one before."""
    n = len(player.parents)
    each = np.arange(n)
    floors = coo_array(
        (np.full(n - 1, -tremble), (each[1:], np.array(player.parents)[1:])), shape=(n, n)
    )
    return (floors + coo_array((np.ones(n), (each, each)), shape=(n, n))).tocsr()


def _behaviour(player: _Player, plan: np.ndarray, tremble: float) -> dict[str, dict[int, float]]:
    """Probabilities of actions by a realisation plan, trembles taken out; uniform if unreached."""
    policy = {}
    for key, (_, after) in player.states.items():
        weights = np.maximum(plan[list(after.values())], 0.0)
        total = weights.sum()
        shares = weights - tremble * total
        # Rounding of the program's solution, seen next to the trembles.
        shares[shares < 0.01 * tremble * total] = 0.0
        if shares.sum() <= 1e-12:
            shares = np.ones(len(after))
        shares /= shares.sum()
        policy[key] = dict(zip(after, shares.tolist(), strict=True))
    return policy


def average_policy(game: pyspiel.Game, iterations: int = 1000, plus: bool = False) -> Policy:
    """The average policy of counterfactual regret minimisation.

    Close to an equilibrium for two players with opposed interests; for more players a strong policy
    without that guarantee.

    Args:
        game: with moves in turns and at most `MAX_HISTORIES` histories.
        iterations: how many; MARS's opponent in Kuhn poker had 1000.
        plus: CFR+ (Tammelin 2014) instead of CFR (Zinkevich et al. 2007).

    Raises:
        GameError: simultaneous moves, or too large.
    """
    require(game, "cfr", in_turns=True)
    return _average_policy(str(game), iterations, plus)


@lru_cache(32)
def _average_policy(name: str, iterations: int, plus: bool) -> Policy:
    game = pyspiel.load_game(name)
    _count(game.new_initial_state(), 0)
    solver = pyspiel.CFRPlusSolver(game) if plus else pyspiel.CFRSolver(game)
    for _ in range(iterations):
        solver.evaluate_and_update_policy()
    table = solver.tabular_average_policy().policy_table()
    return MappingProxyType({key: dict(row) for key, row in table.items()})


def _count(state: pyspiel.State, seen: int) -> int:
    """`seen` and all histories from `state` on.

    Raises:
        GameError: they are more than `MAX_HISTORIES`.
    """
    seen += 1
    if seen > MAX_HISTORIES:
        raise GameError(
            f"{state.get_game()} has more than {MAX_HISTORIES:,} histories, too many for cfr; "
            "choose another player, e.g. mcts_100 for a board game or random"
        )
    if not state.is_terminal():
        for action in state.legal_actions():
            seen = _count(state.child(action), seen)
    return seen
