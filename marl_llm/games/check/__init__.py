"""The conformance suite: what every game must keep, checked by playing it.

    for finding in check_game(lambda: MyGame()):
        print(finding)

Each check is a function of this package that plays the game, returns what it saw, and raises
`GameError` with what is wrong, where, what was expected and the way out. A game that crashes fails
the check that it crashed in; the others still run.

    interface.py   PettingZoo's own tests
    endings.py     turns, pay, draws, seats
    chance.py      seeds, global generators, pickles, snapshots
    actions.py     legal actions, examples, faults, garbage
    knowledge.py   observations and what they may hide or show
    calls.py       of a `Delegation`: who calls whom, reports, faults, pay

What the suite cannot see: hidden information that leaks into the text *and* into the observation's
`key`, since the key is what says which states an agent must not tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from marl_llm.errors import GameError
from marl_llm.games.check import actions, calls, chance, endings, interface, knowledge
from marl_llm.games.check.play import NotApplicable, Trial
from marl_llm.games.delegation import Delegation
from marl_llm.games.text_game import TextGame

Check = Callable[[Trial], str]

CHECKS: tuple[Check, ...] = (
    interface.pettingzoo_api,
    interface.pettingzoo_seed,
    interface.step_is_act,
    endings.ends_in_time,
    endings.pays_what_it_declares,
    endings.draws_reachable,
    endings.seats_swap,
    chance.no_global_randomness,
    chance.same_seed_same_episode,
    chance.pickles,
    chance.snapshots_restore,
    actions.listed_is_accepted,
    actions.unlisted_is_the_same_game,
    actions.rules_name_the_actions,
    actions.examples_are_legal,
    actions.faults_follow_the_table,
    actions.garbage_never_raises,
    knowledge.observing_changes_nothing,
    knowledge.nothing_hidden_leaks,
)

CALL_CHECKS: tuple[Check, ...] = (  # of a delegation, besides the others
    calls.solver_wins,
    calls.guess_ends_and_wander_goes_on,
    calls.calls_end_in_time,
    calls.callers_come_first,
    calls.reports_keep_their_order,
    calls.faults_end_their_call,
    calls.tasks_are_all_they_see,
    calls.pays_as_stated,
    calls.parallel_snapshots_restore,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check came to."""

    check: str
    status: Literal["passed", "failed", "skipped"]
    message: str

    def __str__(self) -> str:
        return f"{self.check}: {self.status}: {self.message}"


def check_game(
    make: Callable[[], TextGame],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    episodes: int = 200,
    make_without_list: Callable[[], TextGame] | None = None,
    checks: Sequence[Check] | None = None,
) -> list[Finding]:
    """Run the checks on a game.

    Args:
        make: makes a fresh game; called many times.
        seeds: of the plays that are followed move by move.
        episodes: random plays of the checks that search (draws, wins from each seat, leaks).
        make_without_list: makes the same game without its list of legal actions, if there is such.
        checks: which; by default all, those of calls for a delegation only.

    Returns:
        One finding per check, in their order.

    Raises:
        GameError: `make` does not make a game at all.
    """
    game = make()
    if not isinstance(game, TextGame):
        raise GameError(
            f"a {type(game).__name__} is no TextGame; subclass marl_llm.games.text_game.TextGame, "
            "or wrap a PettingZoo or TextArena environment with one of marl_llm.games' adapters"
        )
    if checks is None:
        checks = CHECKS + CALL_CHECKS if isinstance(game, Delegation) else CHECKS
    trial = Trial(make, make_without_list, tuple(seeds), episodes)
    return [_run(check, trial) for check in checks]


def _run(check: Check, trial: Trial) -> Finding:
    name = check.__name__
    try:
        return Finding(name, "passed", check(trial))
    except NotApplicable as reason:
        return Finding(name, "skipped", str(reason))
    except GameError as error:
        return Finding(name, "failed", str(error))
    except Exception as error:  # whatever a user's game raises is a finding about that game
        return Finding(name, "failed", f"it raised {type(error).__name__}: {error}")
