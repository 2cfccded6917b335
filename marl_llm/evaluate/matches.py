"""Matches: one contender against a panel, every seat, the same deals.

A **pair** is one deal played once from every seat: the contender sits in each seat in turn (two
games at a two-player game), the opponent in all others, the game's own draws the same. The luck of
the deal and of the seat then falls on both sides alike, and a pair is what is counted once in every
pooled interval. A contender matched with itself (a team in a cooperative game) plays a deal once.

Deals depend on the seed, the game and the pair's number only, so two contenders, or two snapshots
of one, meet the same deals and can be compared pair by pair (`compare`).

Two measures are reported side by side: the **score** (win 1, draw or turn limit ½, loss or own
forfeit 0, a game forfeited by the other 1) and the **return** in the game's own units. Forfeits are
counted apart, by kind, and the return is given once more over the pairs in which nobody forfeited:
a change of that number is play, a change of the other may be format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Table

from marl_llm.agents import Player
from marl_llm.errors import ConfigError, nearest
from marl_llm.evaluate.statistics import Interval, bootstrap_mean, paired_difference
from marl_llm.games import Game
from marl_llm.rollout.plans import Plan
from marl_llm.rollout.play import ModelSeat, play
from marl_llm.seeds import derive
from marl_llm.serve import Engine
from marl_llm.types import FORFEITS, Episode, Outcome

SCORE = {
    Outcome.WIN: 1.0,
    Outcome.DRAW: 0.5,
    Outcome.LOSS: 0.0,
    Outcome.TRUNCATED: 0.5,
    Outcome.OTHER_FORFEIT: 1.0,
    Outcome.ABSENT: 0.5,
    **dict.fromkeys(FORFEITS, 0.0),
}


@dataclass(frozen=True, slots=True)
class Tally:
    """What the contender got out of a set of games."""

    games: int
    score: Interval | None  # None with fewer than 2 units
    returns: Interval | None
    returns_without_forfeits: Interval | None  # over the units in which nobody forfeited
    outcomes: Mapping[str, int]  # of the contender, by kind
    forfeits: float  # share of games that the contender forfeited
    opponent_forfeits: float  # share of games that another forfeited


@dataclass(frozen=True, slots=True)
class Match:
    """A contender against one opponent."""

    game: str
    contender: str
    opponent: str
    pairs: int
    pooled: Tally  # all seats; counted once: a pair
    seats: Mapping[str, Tally]  # by the contender's seat; counted once: a game
    pair_scores: tuple[float, ...]  # [pairs] mean over the pair's games, for comparisons
    pair_returns: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return asdict(self)


def panel_matches(
    game: str,
    make: Callable[[], Game],
    contender: str,
    panel: Sequence[str],
    seats: Mapping[str, ModelSeat | Player],
    engines: Mapping[str, Engine],
    *,
    pairs: int,
    seed: int,
    concurrency: int = 512,
) -> list[Match]:
    """Play a contender against every member of a panel, all games in one rollout.

    Args:
        game: its name.
        make: makes a fresh one.
        contender: a name in `seats`.
        panel: names in `seats`; the contender's own name means self-play.
        seats: who can sit down, by name: a model in a role or a scripted player.
        engines: by policy.
        pairs: deals per opponent.
        seed: of deals, replies, scripted players and the resampling of intervals.
        concurrency: games in flight at once.

    Returns:
        One match per member, in their order.

    Raises:
        ConfigError: an unknown name, an empty panel, or no pairs.
    """
    if pairs < 1:
        raise ConfigError(f"matches need at least 1 pair per opponent, got {pairs}")
    if not panel:
        raise ConfigError(f"the panel of {game} is empty; {nearest('', seats)}")
    for name in (contender, *panel):
        if name not in seats:
            raise ConfigError(f"unknown player {name!r}; {nearest(name, seats)}")
    agents = tuple(make().possible_agents)
    plans = [
        plan
        for number, opponent in enumerate(panel)
        for plan in _plans(game, agents, contender, opponent, pairs, seed, number)
    ]
    episodes = play(plans, {game: make}, seats, engines, seed=seed, concurrency=concurrency)
    return [
        _match(game, agents, contender, opponent, episodes[start : start + length], seed)
        for opponent, start, length in _slices(agents, contender, panel, pairs)
    ]


def compare(first: Match, second: Match, *, seed: int, measure: str = "score") -> Interval:
    """Mean difference, pair by pair, of two contenders against the same opponent on the same deals.

    Args:
        first: one contender's match.
        second: the other's, with as many pairs and the same seed.
        seed: of the resampling.
        measure: "score" or "return".

    Returns:
        first minus second; `statistics.verdict` puts it into words.

    Raises:
        ConfigError: the matches are of different games, opponents or sizes.
    """
    for what, ours, theirs in (
        ("game", first.game, second.game),
        ("opponent", first.opponent, second.opponent),
        ("number of pairs", first.pairs, second.pairs),
    ):
        if ours != theirs:
            raise ConfigError(
                f"only matches with the same {what} can be compared, got {ours!r} and {theirs!r}"
            )
    if measure == "score":
        return paired_difference(first.pair_scores, second.pair_scores, seed=seed)
    if measure == "return":
        return paired_difference(first.pair_returns, second.pair_returns, seed=seed)
    raise ConfigError(f"unknown measure {measure!r}; {nearest(measure, ('score', 'return'))}")


def table(matches: Sequence[Match], title: str | None = None) -> Table:
    """The matches as a table for the terminal: one row per opponent and seat, pooled first."""
    out = Table(title=title)
    for column in (
        "opponent",
        "seat",
        "games",
        "score",
        "return",
        "return, no forfeit",
        "forfeits",
    ):
        out.add_column(column, justify="left" if column in ("opponent", "seat") else "right")
    for match in matches:
        for seat, tally in {"all": match.pooled, **match.seats}.items():
            out.add_row(
                match.opponent if seat == "all" else "",
                seat,
                str(tally.games),
                *(
                    "-" if interval is None else str(interval)
                    for interval in (tally.score, tally.returns, tally.returns_without_forfeits)
                ),
                f"{tally.forfeits:.1%}",
            )
    return out


def _plans(
    game: str,
    agents: tuple[str, ...],
    contender: str,
    opponent: str,
    pairs: int,
    seed: int,
    number: int,
) -> list[Plan]:
    """Plans of one match, the games of a pair next to each other, in the order of the seats."""
    chairs = agents[:1] if opponent == contender else agents
    first = number * pairs * len(agents)  # ids stay distinct across the panel
    return [
        Plan(
            id=first + pair * len(chairs) + index,
            group=number * pairs + pair,
            game=game,
            seed=derive(seed, "deal", game, pair),
            players={agent: contender if agent == chair else opponent for agent in agents},
        )
        for pair in range(pairs)
        for index, chair in enumerate(chairs)
    ]


def _slices(
    agents: tuple[str, ...], contender: str, panel: Sequence[str], pairs: int
) -> list[tuple[str, int, int]]:
    """(opponent, start, length) of each match among the episodes."""
    slices, start = [], 0
    for opponent in panel:
        length = pairs * (1 if opponent == contender else len(agents))
        slices.append((opponent, start, length))
        start += length
    return slices


@dataclass(frozen=True, slots=True)
class _Sheet:
    """What the contender got, one row per pair and one column per seat of its."""

    scores: np.ndarray
    returns: np.ndarray
    own: np.ndarray  # bool: it forfeited
    others: np.ndarray  # bool: another forfeited
    kinds: np.ndarray  # its outcome's name

    @classmethod
    def of(cls, seated: Sequence[Sequence[tuple[Episode, str]]]) -> _Sheet:
        """The sheet of these games: episode and seat of the contender, by pair."""
        outcomes = [[episode.outcomes[agent] for episode, agent in row] for row in seated]
        return cls(
            scores=np.array([[SCORE[outcome] for outcome in row] for row in outcomes]),
            returns=np.array(
                [[episode.returns[agent] for episode, agent in row] for row in seated]
            ),
            own=np.array([[outcome in FORFEITS for outcome in row] for row in outcomes]),
            others=np.array([[_others_forfeited(*game) for game in row] for row in seated]),
            kinds=np.array([[outcome.value for outcome in row] for row in outcomes]),
        )

    def seat(self, index: int) -> _Sheet:
        """One column alone."""
        columns = (self.scores, self.returns, self.own, self.others, self.kinds)
        return _Sheet(*(column[:, [index]] for column in columns))


def _match(
    game: str,
    agents: tuple[str, ...],
    contender: str,
    opponent: str,
    episodes: Sequence[Episode],
    seed: int,
) -> Match:
    """The result of one match from its episodes, in the order of its plans."""
    if opponent == contender:  # one game per deal, the contender in every seat of it
        seated = [[(episode, agent) for agent in agents] for episode in episodes]
    else:
        count = len(agents)
        seated = [
            list(zip(episodes[start : start + count], agents, strict=True))
            for start in range(0, len(episodes), count)
        ]
    sheet = _Sheet.of(seated)
    return Match(
        game=game,
        contender=contender,
        opponent=opponent,
        pairs=len(seated),
        pooled=_tally(sheet, seed),
        seats={agent: _tally(sheet.seat(i), seed) for i, agent in enumerate(agents)},
        pair_scores=tuple(sheet.scores.mean(1).tolist()),
        pair_returns=tuple(sheet.returns.mean(1).tolist()),
    )


def _others_forfeited(episode: Episode, agent: str) -> bool:
    return any(outcome in FORFEITS for other, outcome in episode.outcomes.items() if other != agent)


def _tally(sheet: _Sheet, seed: int) -> Tally:
    """A row is a unit: its mean is one value of the bootstrap."""
    clean = ~(sheet.own | sheet.others).any(1)
    return Tally(
        games=sheet.scores.size,
        score=_interval(sheet.scores.mean(1), seed, bounds=(0.0, 1.0)),
        returns=_interval(sheet.returns.mean(1), seed),
        returns_without_forfeits=_interval(sheet.returns[clean].mean(1), seed),
        outcomes=dict(sorted(Counter(sheet.kinds.ravel().tolist()).items())),
        forfeits=float(sheet.own.mean()),
        opponent_forfeits=float(sheet.others.mean()),
    )


def _interval(
    values: np.ndarray, seed: int, bounds: tuple[float, float] | None = None
) -> Interval | None:
    """None where fewer than 2 units leave nothing to resample."""
    return bootstrap_mean(values, seed=seed, bounds=bounds) if len(values) > 1 else None
