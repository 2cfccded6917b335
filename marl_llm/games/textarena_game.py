"""`TextArenaGame`: any TextArena game, played in its own words (needs the extra ``textarena``).

    _target_: marl_llm.games.textarena_game.TextArenaGame
    env: TicTacToe-v0
    players: 2
    max_turns: 20

TextArena writes rules and state into one running text and takes free text as an action; it decides
itself whether an action is valid and how often it asks again. When it ends a game for an invalid
move, that is an illegal move here, and our outcome table pays it. Faults of the reply itself (no
readable action, too long) never reach TextArena.

Its games draw from the global generators of Python and NumPy. Here each game has states of them of
its own, put in place for the time of a call and taken out afterwards, so that games played side by
side do not disturb each other. Its observation wrappers keep what they showed before a reset, so
every episode gets a new environment; a copy of a game (pickling) is made by playing its episode
again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from marl_llm.errors import ConfigError, nearest
from marl_llm.games.outcomes import Interest, OutcomeTable, Scoring
from marl_llm.games.text_game import Legal, TextGame, View
from marl_llm.types import Outcome


class TextArenaGame(TextGame):
    """A TextArena environment with its default wrappers."""

    def __init__(
        self,
        *,
        env: str,
        max_turns: int,
        players: int = 2,
        name: str | None = None,
        interest: Interest | None = None,
        returns: tuple[float, float] = (-1.0, 1.0),
        table: OutcomeTable | str = "zero_sum",
        list_legal: bool = True,
    ):
        """Make an environment.

        Args:
            env: TextArena's name of it, such as ``TicTacToe-v0``.
            max_turns: cut an episode short after this many actions of all players together.
            players: how many take part.
            name: of the game; TextArena's, if None.
            interest: whether returns are opposed, shared or mixed; None = opposed for two, else
                mixed.
            returns: the lowest and the highest return.
            table: what each ending pays, or the name of a preset.
            list_legal: unused, since TextArena's own text says what is allowed; here so that every
                game has it.
        """
        low, high = returns
        endings = {Outcome.LOSS: (low,), Outcome.DRAW: ((low + high) / 2,), Outcome.WIN: (high,)}
        super().__init__(
            name=name or env,
            actions=(),
            natural_turns=max_turns,
            scoring=Scoring(
                agents=players,
                interest=interest or ("opposed" if players == 2 else "mixed"),
                pays="result",
                endings=endings,
            ),
            table=table,
            list_legal=list_legal,
            max_turns=max_turns,
        )
        self._env_name = env
        self._env = _make(env)

    def rules(self) -> str:
        """Where the rules are."""
        return (
            f"{self.name}, a game for {self.scoring.agents} players. Its rules, and the form in "
            "which to give an action, are in the text of each observation."
        )

    def start(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """A new environment under a seed from the episode's generator."""
        seed = int(rng.integers(2**31))
        self._random = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed).get_state()
        self._texts = [""] * self.scoring.agents
        self._done = False
        self._invalid: set[int] = set()
        self._returns = [0.0] * self.scoring.agents
        with self._own_random():
            self._env = _make(self._env_name)
            self._env.reset(num_players=self.scoring.agents, seed=seed)
            self._listen()

    def movers(self) -> tuple[str, ...]:
        """TextArena's current player."""
        return () if self._done else (self.possible_agents[self._current],)

    def legal(self, agent: str) -> Legal:
        """Free text is not listed."""
        return ()

    def accepts(self, agent: str, action: str) -> bool:
        """TextArena judges it."""
        return True

    def play(self, moves: Mapping[str, str]) -> None:
        """Hand the text over, and hear what it brought."""
        (action,) = moves.values()
        with self._own_random():
            self._done, _ = self._env.step(action=action)
            if self._done:
                rewards, infos = self._env.close()
                self._invalid = {p for p, info in infos.items() if info.get("invalid_move")}
                if not self._forfeited:
                    for player, reward in (rewards or {}).items():
                        self._returns[player] = float(reward)
            else:
                self._listen()

    def earnings(self) -> Sequence[float]:
        """TextArena pays at the end."""
        return self._returns

    def result(self, agent: str) -> Outcome:
        """A fault if TextArena ended it for an invalid move, else by the returns."""
        if self._forfeited:
            offender = self._index[agent] in self._invalid
            return Outcome.ILLEGAL if offender else Outcome.OTHER_FORFEIT
        if self.scoring.agents > 1:
            return super().result(agent)
        own, low, high = self._returns[0], self.scoring.worst, self.scoring.endings[Outcome.WIN][0]
        return Outcome.WIN if own >= high else Outcome.LOSS if own <= low else Outcome.DRAW

    def view(self, agent: str) -> View:
        """All that TextArena has told this player up to its last turn."""
        text = self._texts[self._index[agent]]
        last = text.rstrip().rsplit("\n", 1)[-1]
        return View(text, brief=last, key=f"{agent}: {text}")

    @property
    def _forfeited(self) -> bool:
        """Whether an invalid move ended it; among more than two, the others play on to a result."""
        return bool(self._invalid) and self.scoring.agents <= 2

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key != "_env"}
        return {**state, "_episode": None if self._seed is None else self.snapshot()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        episode = state.pop("_episode")
        self.__dict__.update(state)
        self._env = _make(self._env_name)
        if episode is not None:
            self.restore(episode)

    def _listen(self) -> None:
        self._current, text = self._env.get_observation()
        self._texts[self._current] = str(text).strip()

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        outside = random.getstate(), np.random.get_state()
        random.setstate(self._random)
        np.random.set_state(self._numpy)
        try:
            yield
        finally:
            self._random, self._numpy = random.getstate(), np.random.get_state()
            random.setstate(outside[0])
            np.random.set_state(outside[1])


def _make(env: str) -> Any:
    try:
        import textarena
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the game {env!r} needs TextArena, which is not installed ({error.name} is missing); "
            "install it with: pip install 'marl_llm[textarena]'"
        ) from error
    from textarena.envs.registration import ENV_REGISTRY

    if env not in ENV_REGISTRY:
        raise ConfigError(f"TextArena has no game {env!r}; {nearest(env, ENV_REGISTRY)}")
    return textarena.make(env)
