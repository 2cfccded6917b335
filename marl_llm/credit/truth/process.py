"""Processes: small worlds of turns, written down as tables and solved exactly.

A process is given as a rule, `Decision` by `Decision`, and `expand` makes tables of it, over which
values are exact sums. Turns are layers: every decision leads to one of the next turn or to the end,
so one pass from the last layer to the first solves it.

    S decisions (S itself stands for the end), A actions, B things that may follow an action,
    P payees: 1 where a team shares one return, otherwise one per agent
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from marl_llm.credit.segments import Array, cells, extremes, sums
from marl_llm.errors import ConfigError

MAX_DECISIONS = 200_000
SAME = 1e-12  # values closer than this are equal but for rounding

Pay = float | tuple[float, ...]  # of the team, or of each agent
Branch = tuple[float, Pay, Hashable]  # probability, pay, state then; None = the end
At = tuple[int, Hashable]  # a turn and a state in it


@dataclass(frozen=True, slots=True)
class Choice:
    """One action that can be taken."""

    probability: float  # under the policy that plays
    branches: tuple[Branch, ...]  # what may follow; probabilities sum to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One agent's turn in one state."""

    agent: str
    choices: tuple[Choice, ...]
    known: Hashable = None  # what the agent can tell of the state; None = all of it
    knob: Hashable = None  # decisions of an agent with one knob have one policy; None = `known`
    event: bool = False  # the branches are the turn's scheduled event: one law, whatever is done
    default: tuple[float, ...] | None = None  # the policy that stands in for the agent; None = same
    discount: float = 1.0  # of what comes after this turn, in values; played turns are paid in full


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A world of turns as tables. Made by `expand`."""

    name: str
    agents: tuple[str, ...]
    roles: tuple[str, ...]  # of each agent
    caller: Array  # [agents] int: the agent that calls this one, -1 = nobody
    hidden: bool  # credit is a mean over what the agent could not tell
    layers: tuple[slice, ...]  # the decisions of each turn
    turn: Array  # [S] int
    agent: Array  # [S] int: who moves
    key: Array  # [S] int: equal = the same agent can tell the same
    knob: Array  # [S] int: equal = the same probabilities, which a gradient moves together
    event: Array  # [S] bool
    discount: Array  # [S]
    start: Array  # [S] probability
    legal: Array  # [S, A] bool
    policy: Array  # [S, A] probability
    default: Array  # [S, A] probability
    chance: Array  # [S, A, B] probability
    after: Array  # [S, A, B] int
    pay: Array  # [S, A, B, P]
    states: tuple[Hashable, ...] = field(repr=False)  # what each decision was called in its layer

    def __len__(self) -> int:
        return len(self.turn)

    def payee(self, agent: Array) -> Array:
        """The column of `pay` that an agent looks at, [N] int."""
        return np.minimum(agent, self.pay.shape[-1] - 1)

    def find(self, turn: int, state: Hashable) -> int:
        """The number of a decision."""
        layer = self.layers[turn]
        return layer.start + self.states[layer].index(state)


def expand(
    name: str,
    start: Mapping[Hashable, float],
    rule: Callable[[Hashable], Decision],
    *,
    agents: Mapping[str, str],
    calls: Mapping[str, str] | None = None,
    hidden: bool = False,
) -> Process:
    """The tables of a process.

    Args:
        name: how to call it.
        start: first states and their probabilities.
        rule: the decision in a state.
        agents: name -> role, of all agents.
        calls: agent -> the agent that calls it; who is not named is called by nobody.
        hidden: whether the exact credit is averaged over what the agent cannot tell.

    Raises:
        ConfigError: probabilities do not sum to 1, an agent is not known, an event hangs on what
            is done, or it is too large.
    """
    calls = calls or {}
    if not _sums_to_1(start.values()):
        raise ConfigError(f"{name}: probabilities of the start do not sum to 1")
    layers, decisions = _walk(name, start, rule)
    number = {(t, s): n for n, (t, s) in enumerate(_numbered(layers))}
    names = tuple(agents)
    for decision in decisions.values():
        _check(name, decision, names)
    _check_events(name, decisions)
    pays = {_payees(b) for d in decisions.values() for c in d.choices for b in c.branches}
    if len(pays) > 1 or not pays <= {1, len(names)}:
        raise ConfigError(
            f"{name} pays {sorted(pays)} at a time; one number for the team, or {len(names)}, one "
            "per agent, is needed everywhere"
        )
    first = np.zeros(len(number))
    first[[number[0, state] for state in start]] = list(start.values())
    ends = np.cumsum([0, *map(len, layers)]).tolist()
    known = {at: at if d.known is None else d.known for at, d in decisions.items()}
    knobs = {at: known[at] if d.knob is None else d.knob for at, d in decisions.items()}
    return Process(
        name=name,
        agents=names,
        roles=tuple(agents.values()),
        caller=np.array([names.index(calls[a]) if a in calls else -1 for a in names]),
        hidden=hidden,
        layers=tuple(slice(*pair) for pair in pairwise(ends)),
        turn=np.array([turn for turn, _ in number]),
        agent=np.array([names.index(d.agent) for d in decisions.values()]),
        key=_codes((d.agent, known[at]) for at, d in decisions.items()),
        knob=_codes((d.agent, knobs[at]) for at, d in decisions.items()),
        event=np.array([d.event for d in decisions.values()]),
        discount=np.array([d.discount for d in decisions.values()]),
        start=first,
        **_tables(decisions, number, pays.pop()),
        states=tuple(state for _, state in number),
    )


def _tables(
    decisions: Mapping[At, Decision], number: Mapping[At, int], payees: int
) -> dict[str, Array]:
    """What is known of each action, and of each thing that may follow it."""
    shape = (
        len(decisions),
        max(len(d.choices) for d in decisions.values()),
        max(len(c.branches) for d in decisions.values() for c in d.choices),
    )
    legal, policy, default = (np.zeros(shape[:2], dtype=x) for x in (bool, float, float))
    chance, pay = np.zeros(shape), np.zeros((*shape, payees))
    after = np.full(shape, shape[0])
    for (turn, state), decision in decisions.items():
        s, count = number[turn, state], len(decision.choices)
        for a, choice in enumerate(decision.choices):
            legal[s, a], policy[s, a] = True, choice.probability
            for b, (probability, paid, then) in enumerate(choice.branches):
                chance[s, a, b] = probability
                pay[s, a, b] = paid
                if then is not None:
                    after[s, a, b] = number[turn + 1, then]
        default[s, :count] = decision.default or policy[s, :count]
    return {"legal": legal, "policy": policy, "default": default, "chance": chance,
            "after": after, "pay": pay}  # fmt: skip


def _codes(values: Iterable[Hashable]) -> Array:
    """Equal values, equal numbers, [S] int."""
    table: dict[Hashable, int] = {}
    return np.array([table.setdefault(value, len(table)) for value in values])


def _walk(
    name: str, start: Mapping[Hashable, float], rule: Callable[[Hashable], Decision]
) -> tuple[list[list[Hashable]], dict[At, Decision]]:
    """The states of each turn, and the decision in each, from the start on."""
    layers: list[list[Hashable]] = []
    decisions: dict[At, Decision] = {}
    layer = list(start)
    while layer:
        found: dict[Hashable, None] = {}  # an ordered set
        for state in layer:
            decision = decisions[len(layers), state] = rule(state)
            found |= {then: None for c in decision.choices for _, _, then in c.branches}
        if len(decisions) > MAX_DECISIONS:
            raise ConfigError(f"{name} has more than {MAX_DECISIONS:,} decisions; make it smaller")
        layers.append(layer)
        layer = [state for state in found if state is not None]
    return layers, decisions


def _numbered(layers: Sequence[Sequence[Hashable]]) -> Iterator[At]:
    return ((turn, state) for turn, layer in enumerate(layers) for state in layer)


def _payees(branch: Branch) -> int:
    return len(branch[1]) if isinstance(branch[1], tuple) else 1


def _check(name: str, decision: Decision, agents: Sequence[str]) -> None:
    if decision.agent not in agents:
        raise ConfigError(f"{name}: {decision.agent!r} moves, known are {', '.join(agents)}")
    rows = [[choice.probability for choice in decision.choices]]
    rows += [[branch[0] for branch in choice.branches] for choice in decision.choices]
    if decision.default is not None:
        if len(decision.default) != len(decision.choices):
            raise ConfigError(
                f"{name}: the default of {decision.agent} has {len(decision.default)} "
                f"probabilities for {len(decision.choices)} choices"
            )
        rows.append(list(decision.default))
    if not all(map(_sums_to_1, rows)):
        raise ConfigError(f"{name}: probabilities of a turn of {decision.agent} do not sum to 1")


def _check_events(name: str, decisions: Mapping[At, Decision]) -> None:
    """What is scheduled for a turn was drawn before anybody acted: it has one law."""
    laws: dict[int, set[tuple[float, ...]]] = {}
    for (turn, _), decision in decisions.items():
        if decision.event:
            laws.setdefault(turn, set()).update(
                tuple(branch[0] for branch in choice.branches) for choice in decision.choices
            )
    for turn, different in laws.items():
        if len(different) > 1:
            raise ConfigError(
                f"{name}: the event of turn {turn} has several laws, {sorted(different)}; one that "
                "hangs on an action or on the state is not scheduled, leave out event=True"
            )


def _sums_to_1(chances: Iterable[float]) -> bool:
    row = list(chances)
    return abs(sum(row) - 1) <= 1e-9 and min(row) >= 0


@dataclass(frozen=True, slots=True)
class Solution:
    """What a process is worth under its own policy, exactly. Worth is the mover's, to the end."""

    values: Array  # [S+1, P]: worth of each state to each payee; 0 at the end
    value: Array  # [S]: V, to who moves
    known: Array  # [S]: mean of V over what the mover cannot tell apart
    action_value: Array  # [S, A]: Q
    advantage: Array  # [S, A]: A = Q - V, or its mean over what the mover cannot tell
    decisive: Array  # [S] bool: some action of this agent in this turn changes what is expected
    reach: Array  # [S]: probability that an episode comes by


def solve(process: Process) -> Solution:
    """Values by one sum from the last turn to the first.

        Q(s, a) = Σ_b p(b|s, a) · [r + γ_s V(s')],   V(s) = Σ_a π(a|s) Q(s, a),   A = Q - V

    In a `hidden` process the advantage is the mean of A over the states that the mover cannot tell
    apart, each weighted by how often it is met; that is what a policy can learn from. Where play
    never comes, the weights are those of a policy that does anything at times.

    Args:
        process: the tables.
    """
    size, payees = len(process), process.pay.shape[-1]
    values, each = np.zeros((size + 1, payees)), np.zeros((*process.policy.shape, payees))
    for layer in reversed(process.layers):
        worth = (
            process.pay[layer]
            + process.discount[layer, None, None, None] * (values[process.after[layer]])
        )
        each[layer] = np.einsum("sab,sabp->sap", process.chance[layer], worth)
        values[layer] = np.einsum("sa,sap->sp", process.policy[layer], each[layer])
    own = process.payee(process.agent)
    action_value = each[np.arange(size), :, own]
    value = values[np.arange(size), own]
    reach = _reach(process, process.policy)
    trembling = 0.99 * process.policy + 0.01 * process.legal / process.legal.sum(1, keepdims=True)
    weights = reach, _reach(process, trembling)
    advantage = np.where(process.legal, action_value - value[:, None], 0.0)
    if process.hidden:
        advantage = as_known(advantage, process.key, weights)
    advantage[np.abs(advantage) < SAME] = 0.0
    return Solution(
        values=values,
        value=value,
        known=as_known(value[:, None], process.key, weights)[:, 0],
        action_value=action_value,
        advantage=advantage,
        decisive=_decisive(process, advantage),
        reach=reach,
    )


def _reach(process: Process, policy: Array) -> Array:
    """Probability that an episode of a policy comes by each decision, [S]."""
    reach = np.append(process.start, 0.0)
    for layer in process.layers:
        flow = reach[layer, None, None] * policy[layer, :, None] * process.chance[layer]
        np.add.at(reach, process.after[layer], flow)
    return reach[:-1]


def as_known(x: Array, key: Array, weights: Sequence[Array]) -> Array:
    """Mean over the states of equal key, [S, A]; by the first weights that say something of them.

    Args:
        x: [S, A].
        key: [S] int.
        weights: [S] each.
    """
    count = int(key.max()) + 1
    mean = x.copy()
    for weight in reversed(weights):
        total = sums(weight, key, count)[key, None]
        weighted = np.stack([sums(weight * column, key, count) for column in x.T], axis=1)[key]
        np.divide(weighted, total, out=mean, where=total > 0)
    return mean


def returns_between(process: Process) -> tuple[Array, Array]:
    """The least and the greatest return that each payee can have, [P] each."""
    ends = []
    for best in (np.min, np.max):
        worst = np.inf if best is np.min else -np.inf
        values = np.zeros((len(process) + 1, process.pay.shape[-1]))
        for layer in reversed(process.layers):
            worth = process.pay[layer] + values[process.after[layer]]
            possible = process.legal[layer][:, :, None] & (process.chance[layer] > 0)
            values[layer] = best(np.where(possible[..., None], worth, worst), axis=(1, 2))
        ends.append(best(values[:-1][process.start > 0], axis=0))
    return ends[0], ends[1]


def _decisive(process: Process, advantage: Array) -> Array:
    """Turns of an agent in which some action, in some state, has an advantage, [S] bool."""
    size = np.abs(np.where(process.policy > 0, advantage, 0.0)).max(axis=1)
    spot, count = cells((process.turn, process.agent), len(process))
    return extremes(size, spot, count)[1][spot] > SAME
