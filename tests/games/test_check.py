"""The conformance suite can fail: for every check, games with the fault it is there to find."""

import pickle
import random

import numpy as np
import pytest

from marl_llm.errors import GameError
from marl_llm.games.check import CHECKS, check_game
from marl_llm.games.outcomes import OutcomeTable, Payoff, Scoring
from marl_llm.games.text_game import TextGame, View
from marl_llm.types import Move, Outcome

ENDINGS = {Outcome.WIN: (1.0,), Outcome.LOSS: (-1.0,), Outcome.DRAW: (0.0,)}


class Duel(TextGame):
    """Each is dealt a card from 1 to 3 and keeps or swaps it; the second may not swap after a swap.

    Small, and has all that the checks look at: chance at the start and in mid-game, hidden
    information, an action that is not always legal, wins for both seats, and draws.
    """

    def __init__(self, **facts):
        super().__init__(
            **{
                "name": "duel",
                "actions": ("keep", "swap"),
                "natural_turns": 2,
                "scoring": Scoring(2, "opposed", "result", ENDINGS),
                **facts,
            }
        )

    def start(self, rng, options):
        self.rng = rng
        self.cards = [int(card) for card in rng.integers(1, 4, size=2)]
        self.made = []

    def movers(self):
        return (self.possible_agents[len(self.made)],) if len(self.made) < 2 else ()

    def legal(self, agent):
        return ("keep",) if "swap" in self.made else ("keep", "swap")

    def play(self, moves):
        (move,) = moves.values()
        if move == "swap":
            self.cards[len(self.made)] = int(self.rng.integers(1, 4))
        self.made.append(move)

    def earnings(self):
        if len(self.made) < 2:
            return (0.0, 0.0)
        margin = float(np.sign(self.cards[0] - self.cards[1]))
        return (margin, -margin)

    def view(self, agent):
        words = f"{self.cards[self._index[agent]]} {' '.join(self.made)}".strip()
        return View(f"You are {agent}. Card and moves: {words}.", words, words)

    def rules(self):
        return "Higher card wins. Actions: keep, swap. No swap after a swap."


class AtOnce(Duel):
    """Both decide at the same time."""

    def movers(self):
        return () if self.made else tuple(self.possible_agents)

    def legal(self, agent):
        return self.actions

    def play(self, moves):
        for player, agent in enumerate(self.possible_agents):
            if moves[agent] == "swap":
                self.cards[player] = int(self.rng.integers(1, 4))
        self.made = [moves[agent] for agent in self.possible_agents]

    def earnings(self):
        return super().earnings()


def findings(make, **options):
    return {finding.check: finding for finding in check_game(make, episodes=60, **options)}


@pytest.mark.parametrize("game", [Duel, AtOnce])
@pytest.mark.parametrize(
    "table",
    [
        "zero_sum",
        "mars",
        "spiral",
        OutcomeTable(illegal_ends=False, tries=3),
        OutcomeTable(win=3.0, loss=-2.0, draw=0.5, length=Payoff(own=-5.0)),
    ],
)
def test_a_sound_game_passes_every_check_under_every_table(game, table):
    found = findings(
        lambda: game(table=table), make_without_list=lambda: game(table=table, list_legal=False)
    )
    assert list(found) == [check.__name__ for check in CHECKS]
    assert {f.check: str(f) for f in found.values() if f.status != "passed"} == {}


# One broken game per fault. The class says what is wrong with it.


class WrongDtype(Duel):
    def numbers(self, agent):
        return super().numbers(agent).astype(np.float64)


class OwnEntropy(Duel):
    def start(self, rng, options):
        super().start(rng, options)
        self.cards = np.random.default_rng().integers(1, 10**9, size=2).tolist()


class StepPaysMore(Duel):
    def step(self, action):
        super().step(action)
        if self.terminations and all(self.terminations.values()):
            self.rewards = {agent: reward + 0.5 for agent, reward in self.rewards.items()}


class NoOutcomeForOne(Duel):
    def outcomes(self):
        return {a: o for a, o in super().outcomes().items() if a == "player_0"}


class OutcomesTooEarly(Duel):
    def outcomes(self):
        return {agent: Outcome.DRAW for agent in self.possible_agents if self.made}


class RunsOver(Duel):
    def __init__(self, **facts):
        super().__init__(**facts, natural_turns=1)

    def _stop_at_limit(self):
        self.agent_selection = self._waiting[0]


class NoMoves(Duel):
    def legal(self, agent):
        return () if self.made else ("keep", "swap")


class NotZeroSum(Duel):
    def earnings(self):
        return (1.0, 1.0) if len(self.made) == 2 else (0.0, 0.0)


class NotShared(Duel):
    def __init__(self, **facts):
        super().__init__(**facts, scoring=Scoring(2, "shared", "result", ENDINGS))


class UndeclaredEnding(Duel):
    def earnings(self):
        return tuple(2 * value for value in super().earnings())


class PaidTwice(Duel):
    def _pay(self, rewards):
        super()._pay([2 * reward for reward in rewards])


class DrawNeverSeen(Duel):
    def start(self, rng, options):
        super().start(rng, options)
        self.cards = [1, 3] if self.cards[0] < self.cards[1] else [3, 1]

    def legal(self, agent):
        return ("keep",)


class DrawUndeclared(Duel):
    def __init__(self, **facts):
        endings = {Outcome.WIN: (1.0,), Outcome.LOSS: (-1.0,)}
        super().__init__(**facts, scoring=Scoring(2, "opposed", "result", endings))


class SecondNeverMoves(Duel):
    def movers(self):
        return ("player_0",) if len(self.made) < 2 else ()


class SecondNeverWins(Duel):
    def start(self, rng, options):
        super().start(rng, options)
        self.cards[0] = 3

    def legal(self, agent):
        return ("keep",)


class NamesTheOther(Duel):
    def observation(self, agent):
        seen = super().observation(agent)
        return type(seen)("referee", seen.role, seen.text, seen.brief, seen.legal, seen.key)


class DrawsGlobally(Duel):
    def start(self, rng, options):
        super().start(rng, options)
        self.cards[0] = random.randint(1, 3)


class SeedsGlobally(Duel):
    def start(self, rng, options):
        np.random.seed(int(rng.integers(1000)))
        super().start(rng, options)


class SharedDeck(Duel):
    deck: list[int] = []  # noqa: RUF012

    def start(self, rng, options):
        super().start(rng, options)
        SharedDeck.deck[:] = [int(card) for card in rng.integers(1, 4, size=10)]

    def play(self, moves):
        super().play(moves)
        self.cards[len(self.made) - 1] = SharedDeck.deck[len(self.made)]


class RemembersLastEpisode(Duel):
    def start(self, rng, options):
        super().start(rng, options)
        self.episodes = vars(self).get("episodes", 0) + 1
        self.cards[0] = 1 + self.episodes % 3


class HoldsALambda(Duel):
    def start(self, rng, options):
        super().start(rng, options)
        self.higher = lambda a, b: a > b


class PickleLosesChance(Duel):
    def __getstate__(self):
        return {**vars(self), "rng": np.random.default_rng(0)}


class SnapshotLosesAMove(Duel):
    def restore(self, state):
        super().restore(state)
        self.cards.reverse()


class SnapshotLosesRewards(Duel):
    """Pays for every move, and forgets what was not read yet."""

    def __init__(self, **facts):
        endings = {Outcome.DRAW: (1.0,)}
        super().__init__(**facts, scoring=Scoring(2, "shared", "points", endings))

    def earnings(self):
        return (len(self.made) / 2, len(self.made) / 2)

    def restore(self, state):
        super().restore(state)
        self._unread = [0.0, 0.0]


class AcceptsUnlisted(Duel):
    def accepts(self, agent, action):
        return action in self.actions


class RefusesListed(Duel):
    def accepts(self, agent, action):
        return action == "keep"


class ListsTwice(Duel):
    def legal(self, agent):
        return ("keep", "keep")


class ListsUnknown(Duel):
    def legal(self, agent):
        return ("keep", "fold")


class ListsAnyway(Duel):
    def view(self, agent):
        view = super().view(agent)
        return View(f"{view.text} Legal actions: keep and swap.", view.brief, view.key)


class ListInTheKey(Duel):
    def view(self, agent):
        view = super().view(agent)
        return View(view.text, view.brief, f"{view.key} {self.list_legal}")


class RulesWithoutNames(Duel):
    def rules(self):
        return "Higher card wins. You may keep your card or change it."


class MisspeltExample(Duel):
    def rules(self):
        return super().rules() + ' For example, reply "Swap".'


class MisspeltWords(Duel):
    """The fault of a published prompt: capitals in the example, none in the action."""

    def __init__(self, **facts):
        super().__init__(**facts, actions=("keep card 1", "swap card 1"))

    def legal(self, agent):
        return self.actions

    def play(self, moves):
        super().play({agent: move.split()[0] for agent, move in moves.items()})

    def rules(self):
        return "Actions: keep card 1, swap card 1. Reply like this: Swap Card 1"


class ImpossibleExample(Duel):
    def rules(self):
        return super().rules() + " <answer>raise</answer>"


class FormatForgiven(Duel):
    def act(self, agent, move):
        super().act(agent, Move("keep") if move.fault is Outcome.FORMAT else move)


class LengthPaysNothing(Duel):
    def _settle(self, payoffs):
        if Outcome.LENGTH not in self._outcomes.values():
            super()._settle(payoffs)


class OffenderNeverPunished(Duel):
    def __init__(self, **facts):
        super().__init__(**facts, table=OutcomeTable(illegal_ends=False, tries=2))

    def _asks_again(self, agent):
        self._stop_at_limit()
        return True


class ChokesOnText(Duel):
    def accepts(self, agent, action):
        return action in self.legal(agent) or int(action) < 0


class AcceptsNothing(Duel):
    def accepts(self, agent, action):
        return action in self.legal(agent) or not action.strip()


class LookingCounts(Duel):
    def view(self, agent):
        self.looks = vars(self).get("looks", 0) + 1
        view = super().view(agent)
        return View(f"{view.text} Look {self.looks}.", view.brief, view.key)


class LookingDraws(Duel):
    """The second's cards are shuffled whenever the first one's view is asked for."""

    def view(self, agent):
        if agent == "player_0" and self.made:
            self.cards[1] = int(self.rng.integers(1, 4))
        return super().view(agent)


class ShowsTheOther(Duel):
    def view(self, agent):
        view = super().view(agent)
        return View(f"{view.text} Cards: {self.cards}.", view.brief, view.key)


class BriefShowsTheOther(Duel):
    def view(self, agent):
        view = super().view(agent)
        return View(view.text, f"{view.brief} {self.cards}", view.key)


class KeyKnowsMore(Duel):
    def view(self, agent):
        view = super().view(agent)
        return View(view.text, view.brief, f"{self.cards} {self.made}")


class ShowsPending(AtOnce):
    def view(self, agent):
        view = super().view(agent)
        return View(f"{view.text} Chosen: {self._moves}.", view.brief, f"{view.key} {self._moves}")


@pytest.mark.parametrize(
    ("game", "check", "words"),
    [
        (WrongDtype, "pettingzoo_api", "Out of bounds observation"),
        (OwnEntropy, "pettingzoo_seed", "Incorrect"),
        (StepPaysMore, "step_is_act", "step pays"),
        (NoOutcomeForOne, "ends_in_time", "needs one"),
        (OutcomesTooEarly, "ends_in_time", "must still move"),
        (RunsOver, "ends_in_time", "2 turns and then over, max_turns says 1"),
        (NoMoves, "ends_in_time", "no legal action"),
        (NotZeroSum, "pays_what_it_declares", "the rules pay [1.0, 1.0], sum 2"),
        (NotShared, "pays_what_it_declares", "declared as shared"),
        (UndeclaredEnding, "pays_what_it_declares", "scoring.endings has"),
        (PaidTwice, "pays_what_it_declares", "was paid 2, the table gives 1"),
        (DrawNeverSeen, "draws_reachable", "no draw in 60"),
        (DrawUndeclared, "draws_reachable", "scoring.endings lacks"),
        (SecondNeverMoves, "seats_swap", "player_1 never had a turn"),
        (SecondNeverWins, "seats_swap", "never had a loss"),
        (NamesTheOther, "seats_swap", "'referee'"),
        (DrawsGlobally, "no_global_randomness", "changes the state of `random`"),
        (SeedsGlobally, "no_global_randomness", "`np.random`"),
        (SharedDeck, "no_global_randomness", "another game"),
        (OwnEntropy, "same_seed_same_episode", "differs"),
        (RemembersLastEpisode, "same_seed_same_episode", "in the same game again"),
        (HoldsALambda, "pickles", "it raised"),
        (PickleLosesChance, "pickles", "differs"),
        (SnapshotLosesAMove, "snapshots_restore", "differs"),
        (SnapshotLosesRewards, "snapshots_restore", "rewards {} to hand out"),
        (AcceptsUnlisted, "listed_is_accepted", "accepts 'swap', which is not listed"),
        (RefusesListed, "listed_is_accepted", "lists 'swap' and refuses it"),
        (ListsTwice, "listed_is_accepted", "listed twice"),
        (ListsUnknown, "listed_is_accepted", "lists fold"),
        (ListsAnyway, "unlisted_is_the_same_game", "though they are switched off"),
        (ListInTheKey, "unlisted_is_the_same_game", "neither may hold the list"),
        (RulesWithoutNames, "rules_name_the_actions", "do not name 'swap'"),
        (MisspeltExample, "examples_are_legal", "shows 'Swap', but the game accepts only 'swap'"),
        (MisspeltWords, "examples_are_legal", "shows 'Swap Card 1'"),
        (ImpossibleExample, "examples_are_legal", "gives 'raise' as an answer"),
        (FormatForgiven, "faults_follow_the_table", "format: outcomes are"),
        (LengthPaysNothing, "faults_follow_the_table", "length: paid [0.0, 0.0]"),
        (OffenderNeverPunished, "faults_follow_the_table", "illegal, try 1 of 2"),
        (ChokesOnText, "garbage_never_raises", "ValueError"),
        (AcceptsNothing, "garbage_never_raises", "accepts ''"),
        (LookingCounts, "observing_changes_nothing", "two looks"),
        (LookingDraws, "observing_changes_nothing", "other agents' views"),
        (ShowsTheOther, "nothing_hidden_leaks", "cannot tell the two states apart"),
        (BriefShowsTheOther, "nothing_hidden_leaks", "brief is"),
        (KeyKnowsMore, "nothing_hidden_leaks", "the same text stands for the keys"),
        (ShowsPending, "nothing_hidden_leaks", "before its own simultaneous move"),
    ],
)
def test_a_broken_game_is_caught(game, check, words):
    found = findings(
        game,
        make_without_list=lambda: game(list_legal=False),
        checks=[one for one in CHECKS if one.__name__ == check],
    )[check]
    assert found.status == "failed", found
    assert words in found.message


def test_every_check_has_a_broken_game():
    (mark,) = (m for m in test_a_broken_game_is_caught.pytestmark if m.name == "parametrize")
    assert {check for _, check, _ in mark.args[1]} == {check.__name__ for check in CHECKS}


def test_what_the_rules_do_not_have_is_skipped():
    class NoDraw(Duel):
        def earnings(self):
            return tuple(value or (1.0, -1.0)[i] for i, value in enumerate(super().earnings()))

    class Duels(NoDraw):
        def __init__(self):
            endings = {Outcome.WIN: (1.0,), Outcome.LOSS: (-1.0,)}
            super().__init__(scoring=Scoring(2, "opposed", "result", endings))

        def earnings(self):
            return super().earnings() if len(self.made) == 2 else (0.0, 0.0)

    found = findings(Duels)
    skipped = {name: f.message for name, f in found.items() if f.status != "passed"}
    assert skipped.keys() == {"draws_reachable", "unlisted_is_the_same_game", "pickles"}
    assert skipped["draws_reachable"] == "its rules know no draws"
    assert found["pickles"].status == "failed"  # a class inside a function cannot be pickled


def test_a_turn_limit_is_a_truncation_paid_by_the_table():
    table = OutcomeTable(truncated=Payoff(own=-3.0, others=3.0))
    found = findings(lambda: Duel(table=table, max_turns=1))
    assert found["pays_what_it_declares"].status == "passed"
    assert found["draws_reachable"].status == "skipped"
    assert "limit of 1 turns" in found["seats_swap"].message

    class Unpaid(Duel):
        def _settle(self, payoffs):
            pass

    broken = findings(lambda: Unpaid(table=table, max_turns=1))["pays_what_it_declares"]
    # player_1 was due to move, so it pays its 3 to player_0
    assert "returns [0.0, 0.0], the table gives [3.0, -3.0]" in broken.message


def test_the_global_generators_are_left_as_they_were():
    random.seed(7)
    np.random.seed(7)
    before = pickle.dumps((random.getstate(), np.random.get_state()))
    findings(DrawsGlobally)
    random_only = [f for f in findings(Duel).values() if f.status == "failed"]
    assert random_only == []
    random.seed(7)
    np.random.seed(7)
    findings(Duel)
    assert pickle.dumps((random.getstate(), np.random.get_state())) == before


def test_what_is_no_game_is_told_the_way_out():
    with pytest.raises(GameError, match="a dict is no TextGame; subclass"):
        check_game(dict)
