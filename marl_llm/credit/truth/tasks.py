"""Small tasks, each built around one way in which credit goes wrong."""

from __future__ import annotations

from collections.abc import Sequence

from marl_llm.credit.truth.bifurcation import all_good, bifurcations
from marl_llm.credit.truth.process import Choice, Decision, Process, expand
from marl_llm.errors import ConfigError


def redundant(*, turns: int = 8, at: Sequence[int] = (1, 3, 5), p: float = 0.5) -> Process:
    """Two turns buy the same evidence, a third one uses it: R = (x_1 or x_2) and x_3.

    Once the evidence is there, buying it again is worth exactly 0, in a success too.

    Args:
        turns: T.
        at: the three turns.
        p: probability of a good choice.
    """
    return bifurcations(
        lambda x: float((x[0] or x[1]) and x[2]), turns=turns, at=at, p=p, name="redundant"
    )


def dummy_agent(*, p: float = 0.5) -> Process:
    """A planner and an executor must both choose well; a third agent only talks.

    Three, three and two turns. A rule that shares credit among agents must give the third nothing.

    Args:
        p: probability of a good choice.
    """
    owners = ("planner",) * 3 + ("executor",) * 3 + ("dummy",) * 2
    return bifurcations(all_good, at=(2, 5), p=p, owner=lambda turn: owners[turn], name="team")


def coupled(*, agents: int = 3, own: float = 0.15, joint: float = 0.55, p: float = 0.6) -> Process:
    """Each agent's choice is worth something alone, and all of them together something more.

        R = Σ_i w_own · x_i + w_joint · Π_i x_i

    Each agent has two turns, of which the second matters.

    Args:
        agents: how many.
        own: w_own.
        joint: w_joint.
        p: probability of a good choice.
    """
    return bifurcations(
        lambda x: own * sum(x) + joint * all(x),
        turns=2 * agents,
        at=range(1, 2 * agents, 2),
        p=p,
        owner=lambda turn: f"agent_{turn // 2}",
        name="coupled",
    )


def key_lock(*, turns: int = 8, key: int = 1, delay: int = 5, p: float = 0.5) -> Process:
    """A key that is chosen well pays only when its lock is met, some turns later.

    At the lock nothing can be done: its turn brings the reward and deserves none of it. The other
    turns pay small change for one of their two actions, so that not all reward is the key's.

    Args:
        turns: T.
        key: the turn that chooses.
        delay: turns from the key to the lock.
        p: probability of a good choice, of key and change alike.

    Raises:
        ConfigError: the lock is not met.
    """
    lock, change = key + delay, 0.1
    if not 0 <= key < lock < turns:
        raise ConfigError(
            f"key_lock: the key of turn {key} meets its lock at turn {lock}; that must come later "
            f"and before turn {turns}"
        )

    def decide(state: tuple[int, int]) -> Decision:
        turn, held = state
        chances = (1 - p, p)

        def then(action: int) -> tuple[tuple[float, float, object], ...]:
            has = action if turn == key else held
            pay = float(held) if turn == lock else change * action if turn != key else 0.0
            return ((1.0, pay, (turn + 1, has) if turn + 1 < turns else None),)

        return Decision(
            agent="solver", choices=tuple(Choice(x, then(a)) for a, x in enumerate(chances))
        )

    return expand("key_lock", {(0, 0): 1.0}, decide, agents={"solver": "solver"})  # type: ignore[arg-type]


def alias(*, turns: int = 4) -> Process:
    """The best action hangs on something that no text shows: Z is 0 or 1, and the action must be Z.

    Turn 1 matters, and its two states look the same. What is read in the history does not even tell
    the sign of an action's effect; a restored state does.

    Args:
        turns: T, at least 2.
    """

    def decide(state: tuple[int, int, int]) -> Decision:
        turn, z, right = state

        def then(action: int) -> tuple[tuple[float, float, object], ...]:
            got = int(action == z) if turn == 1 else right
            if turn + 1 == turns:
                return ((1.0, float(got), None),)
            if turn == 0:  # Z is settled behind the back of whoever moves
                return ((0.5, 0.0, (1, 0, 0)), (0.5, 0.0, (1, 1, 0)))
            return ((1.0, 0.0, (turn + 1, z, got)),)

        return Decision(
            agent="solver", choices=(Choice(0.5, then(0)), Choice(0.5, then(1))), known=turn
        )

    return expand("alias", {(0, 0, 0): 1.0}, decide, agents={"solver": "solver"})  # type: ignore[arg-type]


def stopping(*, turns: int = 4, step: float = 0.3, p: float = 0.5) -> Process:
    """The policy decides when to stop; every turn pays the same, and the outcome is a coin.

    Going on at turn k is worth the turns it opens and nothing else, A(go on) - A(stop) = step ·
    (expected further turns). A baseline per turn index hides it: it compares a turn only with
    episodes that came as far.

    Args:
        turns: T, the most.
        step: what a turn pays, whatever is done.
        p: probability of going on.
    """

    def decide(state: int) -> Decision:
        # A coin of ±½ comes with the last turn that is played.
        coin = ((0.5, step - 0.5, None), (0.5, step + 0.5, None))
        stop = Choice(1 - p, coin)
        if state + 1 == turns:
            return Decision(agent="solver", choices=(stop, Choice(p, coin)))
        return Decision(agent="solver", choices=(stop, Choice(p, ((1.0, step, state + 1),))))

    return expand("stopping", {0: 1.0}, decide, agents={"solver": "solver"})  # type: ignore[arg-type]
