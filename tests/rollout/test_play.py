"""Games over engines: who is paid for what, whatever order the replies come in."""

import time
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from marl_llm.agents.chat import Chat
from marl_llm.agents.parsers import Tags
from marl_llm.agents.role import Role
from marl_llm.agents.scripted import Uniform
from marl_llm.errors import ConfigError, DeadlineError
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.games.matrix import MatrixGame
from marl_llm.games.outcomes import OutcomeTable
from marl_llm.games.tictactoe import TicTacToe
from marl_llm.rollout.plans import Plan, balanced
from marl_llm.rollout.play import ModelSeat, play
from marl_llm.rollout.shaping import Shaping
from marl_llm.serve.tiny import build_model, build_tokenizer
from marl_llm.serve.transformers_engine import TransformersEngine
from marl_llm.types import Completion, Finish, Move, Outcome, Sampling

PLAYERS = ("player_0", "player_1")
GAMES = {
    "kuhn": KuhnPoker,
    "three": lambda: KuhnPoker(players=3),
    "pennies": MatrixGame,
    "tictactoe": TicTacToe,
}
# The prompt is the observation in brief, so that a table can answer it.
ROLE = Role(
    name="player", user="{brief}", parser=Tags(think="none"), sampling=Sampling(max_tokens=24)
)
TEXTS = ["J pass bet", "Q bet pass", "K pass", "heads tails", "<answer>pass</answer>"]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(TEXTS)


@pytest.fixture(scope="module")
def chat(tokenizer):
    return Chat(tokenizer)


class TableEngine:
    """Replies by a function of the prompt's text, one at a time, the latest request first."""

    def __init__(self, chat, answer, version=0):
        self.version, self.context = version, 1000
        self._chat, self._answer = chat, answer
        self._waiting = []
        self.batches = []  # how many requests came together

    def submit(self, requests):
        self.batches.append(len(requests))
        self._waiting.extend(requests)

    def poll(self, timeout):
        if not self._waiting:
            return []
        request = self._waiting.pop()
        prompt = self._chat.tokenizer.decode(request.prompt_ids)
        user = prompt.split("user\n")[-1].split("<|im_end|>")[0]
        ids = self._chat.encode(self._answer(user))
        full = len(ids) > request.sampling.max_tokens
        ids = ids[: request.sampling.max_tokens]
        return [
            Completion(
                request.id,
                ids,
                (-0.5,) * len(ids),
                ((self.version, 0, len(ids)),),
                Finish.LENGTH if full else Finish.STOP,
            )
        ]

    def score(self, sequences, temperature=1.0):
        raise NotImplementedError

    def load(self, weights):
        raise NotImplementedError


class MuteEngine(TableEngine):
    """Never replies."""

    def poll(self, timeout):
        time.sleep(timeout)
        return []


def table(chat, answer, policy="main", **settings):
    """A model seat and the engine behind it."""
    role = replace(ROLE, **settings)
    return ModelSeat(role, chat, policy), TableEngine(chat, answer)


def plans(count, game="kuhn", lineup=("self",), seed=3):
    agents = {game: GAMES[game]().possible_agents}
    return balanced(seed, 0, count, 1, agents, [lineup])


def say(action):
    return f"<answer>{action}</answer>"


def timeless(episodes):
    return [replace(episode, seconds=0.0) for episode in episodes]


def alone(chat, answer, count=12, **options):
    """Self-play of one table at Kuhn poker."""
    seat, engine = table(chat, answer)
    return play(plans(count), GAMES, {"self": seat}, {"main": engine}, seed=0, **options)


# Who is paid for what.


def careful(brief):
    """Pass first; bet after a pass; call with a king only."""
    card, *bets = brief.split()
    return say({0: "pass", 1: "bet"}.get(len(bets), "bet" if card == "K" else "pass"))


def test_rewards_reach_the_turns_they_belong_to(chat):
    seen = Counter()
    for episode in alone(chat, careful, 30):
        opened, bet, last = episode.turns
        mine, theirs = opened.observation.brief[0], bet.observation.brief[0]
        assert [turn.action for turn in episode.turns[:2]] == ["pass", "bet"]
        # Each has put in one chip. player_0 folds: it loses its own. It calls with a king, which is
        # always best: it wins two.
        won = 2.0 if mine == "K" else -1.0
        assert (opened.reward, last.reward) == (0.0, won), "the game was not over at the first turn"
        assert bet.reward == -won, "what the other's later turn brings is paid to one's own last"
        assert dict(episode.returns) == {"player_0": won, "player_1": -won}
        assert {opened.policy, bet.policy, last.policy} == {"main"}
        assert theirs != mine
        seen[last.action] += 1
    assert len(seen) == 2, "both ends occurred"


def test_a_reward_before_an_agents_first_turn_credits_none_of_its_turns(chat):
    # An illegal action costs 0.1 and is asked again; the other gets the 0.1, before it has moved.
    answers = iter([say("fold"), say("bet"), say("pass")])
    seat, engine = table(chat, lambda brief: next(answers))
    games = {"kuhn": lambda: KuhnPoker(table=OutcomeTable(illegal_ends=False))}
    (episode,) = play(plans(1), games, {"self": seat}, {"main": engine}, seed=0)
    refused, bet, fold = episode.turns
    assert (refused.action, bet.action, fold.action) == ("fold", "bet", "pass")
    assert refused.reward == pytest.approx(-0.1)
    assert (bet.reward, fold.reward) == (1.0, -1.0)
    assert episode.returns["player_1"] == pytest.approx(0.1 - 1.0)


def test_three_players_get_what_the_game_pays(chat):
    seats = {"self": Uniform()}
    for episode in play(plans(40, "three"), GAMES, seats, {}, seed=1):
        assert sum(episode.returns.values()) == pytest.approx(0.0)
        assert len(episode.turns) >= 3
        for agent, total in episode.returns.items():
            own = [turn.reward for turn in episode.turns if turn.observation.agent == agent]
            assert sum(own) == pytest.approx(total), "all have moved before anything is paid"
            assert own[:-1] == [0.0] * (len(own) - 1)


def test_simultaneous_moves_are_both_asked_before_either_is_played(chat):
    seat, engine = table(chat, lambda brief: say("heads" if brief == "player_0" else "tails"))
    (episode,) = play(plans(1, "pennies"), GAMES, {"self": seat}, {"main": engine}, seed=0)
    assert engine.batches == [2]
    assert [turn.observation.agent for turn in episode.turns] == list(PLAYERS)
    # the first wins when both show the same
    assert dict(episode.returns) == {"player_0": -1.0, "player_1": 1.0}
    assert [turn.reward for turn in episode.turns] == [-1.0, 1.0]


def test_the_turn_limit_can_end_a_game_between_two_simultaneous_moves(chat):
    def make():
        return MatrixGame(table=OutcomeTable(illegal_ends=False), max_turns=2)

    seat, engine = table(chat, lambda brief: say("edge" if brief == "player_0" else "heads"))
    games = {"pennies": make}
    (episode,) = play(plans(1, "pennies"), games, {"self": seat}, {"main": engine}, seed=0)
    assert not episode.terminated
    assert set(episode.outcomes.values()) == {Outcome.TRUNCATED}
    assert len(episode.turns) == 1, "what was never played is no turn"


# Faults.


@pytest.mark.parametrize(
    "reply, fault, outcome",
    [
        ("", Outcome.FORMAT, Outcome.FORMAT),
        ("<answer></answer>", Outcome.FORMAT, Outcome.FORMAT),
        ("bet " * 100, Outcome.LENGTH, Outcome.LENGTH),
        (say("fold"), None, Outcome.ILLEGAL),
    ],
)
def test_each_fault_is_an_outcome_and_pays_by_the_table(chat, reply, fault, outcome):
    for episode in alone(chat, lambda brief: reply, 3):
        (turn,) = episode.turns
        assert turn.fault == fault
        assert episode.terminated
        assert dict(episode.outcomes) == {"player_0": outcome, "player_1": Outcome.OTHER_FORFEIT}
        # The default table: as bad as the worst that Kuhn poker can do to one, and as good.
        assert dict(episode.returns) == {"player_0": -2.0, "player_1": 2.0}
        assert turn.reward == -2.0


def test_a_deadline_that_passes_is_an_outcome(chat, tokenizer):
    seat = ModelSeat(ROLE, chat, "main")
    engine = tiny(tokenizer)
    episodes = play(plans(4), GAMES, {"self": seat}, {"main": engine}, seed=0, turn_seconds=1e-9)
    assert {episode.outcomes["player_0"] for episode in episodes} == {Outcome.TIME}
    assert {turn.finish for episode in episodes for turn in episode.turns} == {Finish.TIME}


# Shaping.


def test_shaping_is_paid_for_accepted_actions_apart_from_the_reward(chat):
    plain = alone(chat, careful)
    shaped = alone(chat, careful, shaping=Shaping(valid=0.05))
    assert [e.returns for e in shaped] == [e.returns for e in plain]
    for before, after in zip(plain, shaped, strict=True):
        assert [t.reward for t in after.turns] == [t.reward for t in before.turns]
        assert [t.shaping for t in after.turns] == pytest.approx([0.05] * 3)
    (refused,) = alone(chat, lambda brief: say("fold"), 1, shaping=Shaping(valid=0.05))[0].turns
    assert refused.shaping == 0.0


def test_an_action_that_is_refused_and_asked_again_earns_no_shaping(chat):
    answers = iter([say("fold"), say("bet"), say("pass")])
    seat, engine = table(chat, lambda brief: next(answers))
    games = {"kuhn": lambda: KuhnPoker(table=OutcomeTable(illegal_ends=False), list_legal=False)}
    (episode,) = play(
        plans(1), games, {"self": seat}, {"main": engine}, seed=0, shaping=Shaping(valid=0.05)
    )
    assert [turn.shaping for turn in episode.turns] == [0.0, 0.05, 0.05]


def test_shaping_is_capped_below_half_the_gap_between_two_endings(chat):
    # Kuhn's endings pay -2, -1, 1 and 2: the smallest gap is 1, so one agent gets at most 0.9 / 2.
    for episode in alone(chat, careful, 5, shaping=Shaping(valid=0.4)):
        shaped = [turn.shaping for turn in episode.turns]
        assert shaped == pytest.approx([0.4, 0.4, 0.05])


def test_scripted_players_are_not_shaped(chat):
    episodes = play(plans(3), GAMES, {"self": Uniform()}, {}, seed=0, shaping=Shaping(valid=0.4))
    assert {turn.shaping for e in episodes for turn in e.turns} == {0.0}


# Many games, many policies.


def test_episodes_come_in_the_order_of_the_plans_whatever_finishes_first(chat):
    wanted = list(reversed(plans(20)))
    seat, engine = table(chat, careful)
    episodes = play(wanted, GAMES, {"self": seat}, {"main": engine}, seed=0)
    assert [(e.id, e.group, e.seed, e.game) for e in episodes] == [
        (p.id, p.group, p.seed, p.game) for p in wanted
    ]


def test_games_of_a_group_have_the_same_start(chat):
    seat, engine = table(chat, careful)
    grouped = balanced(3, 0, 24, 6, {"kuhn": list(PLAYERS)}, [("self",)])
    episodes = play(grouped, GAMES, {"self": seat}, {"main": engine}, seed=0)
    deals = {}
    for episode in episodes:
        cards = tuple(turn.observation.brief[0] for turn in episode.turns[:2])
        deals.setdefault(episode.group, set()).add(cards)
    assert [len(cards) for cards in deals.values()] == [1] * 4
    assert len(set.union(*deals.values())) > 1


def test_moves_of_different_games_meet_in_one_batch(chat):
    seat, engine = table(chat, careful)
    play(plans(16), GAMES, {"self": seat}, {"main": engine}, seed=0)
    assert engine.batches[0] == 16


def test_no_more_than_concurrency_games_run_at_once(chat):
    seat, engine = table(chat, careful)
    play(plans(16), GAMES, {"self": seat}, {"main": engine}, seed=0, concurrency=3)
    assert max(engine.batches) <= 3


def test_two_policies_play_one_game_each_on_its_engine(chat):
    first, one = table(chat, careful, "one")
    second, two = table(chat, careful, "two")
    one.version, two.version = 4, 7
    episodes = play(
        plans(8, lineup=("a", "b")),
        GAMES,
        {"a": first, "b": second},
        {"one": one, "two": two},
        seed=0,
    )
    policy = {"a": ("one", 4), "b": ("two", 7)}
    for episode in episodes:
        for turn in episode.turns:
            assert turn.player == episode.seats[turn.observation.agent]
            assert (turn.policy, turn.versions[0][0]) == policy[turn.player]
    assert {e.seats["player_0"] for e in episodes} == {"a", "b"}, "seats are balanced"


class Diary(TableEngine):
    """Also writes down what it is asked to do."""

    def __init__(self, chat, name, diary):
        super().__init__(chat, lambda text: say("pass"))
        self._name, self._diary = name, diary

    def submit(self, requests):
        self._diary.append((self._name, "submit", len(requests)))
        super().submit(requests)

    def poll(self, timeout):
        found = super().poll(timeout)
        self._diary.append((self._name, "poll", len(found)))
        return found


def diary(chat, **options):
    """What two policies' engines do in four games of Kuhn poker, in which both pass."""
    entries = []
    engines = {name: Diary(chat, name, entries) for name in ("a", "b")}
    seats = {name: ModelSeat(ROLE, chat, name) for name in engines}
    return entries, play(plans(4, lineup=("a", "b")), GAMES, seats, engines, seed=3, **options)


def test_in_lock_step_nobody_is_asked_before_all_have_answered(chat):
    entries, episodes = diary(chat, lock_step=True)
    # Two games wait for each: first all of a, then b's two first moves and its two answers to a.
    assert entries == [
        ("a", "submit", 2), *[("a", "poll", 1)] * 2,
        ("b", "submit", 4), *[("b", "poll", 1)] * 4,
        ("a", "submit", 2), *[("a", "poll", 1)] * 2,
    ]  # fmt: skip
    assert timeless(episodes) == timeless(diary(chat)[1]), "who waits for whom changes no game"


def test_a_scripted_player_has_no_tokens_and_its_draws_hang_on_the_seed():
    seats = {"self": Uniform()}
    first, again, other = (
        play(plans(20, "tictactoe"), GAMES, seats, {}, seed=seed) for seed in (0, 0, 1)
    )
    assert timeless(first) == timeless(again) != timeless(other)
    assert all(turn.policy is None and not turn.ids for e in first for turn in e.turns)


# The real engine.


@dataclass(frozen=True)
class Parity:
    """Any reply names an action, by its length: a model that was taught nothing plays on."""

    stop = ()
    instructions = ""

    def parse(self, reply, finish):
        return Move("bet" if len(reply) % 2 else "pass")


def tiny(tokenizer, **settings):
    model = build_model(tokenizer, layers=1, width=16, heads=2, kv_heads=1, mlp=32, seed=0)
    return TransformersEngine(
        model, end_ids=[tokenizer.eos_token_id], tokenizer=tokenizer, **settings
    )


def test_who_shares_a_batch_does_not_matter_for_what_is_sampled(chat, tokenizer):
    role = replace(ROLE, parser=Parity(), sampling=Sampling(max_tokens=6))
    seats = {"self": ModelSeat(role, chat, "main")}

    def episodes(concurrency, **settings):
        engines = {"main": tiny(tokenizer, **settings)}
        return play(plans(24), GAMES, seats, engines, seed=0, concurrency=concurrency)

    alone, together, few = episodes(1), episodes(512), episodes(512, max_batch=5)
    assert {len(e.turns) for e in alone} == {2, 3}

    def sampled(played):
        return [[(t.ids, t.action, t.reward) for t in e.turns] for e in played]

    assert sampled(alone) == sampled(together) == sampled(few)
    pairs = [
        (a, b)
        for one, all_ in zip(alone, together, strict=True)
        for turn, other in zip(one.turns, all_.turns, strict=True)
        for a, b in zip(turn.logprobs, other.logprobs, strict=True)
    ]
    assert max(abs(a - b) for a, b in pairs) < 2e-6  # rounding of products of other shapes


def test_attempts_of_an_episode_are_drawn_apart(chat, tokenizer):
    role = replace(ROLE, parser=Parity(), sampling=Sampling(max_tokens=6))
    seats = {"self": ModelSeat(role, chat, "main")}
    engines = {"main": tiny(tokenizer)}
    (plan,) = plans(1)
    (first,) = play([plan], GAMES, seats, engines, seed=0)
    (second,) = play([replace(plan, attempt=1)], GAMES, seats, engines, seed=0)
    assert first.turns[0].observation == second.turns[0].observation
    assert first.turns[0].ids != second.turns[0].ids


# What is refused.


def test_an_engine_that_never_replies_is_given_up(chat):
    seat = ModelSeat(ROLE, chat, "main")
    engines = {"main": MuteEngine(chat, careful)}
    with pytest.raises(DeadlineError, match=r"no reply for 0.05 s; 2 are awaited.*stall_seconds"):
        play(plans(2), GAMES, {"self": seat}, engines, seed=0, stall_seconds=0.05)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"game": "kuhm"}, "unknown game 'kuhm'; did you mean 'kuhn'"),
        ({"players": dict.fromkeys(PLAYERS, "sefl")}, "unknown player 'sefl'; did you mean 'self'"),
        ({"players": {"player_0": "self"}}, "its agents are player_0, player_1"),
        ({"players": {**dict.fromkeys(PLAYERS, "self"), "player_2": "self"}}, "its agents are"),
    ],
)
def test_plans_that_cannot_be_played_are_refused(change, message):
    plan = replace(Plan(0, 0, "kuhn", 0, dict.fromkeys(PLAYERS, "self")), **change)
    with pytest.raises(ConfigError, match=message):
        play([plan], GAMES, {"self": Uniform()}, {}, seed=0)


def test_what_would_never_end_is_refused(chat):
    seat, engine = table(chat, careful)
    (plan,) = plans(1)
    with pytest.raises(ConfigError, match="same id"):
        play([plan, plan], GAMES, {"self": seat}, {"main": engine}, seed=0)
    with pytest.raises(ConfigError, match="at least 1 game"):
        play([plan], GAMES, {"self": seat}, {"main": engine}, seed=0, concurrency=0)
    with pytest.raises(ConfigError, match="no engine serves policy 'main'"):
        play([plan], GAMES, {"self": seat}, {}, seed=0)
