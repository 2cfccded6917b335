"""Play that goes on from the turns of an earlier episode."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.agents.chat import Chat
from marl_llm.agents.parsers import Tags
from marl_llm.agents.role import Role
from marl_llm.agents.scripted import Uniform
from marl_llm.errors import EpisodeError
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.games.leduc import LeducPoker
from marl_llm.games.matrix import MatrixGame
from marl_llm.games.outcomes import OutcomeTable
from marl_llm.games.tictactoe import TicTacToe
from marl_llm.rollout.plans import balanced
from marl_llm.rollout.play import ModelSeat, play
from marl_llm.rollout.retelling import Retelling
from marl_llm.rollout.shaping import Shaping
from marl_llm.serve.tiny import build_tokenizer
from marl_llm.types import Completion, Finish, Sampling

GAMES = {
    "kuhn": lambda: KuhnPoker(table=OutcomeTable(illegal_ends=False)),
    "leduc": LeducPoker,
    "tictactoe": TicTacToe,
    "pennies": lambda: MatrixGame(table=OutcomeTable(illegal_ends=False), max_turns=3),
}
WORDS = {"kuhn": ("pass", "bet", "fold"), "pennies": ("heads", "tails", "edge")}
ROLES = {
    memory: Role(
        name="player",
        user="{brief}",
        parser=Tags(think="none"),
        sampling=Sampling(max_tokens=24),
        memory=memory,
    )
    for memory in ("observation", "dialogue", 1)
}


@pytest.fixture(scope="module")
def chat():
    return Chat(build_tokenizer(["J pass bet", "heads tails", "<answer>fold</answer>"]))


class Dice:
    """Says one of some words, by the seed of the request and the length of its prompt."""

    def __init__(self, chat, words):
        self.version, self.context = 0, 1000
        self._chat, self._words, self._waiting = chat, words, []

    def submit(self, requests):
        self._waiting.extend(requests)

    def poll(self, timeout):
        return [self._reply(self._waiting.pop())] if self._waiting else []

    def _reply(self, request):
        word = self._words[(request.seed + len(request.prompt_ids)) % len(self._words)]
        ids = self._chat.encode(f"<answer>{word}</answer>")
        return Completion(request.id, ids, (-0.5,) * len(ids), ((0, 0, len(ids)),), Finish.STOP)


def table(chat, game, memory="observation"):
    """Everybody that plays a game: a model against itself where its words are known."""
    if game not in WORDS:
        return {"self": Uniform()}, {}
    return {"self": ModelSeat(ROLES[memory], chat, "main")}, {"main": Dice(chat, WORDS[game])}


def played(chat, game, seed, memory="observation", **options):
    """Episodes of one plan each, and a way to play its plan with other openings."""
    seats, engines = table(chat, game, memory)
    (plan,) = balanced(seed, 0, 1, 1, {game: GAMES[game]().possible_agents}, [("self",)])

    def again(**changes):
        (episode,) = play([replace(plan, **changes)], GAMES, seats, engines, seed=seed, **options)
        return replace(episode, seconds=0.0)

    return again(), again


@pytest.mark.parametrize("game", GAMES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), memory=st.sampled_from(list(ROLES)), data=st.data())
def test_cut_anywhere_and_played_on_an_episode_comes_out_as_it_was(chat, game, seed, memory, data):
    episode, again = played(chat, game, seed, memory, shaping=Shaping(valid=0.05))
    cut = data.draw(st.integers(0, len(episode.turns)))
    assert again(opening=episode.turns[:cut]) == episode


def test_a_whole_opening_earns_what_the_episode_did_and_asks_nobody(chat):
    for seed in range(20):
        episode, again = played(chat, "kuhn", seed)
        assert again(opening=episode.turns, id=99, attempt=3) == replace(episode, id=99, attempt=3)


def test_other_draws_lead_elsewhere_from_the_same_turn(chat):
    ends = set()
    for number in range(20):
        episode, again = played(chat, "leduc", 1)
        onward = again(opening=episode.turns[:1], id=number)
        assert onward.turns[0] == replace(episode.turns[0], reward=onward.turns[0].reward)
        assert onward.turns[1].observation == episode.turns[1].observation
        ends.add(onward.turns[1:])
    assert len(ends) > 1


def test_what_was_earned_before_the_restart_counts(chat):
    # An illegal action costs 0.1 at once and is asked again.
    episode, again = next(
        pair
        for seed in range(100)
        if (pair := played(chat, "kuhn", seed))[0].turns[0].action == "fold"
    )
    assert episode.turns[0].reward == pytest.approx(-0.1)
    for number in range(5):
        onward = again(opening=episode.turns[:1], id=number)
        assert onward.turns[0].reward == pytest.approx(-0.1)
        first = [t.reward for t in onward.turns if t.observation.agent == "player_0"]
        assert onward.returns["player_0"] == pytest.approx(sum(first))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"seed": 1}, None),  # another deal, which the same moves fit
        ({"double": True}, r"turn 1 of the opening of episode 0 is player_0's.*waits for player_1"),
        ({"after": True}, r"turn \d of the opening .*waits for nobody"),
    ],
)
def test_an_opening_that_does_not_fit_is_refused(chat, change, message):
    episode, again = next(
        pair for seed in range(50) if len((pair := played(chat, "kuhn", seed))[0].turns) == 2
    )
    first = episode.turns[:1]
    opening = {
        "seed": first,
        "double": first * 2,
        "after": episode.turns + first,
    }[next(iter(change))]
    if message is None:
        assert again(opening=opening, seed=episode.seed + 1).turns[0].action == first[0].action
        return
    with pytest.raises(EpisodeError, match=message):
        again(opening=opening)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), memory=st.sampled_from(list(ROLES)))
def test_told_again_every_prompt_is_as_it_was(chat, seed, memory):
    for game in WORDS:
        episode, _ = played(chat, game, seed, memory)
        telling = Retelling(episode, GAMES[game](), table(chat, game, memory)[0])
        for number, turn in enumerate(episode.turns):
            telling.go(number)
            agent = turn.observation.agent
            assert telling.game.observation(agent) == turn.observation
            assert telling.memory(agent).prompt(turn.observation) == turn.prompt_ids
        telling.go(len(episode.turns))
        assert telling.game.outcomes() == episode.outcomes


def test_a_note_is_read_and_not_remembered(chat):
    episode, _ = next(
        pair
        for seed in range(50)
        if len((pair := played(chat, "kuhn", seed, "dialogue"))[0].turns) >= 3
    )
    telling = Retelling(episode, GAMES["kuhn"](), table(chat, "kuhn", "dialogue")[0])
    first, third = episode.turns[0], episode.turns[2]
    seat = telling.memory(first.observation.agent)
    noted = seat.prompt(first.observation, "bet heads")
    assert noted == chat.first("", f"{first.observation.brief}\nbet heads")
    telling.go(2)
    assert seat.prompt(third.observation) == third.prompt_ids
