"""Samples: the turns of played episodes as a `TurnBatch`, each with its exact advantage.

sample(process, rng, groups=120, size=8)      independent episodes
grow(process, rng, groups=120)                groups that grew as trees
restart(process, rng, groups=120)             four fresh episodes, and four replays of a failure
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from marl_llm.credit import returns
from marl_llm.credit.batch import TurnBatch
from marl_llm.credit.given import Resampler
from marl_llm.credit.segments import Array, chains
from marl_llm.credit.truth.play import Luck, Play, draw_luck, paid, play
from marl_llm.credit.truth.process import Process, Solution, solve
from marl_llm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How the turns of a process look in a batch."""

    tokens: int | tuple[int, int] = 1  # sampled tokens of a turn, or the range they are drawn from
    unique: float = 0.0  # share of the turns whose state key is seen nowhere else
    shared_keys: bool = False  # equal states have equal keys in all groups, as in one game
    shared_chance: bool = False  # the episodes of a group meet the same chance: one schedule

    def __post_init__(self) -> None:
        low, high = (self.tokens, self.tokens) if isinstance(self.tokens, int) else self.tokens
        if not 1 <= low <= high:
            raise ConfigError(f"tokens of a turn are at least 1, or a range, got {self.tokens}")
        if not 0 <= self.unique <= 1:
            raise ConfigError(f"unique is a share in [0, 1], got {self.unique}")


@dataclass(frozen=True, slots=True)
class Sample:
    """N turns, what they really were, and what each was really worth."""

    process: Process
    solution: Solution
    batch: TurnBatch
    luck: Luck | None  # None = the episodes were listed, not drawn
    row_of: Array  # [E, T] int: the row of a turn, -1 = there was none
    played: Array  # [N] int: number of the episode in `luck`
    state: Array  # [N] int
    action: Array  # [N] int
    branch: Array  # [N] int
    advantage: Array  # [N]: exact
    decisive: Array  # [N] bool: a turn in which some action matters
    node: Array  # [N] int: the row of which this one is a copy; its own number = of none

    @property
    def copied(self) -> Array:
        """Which rows are copies of others, [N] bool."""
        return self.node != np.arange(len(self.node))

    def after(self) -> Array:
        """The state behind each turn, [N] int; S = the end."""
        return self.process.after[self.state, self.action, self.branch]

    def luck_from(self, rows: Array) -> Luck:
        """The luck that the episodes of some rows had from those turns on.

        Raises:
            ConfigError: the episodes were listed, not drawn.
        """
        if self.luck is None:
            raise ConfigError(f"{self.process.name}: listed episodes had no luck; sample them")
        luck, episode, length = self.luck, self.played[rows], self.luck.action.shape[1]
        at = np.minimum(self.batch.turn[rows][:, None] + np.arange(length), length - 1)
        return Luck(
            luck.start[episode],
            luck.action[episode[:, None], at],
            luck.chance[episode[:, None], at],
        )

    def before(self) -> Array:
        """What the row's agent had been paid for its turns before this one, [N]."""
        agents = self.batch.agents()
        reward = self.batch.reward
        return returns.totals(reward, agents) - returns.to_go(reward, agents)

    def resampler(self, rng: np.random.Generator) -> Resampler:
        """Plays on from the turns of the batch, as the process's own policy does.

        Args:
            rng: of the continuations.
        """

        def resample(rows: Array, count: int, *, after: bool = False) -> Array:
            many = np.repeat(rows, count)
            agent = self.batch.agent[many]
            state = self.after()[many] if after else self.state[many]
            total = self.before()[many] + paid(
                self.process, state, draw_luck(self.process, rng, len(many)), agent
            )
            if after:
                column = self.process.payee(agent)
                at = self.state[many], self.action[many], self.branch[many], column
                agents = self.batch.agents()
                whole = returns.totals(self.batch.reward, agents)
                total = np.where(agents.after[many] == 0, whole[many], total + self.process.pay[at])
            return total.reshape(len(rows), count)

        return resample


def sample(
    process: Process,
    rng: np.random.Generator,
    *,
    groups: int = 120,
    size: int = 8,
    look: Look | None = None,
    solution: Solution | None = None,
) -> Sample:
    """Episodes that are independent of each other, or share what chance does in their group.

    Args:
        process: the tables.
        rng: of everything.
        groups: how many.
        size: episodes of a group.
        look: of the turns in the batch.
        solution: of the process, if at hand.
    """
    look = look or Look()
    luck = _group_luck(process, rng, groups, size, look)
    own = np.broadcast_to(np.arange(groups * size)[:, None], luck.action.shape)
    return _sampled(process, luck, own, groups, rng, look, solution)


def grow(
    process: Process,
    rng: np.random.Generator,
    *,
    groups: int = 120,
    trees: int = 2,
    forks: tuple[int, ...] = (2, 2),
    look: Look | None = None,
    solution: Solution | None = None,
) -> Sample:
    """Groups of trees: the episodes of a tree share a trunk, and part at turns at random.

    Adds the signals "node", "tree", "design" (the tree), "suffix_of" (nobody) and "replayed".

    Args:
        process: the tables.
        rng: of everything.
        groups: how many.
        trees: in each group.
        forks: branches at each parting.
        look: of the turns in the batch.
        solution: of the process, if at hand.
    """
    leaves, length, count = int(np.prod(forks)), len(process.layers), groups * trees
    look = look or Look()
    luck = _group_luck(process, rng, groups, trees * leaves, look)
    # In each tree the forks stand at turns of its own, in their order; turn 0 is never one.
    parting = np.argsort(rng.random((count, max(length - 1, 1))), axis=1)[:, : len(forks)] + 1
    parting = np.sort(parting, axis=1)
    parted = np.arange(length)[:, None] >= parting[:, None, :]  # [trees, T, forks]
    block = leaves // np.where(parted, forks[: parting.shape[1]], 1).prod(axis=2)
    number = np.arange(count * leaves)[:, None]
    leader = number - number % np.repeat(block, leaves, axis=0)
    out = _sampled(process, luck, leader, groups, rng, look, solution)
    return _with_keys(out, tree=out.played // leaves, suffix_of=np.full(len(out.batch), -1))


def restart(
    process: Process,
    rng: np.random.Generator,
    *,
    groups: int = 120,
    fresh: int = 4,
    replays: int = 4,
    look: Look | None = None,
    solution: Solution | None = None,
) -> Sample:
    """Groups of fresh episodes, and of replays of the first that failed, from a turn at random on.

    An episode failed if its first agent got less than the process is worth; one of a single turn
    has no later turn to go on from. A group without a failure has fresh episodes only. Adds the
    signals "node", "tree", "design", "suffix_of" and "replayed".

    Args:
        process: the tables.
        rng: of everything.
        groups: how many.
        fresh: episodes of a group that are played from the start.
        replays: episodes of a group that are replayed.
        look: of the turns in the batch.
        solution: of the process, if at hand.
    """
    look, solution, size = look or Look(), solution or solve(process), fresh + replays
    luck = _group_luck(process, rng, groups, size, look)
    once = play(process, luck)
    turns = np.sum(once.state >= 0, axis=1)
    failed = once.pay[:, :, 0].sum(axis=1) < process.start @ solution.values[:-1, 0] - 1e-9
    failed = (failed & (turns > 1)).reshape(groups, size)[:, :fresh]
    source = np.arange(groups) * size + np.argmax(failed, axis=1)
    later = 1 + np.floor(rng.random(groups) * (turns[source] - 1))
    begin = np.where(np.any(failed, axis=1), later, 0)
    episode = np.arange(groups * size)
    again = episode % size >= fresh
    until = np.where(again, begin[episode // size], 0)
    leader = np.where(
        np.arange(luck.action.shape[1]) < until[:, None],
        source[episode // size, None],
        episode[:, None],
    )
    out = _sampled(process, luck, leader, groups, rng, look, solution)
    number = np.where(until > 0, episode // size, -1)
    return _with_keys(out, tree=out.played // size, suffix_of=number[out.played])


def _with_keys(sample: Sample, *, tree: Array, suffix_of: Array) -> Sample:
    """The sample with the signals of a tree rollout."""
    keys = {
        "node": sample.node,
        "tree": tree,
        "design": tree,
        "suffix_of": suffix_of,
        "replayed": sample.copied.astype(np.float64),
    }
    return replace(sample, batch=sample.batch.with_signals(keys))


def _group_luck(
    process: Process, rng: np.random.Generator, groups: int, size: int, look: Look
) -> Luck:
    """Luck of groups of episodes: one start for each, and one schedule of chance if asked for."""
    luck = draw_luck(process, rng, groups * size)
    first = np.arange(groups * size) // size * size
    chance = luck.chance[first] if look.shared_chance else luck.chance
    return Luck(luck.start[first], luck.action, chance)


def _sampled(
    process: Process,
    luck: Luck,
    leader: Array,
    groups: int,
    rng: np.random.Generator,
    look: Look,
    solution: Solution | None,
) -> Sample:
    """Play and write down.

    Args:
        process: the tables.
        luck: of E episodes, those of a group one after the other.
        leader: the episode whose luck is taken in each turn, [E, T]; up to a turn with another
            leader, two episodes are one.
        groups: how many.
        rng: of what the turns look like.
        look: of the turns in the batch.
        solution: of the process, if at hand.
    """
    episodes, turns = len(leader), np.arange(leader.shape[1])
    luck = Luck(luck.start, luck.action[leader, turns], luck.chance[leader, turns])
    return write_down(
        process,
        play(process, luck),
        group=np.arange(episodes) * groups // episodes,
        rng=rng,
        look=look,
        luck=luck,
        leader=leader,
        solution=solution,
    )


def write_down(
    process: Process,
    done: Play,
    *,
    group: Array,
    rng: np.random.Generator,
    look: Look | None = None,
    luck: Luck | None = None,
    leader: Array | None = None,
    solution: Solution | None = None,
) -> Sample:
    """The turns of played episodes as a batch.

    Args:
        process: the tables.
        done: E episodes.
        group: of each episode, [E] int.
        rng: of what the turns look like.
        look: of the turns in the batch.
        luck: of the episodes; without it nothing can be replayed.
        leader: the episode whose copy a turn is, [E, T]; None = all are their own.
        solution: of the process, if at hand.
    """
    look, solution = look or Look(), solution or solve(process)
    played, turn = np.nonzero(done.state >= 0)
    state, action, branch = (x[played, turn] for x in (done.state, done.action, done.branch))
    row_of = np.full(done.state.shape, -1)
    row_of[played, turn] = np.arange(len(played))
    key = process.key[state]
    if not look.shared_keys:
        key = group[played] * (int(process.key.max()) + 1) + key
    alone = rng.random(len(key)) < look.unique
    key = np.where(alone, key.max(initial=0) + 1 + np.arange(len(key)), key)
    low, high = (look.tokens, look.tokens) if isinstance(look.tokens, int) else look.tokens
    lengths = rng.integers(low, high + 1, len(key))
    node = np.arange(len(key)) if leader is None else row_of[leader[played, turn], turn]
    return Sample(
        process=process,
        solution=solution,
        batch=_batch(process, done, row_of, group[played], key, lengths),
        luck=luck,
        row_of=row_of,
        played=played,
        state=state,
        action=action,
        branch=branch,
        advantage=solution.advantage[state, action],
        decisive=solution.decisive[state],
        node=node,
    )


def _batch(
    process: Process, done: Play, row_of: Array, group: Array, key: Array, lengths: Array
) -> TurnBatch:
    """The columns of played turns.

    Args:
        process: the tables.
        done: E episodes.
        row_of: row of each turn, [E, T] int.
        group: [N] int.
        key: of what is known, [N] int.
        lengths: tokens of each turn, [N] int; the first chooses, the others follow from it.
    """
    played, turn = np.nonzero(row_of >= 0)
    state, action = done.state[played, turn], done.action[played, turn]
    agent, n = process.agent[state], len(state)
    agents = chains((played, agent), turn)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    logprobs = np.zeros(offsets[-1])
    logprobs[offsets[:-1]] = np.log(process.policy[state, action])
    roles, role = np.unique(process.roles, return_inverse=True)
    zeros = np.zeros(n, dtype=np.int64)
    return TurnBatch(
        group=group,
        episode=played,
        agent=agent,
        role=role[agent],
        policy=zeros,
        game=zeros,
        turn=turn,
        agent_turn=agents.before,
        parent=_parents(process, done, row_of)[played, turn],
        depth=_depths(process)[agent],
        reward=_rewards(process, done, row_of, n),
        shaping=np.zeros(n),
        terminated=agents.after == 0,
        truncated=np.zeros(n, dtype=bool),
        version=zeros,
        state_key=key,
        action_key=action,
        offsets=offsets,
        logprobs=logprobs,
        names={
            "agent": process.agents,
            "role": tuple(roles.tolist()),
            "policy": ("main",),
            "game": (process.name,),
        },
    )


def _rewards(process: Process, done: Play, row_of: Array, n: int) -> Array:
    """What reached each turn's agent after it and before the agent's next turn, [N]."""
    reward = np.zeros(n)
    mover = np.where(done.state >= 0, process.agent[done.state], -1)
    for agent in np.unique(mover[mover >= 0]):
        held = np.maximum.accumulate(np.where(mover == agent, row_of, -1), axis=1)
        pay = done.pay[:, :, process.payee(agent)]
        reward += np.bincount(held[held >= 0], pay[held >= 0], n)
    return reward


def _parents(process: Process, done: Play, row_of: Array) -> Array:
    """The row of the last turn of who called the mover, [E, T] int; -1 = nobody."""
    mover = np.where(done.state >= 0, process.agent[done.state], -1)
    caller = np.where(mover >= 0, process.caller[mover], -1)
    parent = np.full(row_of.shape, -1)
    for agent in np.unique(caller[caller >= 0]):
        held = np.maximum.accumulate(np.where(mover == agent, row_of, -1), axis=1)
        parent = np.where(caller == agent, held, parent)
    return parent


def _depths(process: Process) -> Array:
    """How many calls deep each agent is, [agents] int."""
    depth = np.zeros(len(process.agents), dtype=np.int64)
    above = process.caller
    while np.any(above >= 0):
        depth += above >= 0
        above = np.where(above >= 0, process.caller[above], -1)
    return depth
