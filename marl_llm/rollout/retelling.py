"""A finished episode told again: the game, and what its players remember, at any turn of it.

Nothing is sampled. A game is a function of its seed and its moves, and a memory one of what was
seen and said, so both come out as they were.
"""

from __future__ import annotations

from collections.abc import Mapping

from marl_llm.agents import Player
from marl_llm.agents.role import Seat
from marl_llm.errors import EpisodeError
from marl_llm.games.text_game import TextGame
from marl_llm.rollout.play import ModelSeat, completion_of
from marl_llm.types import Episode, Move


class Retelling:
    """One episode, in front of one of its turns.

    Attributes:
        episode: what is told.
        game: as it was there; to be read, not played.
        answer: the right answer that the game knows of, None = it knows none.
    """

    def __init__(
        self, episode: Episode, game: TextGame, seats: Mapping[str, ModelSeat | Player]
    ) -> None:
        """Begin in front of the first turn.

        Args:
            episode: a finished one.
            game: its game; it is reset.
            seats: who can sit down, by name.
        """
        self.episode, self.game = episode, game
        self._seats, self._told = seats, 0
        self._memories: dict[str, Seat] = {}
        game.reset(episode.seed, {"attempt": episode.attempt} if episode.attempt else None)
        self.answer = game.answer()

    def go(self, turn: int) -> None:
        """Go on until in front of the turn of this number; the number of turns is the end.

        Raises:
            EpisodeError: the game does not go as the episode says.
        """
        while self._told < turn:
            self._step()

    def memory(self, agent: str) -> Seat:
        """What a model's agent remembers here."""
        if agent not in self._memories:
            seat = self._seats[self.episode.seats[agent]]
            assert isinstance(seat, ModelSeat), f"{agent} is not played by a model"
            rules = self.game.instructions(self.game.roles[agent])
            self._memories[agent] = Seat(seat.role, seat.chat, rules)
        return self._memories[agent]

    def _step(self) -> None:
        turn = self.episode.turns[self._told]
        agent = turn.observation.agent
        if agent not in self.game.acting():
            raise EpisodeError(
                f"turn {self._told} of episode {self.episode.id} is {agent}'s, but told again "
                f"{self.episode.game} waits for {', '.join(self.game.acting()) or 'nobody'}; a "
                "game must be fixed by its seed and its moves (marl-llm games check)"
            )
        reply = completion_of(turn)
        if reply is not None:
            self.memory(agent).recall(turn.observation, reply)
        self.game.act(agent, Move(turn.action, turn.fault))
        self._told += 1
