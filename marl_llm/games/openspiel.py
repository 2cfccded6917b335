"""`OpenSpielGame`: rules from OpenSpiel, words from a subclass.

OpenSpiel brings tested rules and, for the same game object, the solvers that measure play against
the truth. What it lacks is text a language model can read. A subclass adds four things: the rules
in words, a name per action, what the rules can pay (`Scoring`), and `words`, which renders the
string in which OpenSpiel itself says all that one player knows. A renderer never sees the state, so
it cannot leak what that string does not hold.

Chance nodes are drawn from the episode's own generator. Moves of simultaneous nodes are collected
and applied at once. `at` stands the game at any history, so that an evaluator can put every
information state of a game through the same text as training did.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyspiel

from marl_llm.errors import GameError
from marl_llm.games.outcomes import OutcomeTable, Scoring
from marl_llm.games.text_game import Legal, TextGame, View


class OpenSpielGame(TextGame):
    """A text game whose rules are OpenSpiel's."""

    def __init__(
        self,
        spiel: pyspiel.Game,
        *,
        name: str,
        actions: Sequence[str],
        scoring: Scoring,
        table: OutcomeTable | str = "zero_sum",
        list_legal: bool = True,
        max_turns: int | None = None,
    ):
        """Wrap a loaded game.

        Args:
            spiel: OpenSpiel's game.
            name: ours.
            actions: names in the order of OpenSpiel's action numbers.
            scoring: what the rules can pay.
            table: what each ending pays, or the name of a preset.
            list_legal: say in each observation which actions are legal.
            max_turns: cut the episode short after this many turns; None = only the rules end it.
        """
        kind = spiel.get_type()
        at_once = kind.dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS
        super().__init__(
            name=name,
            actions=actions,
            natural_turns=spiel.max_game_length() * (spiel.num_players() if at_once else 1),
            scoring=scoring,
            table=table,
            list_legal=list_legal,
            max_turns=max_turns,
        )
        if len(self.actions) != spiel.num_distinct_actions():
            raise GameError(
                f"{name} has {spiel.num_distinct_actions()} actions in OpenSpiel, "
                f"but {len(self.actions)} names"
            )
        self._spiel = spiel
        self._state: pyspiel.State = spiel.new_initial_state()
        self._number = {action: i for i, action in enumerate(self.actions)}
        self._nothing = (0.0,) * scoring.agents
        self._pays_last = kind.reward_model == pyspiel.GameType.RewardModel.TERMINAL
        self._has_tensor = (
            kind.provides_information_state_tensor
            and kind.information != pyspiel.GameType.Information.PERFECT_INFORMATION
        )

    @property
    def spiel_game(self) -> pyspiel.Game:
        """OpenSpiel's game, for solvers and evaluators."""
        return self._spiel

    @property
    def state(self) -> pyspiel.State:  # type: ignore[override]  # an object
        """OpenSpiel's state now, for solvers and evaluators; to be read, not changed."""
        return self._state

    def at(self, history: Sequence[int]) -> Self:
        """Stand the game at an OpenSpiel history with a decision, as the start of an episode.

        Args:
            history: what `pyspiel.State.history()` gives: chance outcomes and actions.

        Returns:
            The game itself.

        Raises:
            GameError: the history is not one of this game, or ends where no agent decides.
        """
        seed = 0 if self._seed is None else self._seed
        self.reset(seed, {"history": [int(action) for action in history]})
        return self

    def set_state(self, state: pyspiel.State) -> Self:
        """Stand the game at a copy of this OpenSpiel state, as `at` does."""
        return self.at(state.history())

    @abstractmethod
    def words(self, told: str, player: int) -> tuple[str, str]:
        """The text and the brief of what a player is told.

        Args:
            told: OpenSpiel's own string of it (see `told`).
            player: who is told.
        """

    def told(self, player: int) -> str:
        """All that a player knows, in OpenSpiel's notation; equal strings = equal information."""
        return self._state.information_state_string(player)

    # The hooks of TextGame.

    def start(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """The initial state, or the one after `options["history"]`."""
        self._rng = rng
        self._state = self._spiel.new_initial_state()
        history = options.get("history")
        if history is not None:
            self._follow(history)
        else:
            self._deal()

    def movers(self) -> tuple[str, ...]:
        """The current player, all players at a simultaneous node, nobody at the end."""
        player = self._state.current_player()
        if player >= 0:
            return (self.possible_agents[player],)
        if player == pyspiel.PlayerId.SIMULTANEOUS:
            return tuple(self.possible_agents)
        return ()

    def legal(self, agent: str) -> Legal:
        """Names of OpenSpiel's legal actions."""
        names = self.actions
        return tuple([names[i] for i in self._state.legal_actions(self._index[agent])])

    def accepts(self, agent: str, action: str) -> bool:
        """Whether the name is known and its number legal."""
        number = self._number.get(action)
        return number is not None and number in self._state.legal_actions(self._index[agent])

    def play(self, moves: Mapping[str, str]) -> None:
        """Apply the moves, then whatever chance decides before the next decision."""
        if self._state.current_player() == pyspiel.PlayerId.SIMULTANEOUS:
            self._state.apply_actions(
                [self._number[moves[agent]] for agent in self.possible_agents]
            )
        else:
            (action,) = moves.values()
            self._state.apply_action(self._number[action])
        self._deal()

    def earnings(self) -> Sequence[float]:
        """OpenSpiel's returns so far; nothing before the end where only the end pays."""
        if self._pays_last and not self._state.is_terminal():
            return self._nothing
        return self._state.returns()

    def view(self, agent: str) -> View:
        """What OpenSpiel tells this player, in words."""
        player = self._index[agent]
        told = self.told(player)
        text, brief = self.words(told, player)
        return View(text, brief, told)

    def numbers(self, agent: str) -> np.ndarray:
        """OpenSpiel's information state tensor, or its observation tensor where that says all."""
        player = self._index[agent]
        tensor = (
            self._state.information_state_tensor(player)
            if self._has_tensor
            else self._state.observation_tensor(player)
        )
        return np.array(tensor, dtype=np.float32)

    def _deal(self) -> None:
        """Draw at chance nodes until an agent decides or the game ends."""
        state = self._state
        while state.is_chance_node():
            outcomes = state.chance_outcomes()
            left = self._rng.random()
            drawn = outcomes[-1][0]  # should rounding leave some probability
            for outcome, probability in outcomes:
                left -= probability
                if left < 0:
                    drawn = outcome
                    break
            state.apply_action(drawn)

    def _follow(self, history: Sequence[int]) -> None:
        state = self._state
        rest = list(history)
        while rest:
            at_once = state.current_player() == pyspiel.PlayerId.SIMULTANEOUS
            players = range(self.scoring.agents) if at_once else (state.current_player(),)
            moves, rest = rest[: len(players)], rest[len(players) :]
            allowed = [() if state.is_terminal() else state.legal_actions(p) for p in players]
            if len(moves) < len(players) or any(
                move not in legal for move, legal in zip(moves, allowed, strict=True)
            ):  # OpenSpiel would end the process
                raise GameError(
                    f"history {list(history)} is none of {self.name}: {moves} cannot follow "
                    f"{state.history()}, only {allowed}"
                )
            if at_once:
                state.apply_actions(moves)
            else:
                state.apply_action(moves[0])
        if not self.movers():
            raise GameError(
                f"history {list(history)} of {self.name} ends at "
                f"{'its end' if state.is_terminal() else 'a chance node'}; give one where an agent "
                "decides"
            )
