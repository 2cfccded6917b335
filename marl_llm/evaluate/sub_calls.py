"""Sub-calls: how well a credit rule finds what each call of a delegation was worth.

A scripted team of uneven quality plays groups of equal starts. The game knows the exact Shapley
value of every call, and what is lost without it; a rule is asked about the same turns, and its
credit is correlated with both.

    drawn = draw_calls(NeedlePool, Team(), groups=200, size=8, seed=0)
    score(assign(LeaveOneOut(), drawn.batch), drawn, seed=0)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from marl_llm.agents import Player
from marl_llm.agents.delegating import Hasty
from marl_llm.credit import assign
from marl_llm.credit.batch import Credit, TurnBatch, per_token
from marl_llm.credit.columns import from_episodes
from marl_llm.credit.given import Given
from marl_llm.credit.m_grpo import MGRPO, MGRPORandom
from marl_llm.credit.segments import Array, cells, sums
from marl_llm.evaluate.statistics import Interval, bootstrap_correlation
from marl_llm.games.delegation import Delegation
from marl_llm.rollout.plans import Plan
from marl_llm.rollout.play import play
from marl_llm.seeds import derive, generator
from marl_llm.types import Episode, Move

POLICY, GAME = "team", "game"
SILENT = "silent"
Make = Callable[[], Delegation]


@dataclass(frozen=True, slots=True)
class InTime:
    """Another player, who guesses with its last turn if it would not report otherwise."""

    player: Player

    @property
    def name(self) -> str:
        """That of the other player."""
        return self.player.name

    def act(self, game: Delegation, agent: str, rng: np.random.Generator) -> str:
        """The other player's action, or a guess."""
        call = game.call_of(agent)
        assert call is not None, "only who was called is to move"
        action = self.player.act(game, agent, rng)
        late = game.turns_left(call) < 2 and not game.ends(call, action)
        return game.guess(call, rng) if late else action


@dataclass(frozen=True, slots=True)
class Silent:
    """Makes a fault, so that its call ends without a report."""

    name: str = SILENT

    def act(self, game: Delegation, agent: str, rng: np.random.Generator) -> str:
        """No action of any game."""
        return ""


@dataclass(frozen=True, slots=True)
class Team:
    """Who plays: one planner, and for each call somebody of several qualities by chance."""

    planner: Player = field(default_factory=lambda: InTime(Hasty(hasty=0.15, right=0.5)))
    others: Mapping[str, Player] = field(default_factory=lambda: {
        "good": InTime(Hasty(hasty=0.2, right=0.9)),
        "poor": InTime(Hasty(hasty=0.7, right=0.5)),
    })  # fmt: skip

    def seats(self) -> dict[str, Player]:
        """All of them by name."""
        return {"planner": self.planner, **self.others}

    def seating(self, game: Delegation, rng: np.random.Generator) -> dict[str, str]:
        """Who sits where in one episode."""
        names = list(self.others)
        drawn = rng.integers(len(names), size=len(game.possible_agents))
        return {
            agent: "planner" if agent == game.planner else names[k]
            for agent, k in zip(game.possible_agents, drawn.tolist(), strict=True)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Episodes of a team, their turns as one policy's, and the exact credit of every call.

    The batch has the signals `return_without`, the planner's share of right without this report,
    and `shapley_value`; both are missing for the planner's own turns.
    """

    make: Make
    team: Team
    seed: int
    episodes: tuple[Episode, ...]
    batch: TurnBatch
    rows: Array  # [C] int: the last turn of each call below the planner
    shapley: Array  # [C]
    left_out: Array  # [C]

    @property
    def group(self) -> Array:
        """Of each call, [C]."""
        return self.batch.group[self.rows]


def draw_calls(make: Make, team: Team, *, groups: int, size: int, seed: int) -> Calls:
    """Play, and find out what each call was worth.

    Args:
        make: makes the game, which must have a `worth`.
        team: who plays.
        groups: different starts.
        size: episodes of each.
        seed: of everything.
    """
    game = make()
    plans = [
        Plan(
            id=n,
            group=n // size,
            game=GAME,
            seed=derive(seed, "start", n // size),
            players=team.seating(game, generator(seed, "seats", n)),
        )
        for n in range(groups * size)
    ]
    episodes = as_policy(play(plans, {GAME: make}, team.seats(), {}, seed=seed))
    values: dict[tuple[int, str], tuple[float, float, float]] = {}
    for episode in episodes:
        game.reset(episode.seed)
        for turn in episode.turns:
            game.act(turn.observation.agent, Move(turn.action, turn.fault))
        right = game.right_answer()
        for agent, value in game.call_values().items():
            values[episode.id, agent] = value.shapley, value.left_out, right - value.left_out
    batch = from_episodes(episodes, POLICY)
    none = (np.nan, np.nan, np.nan)
    shapley, left_out, without = np.array([
        values.get((number, batch.name("agent", agent)), none)
        for number, agent in zip(batch.episode.tolist(), batch.agent.tolist(), strict=True)
    ]).T  # fmt: skip
    rows = np.flatnonzero((batch.agents().after == 0) & (batch.depth > 0))
    return Calls(
        make=make,
        team=team,
        seed=seed,
        episodes=tuple(episodes),
        batch=batch.with_signals({"return_without": without, "shapley_value": shapley}),
        rows=rows,
        shapley=shapley[rows],
        left_out=left_out[rows],
    )


def as_policy(episodes: list[Episode]) -> list[Episode]:
    """Scripted episodes as if one policy had sampled a token in every turn."""
    return [
        replace(episode, turns=tuple(
            replace(turn, policy=POLICY, ids=(0,), logprobs=(0.0,)) for turn in episode.turns
        ))
        for episode in episodes
    ]  # fmt: skip


def replayed_without(calls: Calls, count: int) -> Array:
    """What the planner gets when this call ends without a report and play goes on, [N].

    Everybody who moves after it plays anew, so that the planner may call again. The planner's own
    turns have no such number, NaN.

    Args:
        calls: episodes of a team.
        count: continuations of each call, whose mean is taken.
    """
    batch = calls.batch
    plans: list[Plan] = []
    for row in calls.rows.tolist():
        episode = calls.episodes[int(batch.episode[row])]
        agent, turn = batch.name("agent", int(batch.agent[row])), int(batch.turn[row])
        plans += [
            Plan(
                id=len(plans) + k,
                group=episode.group,
                game=GAME,
                seed=episode.seed,
                players={**episode.seats, agent: SILENT},
                opening=episode.turns[:turn],
            )
            for k in range(count)
        ]
    seats = {**calls.team.seats(), SILENT: Silent()}
    planner = calls.make().planner
    seed = derive(calls.seed, "without")
    played = play(plans, {GAME: calls.make}, seats, {}, seed=seed)
    found = np.full(len(batch), np.nan)
    found[calls.rows] = np.reshape([e.returns[planner] for e in played], (-1, count)).mean(axis=1)
    agents = batch.agents()
    last = np.full(agents.count, np.nan)
    last[agents.of[calls.rows]] = found[calls.rows]
    return last[agents.of]


def of_calls(credit: Credit, calls: Calls) -> Array:
    """The credit of each call, [C]: the mean over its turns."""
    batch = calls.batch
    of, count = batch.agents().of, batch.agents().count
    each = per_token(credit, batch)[batch.offsets[:-1]]
    return (sums(each, of, count) / np.bincount(of, minlength=count))[of[calls.rows]]


@dataclass(frozen=True, slots=True)
class Score:
    """Correlation of a rule's credit with the truth, over calls; intervals are over groups."""

    shapley: Interval
    within: Interval  # with the Shapley value, inside groups only
    left_out: Interval


def score(credit: Array, calls: Calls, seed: int) -> Score:
    """How close credit comes to what calls were worth.

    Args:
        credit: of each call, [C].
        calls: the truth.
        seed: of the bootstrap.
    """
    truths = ((calls.shapley, False), (calls.shapley, True), (calls.left_out, False))
    return Score(*(
        bootstrap_correlation(credit, truth, calls.group, seed=seed, within=within)
        for truth, within in truths
    ))  # fmt: skip


@dataclass(frozen=True, slots=True)
class AlignmentNoise:
    """What M-GRPO's random alignment to d calls adds to the weights that it has on average."""

    size: int  # d
    dropped: float  # share of the calls that get no weight in a draw
    baseline: float  # sd of a group's mean over draws, in units of the sd of its returns
    bias: float  # mean of its shift against "weights", in the same units
    bias_error: float  # standard error of that
    variance: float  # Σ (weight · advantage)² of the calls, over that of "weights"


def alignment_noise(batch: TurnBatch, size: int, draws: int, seed: int) -> AlignmentNoise:
    """Compare `m_grpo_random` with `m_grpo` on the calls below the planner.

    Args:
        batch: with calls.
        size: d.
        draws: how often the alignment is drawn.
        seed: of the draws.
    """
    rng = generator(seed, "alignment", size)
    rows = np.flatnonzero((batch.agents().after == 0) & (batch.depth > 0))
    fixed = assign(MGRPO(), batch)
    rule = MGRPORandom(size=size)
    drawn = [assign(rule, batch, Given(rng)) for _ in range(draws)]
    weight = np.stack([credit.weight[rows] for credit in drawn])
    moved = np.stack([credit.components["baseline"][rows] for credit in drawn])
    moved -= fixed.components["baseline"][rows]
    cell, count = cells((batch.group[rows], batch.role[rows]), len(rows))
    first = np.unique(cell, return_index=True)[1]  # one call stands for each baseline
    total = fixed.components["return"][rows]
    mean = sums(total, cell, count) / np.bincount(cell)
    spread = np.sqrt(sums((total - mean[cell]) ** 2, cell, count) / np.bincount(cell))
    vary = spread > 0
    shift = moved[:, first[vary]] / spread[vary]
    energy = [np.sum((credit.weight * credit.advantage)[rows] ** 2) for credit in (fixed, *drawn)]
    per_draw = shift.mean(axis=1)
    return AlignmentNoise(
        size=size,
        dropped=float(np.mean(weight == 0)),
        baseline=float(np.sqrt(np.mean(shift.var(axis=0)))),
        bias=float(per_draw.mean()),
        bias_error=float(per_draw.std(ddof=1) / np.sqrt(draws)),
        variance=float(np.mean(energy[1:]) / energy[0]),
    )
