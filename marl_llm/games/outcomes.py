"""What each ending pays: one table for wins, draws, forfeits of every kind and the turn limit.

Two values meet here. `Scoring` says what the *rules* can pay (which returns, whose interest), and
belongs to a game. `OutcomeTable` says what an ending pays *instead*, to the agent it happened to
and to each other one, and belongs to the experiment. Everything the table pays is strategic reward;
shaping (format, length) is added elsewhere, capped by `OutcomeTable.gap` so that no amount of it
can make a worse ending look better than a better one.

    OutcomeTable()                          # a forfeit costs the rules' worst, the sum stays zero
    OutcomeTable.named("mars", "amount")    # the values of a paper, for a game that pays chips
    OutcomeTable(win=1.0, loss=-1.0, illegal_ends=False, tries=3)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from marl_llm.errors import ConfigError, nearest
from marl_llm.types import Outcome

Interest = Literal["opposed", "shared", "mixed"]  # zero-sum; same return for all; anything else
Pays = Literal["result", "amount", "points"]  # win or lose; how much; points as they are made

_SAME = 1e-9  # two values of a table closer than this are one value


@dataclass(frozen=True, slots=True)
class Scoring:
    """What a game's rules can pay: the facts a table is applied to."""

    agents: int
    interest: Interest
    pays: Pays
    endings: Mapping[Outcome, tuple[float, ...]]  # returns the rules can give, by outcome
    stakes: tuple[float, ...] = (1.0,)  # what an agent can have at stake when it must move

    @property
    def worst(self) -> float:
        """The lowest return the rules can give."""
        return min(value for values in self.endings.values() for value in values)


@dataclass(frozen=True, slots=True)
class Payoff:
    """What an ending that the rules do not know pays, on top of what they have paid so far.

    Attributes:
        own: to the agent it happened to; None brings its return to the worst that the rules can
            give.
        others: to each other agent; None balances `own` where interests are opposed, is the same
            fate where they are shared, and nothing where they are mixed.
        minus_stake: `own` comes after the loss of the stake (chips in the pot, points made so far).
    """

    own: float | None = None
    others: float | None = None
    minus_stake: bool = False

    def __post_init__(self) -> None:
        for name, value in (("own", self.own), ("others", self.others)):
            if value is not None and not math.isfinite(value):
                raise ConfigError(f"a payoff's {name} must be a finite number or null, got {value}")
        if self.minus_stake and self.own is None:
            raise ConfigError(
                "minus_stake adds the stake to a payoff that `own` leaves open; give `own` a number"
            )

    def reward(self, earned: float, stake: float, worst: float) -> float:
        """What the agent it happened to is paid.

        Args:
            earned: what the rules have paid it so far.
            stake: what it has at stake now.
            worst: the lowest return that the rules can give.
        """
        if self.own is None:
            return worst - earned
        return self.own - stake if self.minus_stake else self.own


@dataclass(frozen=True, slots=True)
class OutcomeTable:
    """What each ending pays.

    Attributes:
        win, loss, draw: the return of an agent whose game ended so; None leaves the rules' own
            (chips, points). A draw pays all.
        last_zero: what a last step that pays nothing pays instead, in games of points; None leaves
            it.
        format, illegal, length, time, context: a forfeit by that fault.
        truncated: the turn limit; `own` is for the agents whose turn it was. None leaves everybody
            with what the rules have paid so far.
        illegal_ends: an illegal action ends the game; False pays `retry` and asks again.
        tries: replies an agent has for one move when an illegal one does not end the game; the last
            of them does.
        retry: what each illegal action before the last try pays.
    """

    win: float | None = None
    loss: float | None = None
    draw: float | None = None
    last_zero: float | None = None
    format: Payoff = Payoff()
    illegal: Payoff = Payoff()
    length: Payoff = Payoff()
    time: Payoff = Payoff()
    context: Payoff = Payoff()
    truncated: Payoff | None = None
    illegal_ends: bool = True
    tries: int = 3
    retry: Payoff = Payoff(own=-0.1)

    def __post_init__(self) -> None:
        values = (("win", self.win), ("loss", self.loss), ("draw", self.draw),
                  ("last_zero", self.last_zero))  # fmt: skip
        for name, value in values:
            if value is not None and not math.isfinite(value):
                raise ConfigError(f"{name} must be a finite number or null, got {value}")
        if self.win is not None and self.loss is not None and self.win <= self.loss:
            raise ConfigError(f"a win must pay more than a loss, got {self.win} and {self.loss}")
        if self.tries < 1:
            raise ConfigError(
                f"tries must be at least 1 (the first reply is one), got {self.tries}"
            )
        if self.retry.own is None:
            raise ConfigError("retry.own must be a number: the game goes on after it")

    @classmethod
    def named(cls, name: str, pays: Pays = "result") -> OutcomeTable:
        """A preset.

        ``zero_sum``: the default table; a forfeit costs what the rules' worst ending costs and the
        others get the opposite, so no fault creates or destroys reward.

        ``mars`` (MARS, arXiv 2510.15414, as its code pays): results pay +1 and -1, a draw 0.1 to
        both; chips and points as the rules pay them, but a last step without points pays 0.1; a
        forfeit costs the stake and 10 more, and gives the others nothing.

        ``spiral`` (SPIRAL, its training code): a forfeit pays -1.5 and +0.5 to the others, the turn
        limit 0 to all.

        Args:
            name: which.
            pays: how the game's rules pay; `mars` pays draws and last steps by it.
        """
        if name == "zero_sum":
            return cls()
        if name == "mars":
            table = _forfeiting(Payoff(own=-10.0, others=0.0, minus_stake=True))
            if pays == "result":
                return replace(table, win=1.0, loss=-1.0, draw=0.1)
            return replace(table, last_zero=0.1) if pays == "points" else table
        if name == "spiral":
            table = _forfeiting(Payoff(own=-1.5, others=0.5))
            return replace(table, truncated=Payoff(own=0.0, others=0.0))
        hint = nearest(name, ("zero_sum", "mars", "spiral"))
        raise ConfigError(f"no outcome table is called {name!r}; {hint}")

    def fault(self, fault: Outcome) -> Payoff:
        """The payoff of a forfeit by this fault."""
        return self._faults()[fault]

    def ending(self, outcome: Outcome, rules: float) -> float:
        """The return of an agent whose game ended by the rules.

        Args:
            outcome: win, loss or draw; anything else leaves the rules' return.
            rules: the return that the rules give it.
        """
        results = {Outcome.WIN: self.win, Outcome.LOSS: self.loss, Outcome.DRAW: self.draw}
        value = results.get(outcome)
        return rules if value is None else value

    def settle(
        self,
        payoffs: Mapping[int, Payoff],
        earned: Sequence[float],
        stakes: Mapping[int, float],
        scoring: Scoring,
    ) -> list[float]:
        """Rewards of one ending outside the rules, on top of what was paid before.

        Several agents can offend in the same simultaneous move. Each then gets its own payoff, and
        no bonus from the other's fault except where interests are opposed and the payoff is to
        balance.

        Args:
            payoffs: by index of the agents it happened to.
            earned: what the rules have paid so far, one per agent.
            stakes: what the agents in `payoffs` have at stake.
            scoring: the game's.

        Returns:
            One reward per agent; they sum to zero if interests are opposed and all payoffs balance.
        """
        rewards = [0.0] * scoring.agents
        for agent, payoff in payoffs.items():
            own = payoff.reward(earned[agent], stakes[agent], scoring.worst)
            rewards[agent] += own
            for other in range(scoring.agents):
                if other == agent:
                    continue
                if payoff.others is None and scoring.interest == "opposed":
                    rewards[other] -= own / (scoring.agents - 1)
                elif other in payoffs:
                    continue
                elif payoff.others is not None:
                    rewards[other] += payoff.others
                elif scoring.interest == "shared":
                    rewards[other] += payoff.reward(earned[other], stakes[agent], scoring.worst)
        return rewards

    def balanced(self, scoring: Scoring) -> bool:
        """Whether every ending sums to zero over the agents: the rules' and this table's."""
        if scoring.interest != "opposed" or self.last_zero is not None:
            return False
        results = (self.win, self.loss)
        if results != (None, None) and (
            scoring.agents != 2 or None in results or abs(sum(results)) > _SAME  # type: ignore[arg-type]
        ):
            return False
        payoffs = [*self._faults().values(), self.retry]
        if self.truncated is not None:
            payoffs.append(self.truncated)
        return self.draw in (None, 0.0) and all(_balances(p, scoring.agents) for p in payoffs)

    def gap(self, scoring: Scoring) -> float:
        """The smallest difference between two different returns that endings can give an agent.

        A sum of shaping that stays below half of it can flip no pair of endings. Retries are not
        endings and are left out.

        Args:
            scoring: the game's.

        Returns:
            A positive number; infinity when every ending pays the same.
        """
        values = {
            self.ending(outcome, rules)
            for outcome, all_ in scoring.endings.items()
            for rules in all_
        }
        if self.last_zero is not None and scoring.pays == "points":
            values |= {value + self.last_zero for value in values}
        payoffs = list(self._faults().values())
        if self.truncated is not None:
            payoffs.append(self.truncated)
        for stake in scoring.stakes:
            earned = [stake if scoring.pays == "points" else 0.0] * scoring.agents
            for payoff in payoffs:
                rewards = self.settle({0: payoff}, earned, {0: stake}, scoring)
                values |= {before + reward for before, reward in zip(earned, rewards, strict=True)}
        ordered = sorted(values)
        steps = [high - low for low, high in pairwise(ordered) if high - low > _SAME]
        return min(steps, default=math.inf)

    def _faults(self) -> dict[Outcome, Payoff]:
        return {
            Outcome.FORMAT: self.format,
            Outcome.ILLEGAL: self.illegal,
            Outcome.LENGTH: self.length,
            Outcome.TIME: self.time,
            Outcome.CONTEXT: self.context,
        }


def _forfeiting(payoff: Payoff) -> OutcomeTable:
    return OutcomeTable(format=payoff, illegal=payoff, length=payoff, time=payoff, context=payoff)


def _balances(payoff: Payoff, agents: int) -> bool:
    if payoff.others is None:
        return True
    if payoff.own is None or payoff.minus_stake:
        return False
    return abs(payoff.own + payoff.others * (agents - 1)) <= _SAME
