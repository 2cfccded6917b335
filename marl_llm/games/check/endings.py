"""Checks of how an episode ends, what it pays, and who can win."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from marl_llm.errors import GameError
from marl_llm.games.check.play import NEAR, NotApplicable, Trial, plays, replay, totals
from marl_llm.games.delegation import Delegation
from marl_llm.games.text_game import TextGame
from marl_llm.seeds import generator
from marl_llm.types import Move, Outcome


def ends_in_time(trial: Trial) -> str:
    """Random play ends within `max_turns`, with an outcome for every agent and not before."""
    game, longest = trial.make(), 0
    for seed, steps in plays(game, trial):
        if game.acting() or len(steps) > game.max_turns:
            end = "not yet over" if game.acting() else "then over"
            raise GameError(
                f"seed {seed}: {len(steps)} turns and {end}, "
                f"max_turns says {game.max_turns}; raise natural_turns or let the rules end it"
            )
        outcomes = game.outcomes()
        if set(outcomes) != set(game.possible_agents):
            raise GameError(
                f"seed {seed}: over after {len(steps)} turns with outcomes {dict(outcomes)}; every "
                f"one of {', '.join(game.possible_agents)} needs one"
            )
        longest = max(longest, len(steps))
    return f"{trial.episodes} random plays end in at most {longest} of {game.max_turns} turns"


def pays_what_it_declares(trial: Trial) -> str:
    """Zero-sum or shared where declared, and every ending one of `scoring.endings`."""
    game = trial.make()
    if isinstance(game, Delegation):
        raise NotApplicable("a delegation pays as its `Pay` says, which `pays_as_stated` checks")
    scoring = game.scoring
    for seed, steps in plays(game, trial):
        rules = list(game.earnings())
        returns = [totals(game, steps)[agent] for agent in game.possible_agents]
        if not all(map(math.isfinite, [*rules, *returns])):
            raise GameError(f"seed {seed}: returns must be finite, got {returns}")
        if scoring.interest == "opposed" and abs(sum(rules)) > NEAR:
            raise GameError(
                f"seed {seed}: declared as opposed interests but the rules pay {rules}, sum "
                f"{sum(rules):g}; correct `earnings` or declare interest='mixed'"
            )
        if scoring.interest == "shared" and max(rules) - min(rules) > NEAR:
            raise GameError(
                f"seed {seed}: declared as shared interest but the rules pay {rules}; correct "
                "`earnings` or declare interest='mixed'"
            )
        if game.zero_sum and abs(sum(returns)) > NEAR:
            raise GameError(
                f"seed {seed}: declared zero-sum but the returns {returns} sum to "
                f"{sum(returns):g}; a reward was dropped or paid twice"
            )
        if Outcome.TRUNCATED in game.outcomes().values():
            _check_truncation(game, seed, rules, returns)
            continue
        for agent, rule, return_ in zip(game.possible_agents, rules, returns, strict=True):
            _check_ending(game, seed, agent, rule, return_)
    sums = "zero-sum" if game.zero_sum else f"{scoring.interest} interests"
    return f"{sums} in {trial.episodes} random plays, and no ending that was not declared"


def draws_reachable(trial: Trial) -> str:
    """A draw is found by play if `scoring.endings` has one, and never if it has none."""
    game = trial.make()
    if isinstance(game, Delegation):
        raise NotApplicable("a delegation knows no draws")
    declared, cut = Outcome.DRAW in game.scoring.endings, False
    for seed, _ in plays(game, trial):
        cut |= Outcome.TRUNCATED in game.outcomes().values()
        if Outcome.DRAW in game.outcomes().values():
            if not declared:
                raise GameError(
                    f"seed {seed}: ended in a draw, which scoring.endings lacks; add it there"
                )
            return f"a draw was found with seed {seed}"
    if not declared:
        raise NotApplicable("its rules know no draws")
    for seed in range(max(1, trial.episodes // 10)):
        if _stalls_to_draw(game, seed):
            return f"a draw was found with seed {seed} by play that puts off the end"
    if cut:
        raise NotApplicable(f"no draw found, but {_limit(game)}")
    raise GameError(
        f"no draw in {trial.episodes} random plays and {max(1, trial.episodes // 10)} that put off "
        "the end, but scoring.endings has one; detect it in `result`, or leave it out there"
    )


def seats_swap(trial: Trial) -> str:
    """Every agent gets to move, sees itself named, and can win and lose if anybody can."""
    game = trial.make()
    if isinstance(game, Delegation):
        raise NotApplicable("whom a delegation calls is the callers' choice")
    reached: set[tuple[str, Outcome | None]] = set()  # None = had a turn
    for seed, steps in plays(game, trial):
        for turn, step in enumerate(steps):
            if step.observation.agent not in game.possible_agents:
                raise GameError(
                    f"seed {seed}, turn {turn}: the observation is for {step.observation.agent!r}, "
                    f"which is none of {', '.join(game.possible_agents)}"
                )
        reached |= {(step.observation.agent, None) for step in steps} | {*game.outcomes().items()}
    rivals = game.scoring.interest != "shared"
    ends = [o for o in (Outcome.WIN, Outcome.LOSS) if rivals and o in game.scoring.endings]
    cut = any(outcome is Outcome.TRUNCATED for _, outcome in reached)
    for agent in game.possible_agents:
        for outcome in (None, *ends):
            if (agent, outcome) in reached:
                continue
            missed = f"{agent} never had a {outcome or 'turn'} in {trial.episodes} random plays"
            if cut:
                raise NotApplicable(f"{missed}, but {_limit(game)}")
            raise GameError(
                f"{missed}; every agent must get its turn, and `result` and `earnings` must find "
                "the winner in every seat"
            )
    both = " and can win and lose" if ends else ""
    return f"each of {len(game.possible_agents)} agents moves{both}"


def _limit(game: TextGame) -> str:
    return f"the limit of {game.max_turns} turns cuts plays short; check it with max_turns: null"


def _check_ending(game: TextGame, seed: int, agent: str, rule: float, return_: float) -> None:
    """The rules' return is declared for this outcome, and was paid as the table says."""
    outcome = game.outcomes()[agent]
    declared = game.scoring.endings.get(outcome, ())
    if not any(abs(rule - value) < NEAR for value in declared):
        raise GameError(
            f"seed {seed}: {agent} ends with {outcome} and {rule:g} by the rules, scoring.endings "
            f"has {list(declared)} for it; declare every return: the cap of shaping rests on them"
        )
    expected = game.table.ending(outcome, rule)
    extra = {0.0, game.table.last_zero or 0.0}
    if not any(abs(return_ - expected - more) < NEAR for more in extra):
        raise GameError(
            f"seed {seed}: {agent} ends with {outcome} and was paid {return_:g}, the table gives "
            f"{expected:g}; pay through `earnings` and let the table pay the end"
        )


def _check_truncation(
    game: TextGame, seed: int, rules: Sequence[float], returns: Sequence[float]
) -> None:
    """The turn limit pays what the table says, on top of what the rules had paid."""
    due = list(rules)
    if (payoff := game.table.truncated) is not None:
        late = {game.possible_agents.index(agent): agent for agent in game.movers()}
        stakes = {index: game.stake(agent) for index, agent in late.items()}
        extra = game.table.settle(dict.fromkeys(late, payoff), rules, stakes, game.scoring)
        due = [rule + more for rule, more in zip(rules, extra, strict=True)]
    if not np.allclose(returns, due):
        raise GameError(f"seed {seed}: cut short with returns {returns}, the table gives {due}")


def _stalls_to_draw(game: TextGame, seed: int) -> bool:
    """Play on with moves that do not end the game wherever there is one; True = it was a draw."""
    rng = generator(seed, "stall")
    line: list[tuple[str, str]] = []
    game.reset(seed)
    while game.acting() and len(line) <= game.max_turns:
        agent = game.acting()[0]
        options = game.legal(agent)
        for choice in rng.permutation(len(options)):
            replay(game, seed, line)
            game.act(agent, Move(options[choice]))
            if game.acting() or Outcome.DRAW in game.outcomes().values():
                break
        line.append((agent, options[choice]))
    return Outcome.DRAW in game.outcomes().values()
