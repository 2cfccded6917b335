"""Any PettingZoo environment through a codec: AEC, Parallel, agents that end early, masks."""

import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils import EzPickle
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.test import api_test, seed_test

from marl_llm.errors import GameError
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.games.pettingzoo_game import DiscreteCodec, PettingZooGame
from marl_llm.types import Move, Outcome

DISCRETE = gymnasium.spaces.Discrete
BOX = gymnasium.spaces.Box(0, 10, (2,), np.int64)


class Throws(ParallelEnv):
    """Rock, paper, scissors over some rounds; each sees the last throws of both."""

    metadata = {"name": "throws"}  # noqa: RUF012

    def __init__(self, rounds=2, cut=False):
        self.possible_agents = ["left", "right"]
        self.rounds, self.cut = rounds, cut

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return DISCRETE(3)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.left = self.rounds
        return {agent: np.array([3, 3]) for agent in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        a, b = actions["left"], actions["right"]
        won = (0.0, 1.0, -1.0)[(a - b) % 3]
        self.left -= 1
        over = self.left == 0
        names = self.agents
        if over:
            self.agents = []
        return (
            {"left": np.array([a, b]), "right": np.array([b, a])},
            {"left": won, "right": -won},
            dict.fromkeys(names, over and not self.cut),
            dict.fromkeys(names, over and self.cut),
            {agent: {} for agent in names},
        )


class LastOneStanding(AECEnv):
    """Three agents draw numbers in turn; a die roll below two takes an agent out at once."""

    metadata = {"name": "standing"}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.possible_agents = ["a", "b", "c"]

    def observation_space(self, agent):
        return gymnasium.spaces.Dict(
            {"observation": BOX, "action_mask": gymnasium.spaces.Box(0, 1, (3,), np.int8)}
        )

    def action_space(self, agent):
        return DISCRETE(3)

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.roll = 5
        self.agent_selection = "a"

    def observe(self, agent):
        self.infos[agent]  # a removed agent is a KeyError, as in many environments
        mask = np.array([1, self.roll > 2, 1], dtype=np.int8)
        return {"observation": np.array([self.roll, len(self.agents)]), "action_mask": mask}

    def step(self, action):
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        agent = self.agent_selection
        self._cumulative_rewards[agent] = 0
        self._clear_rewards()
        self.roll = int(self.rng.integers(6))
        alive = [name for name in self.agents if not self.terminations[name]]
        if self.roll < 2:
            self.terminations[agent] = True
            self.rewards[agent] = -1.0
            alive.remove(agent)
        after = [name for name in alive if name > agent] or alive
        if len(alive) == 1:
            self.rewards[alive[0]] = 2.0
            self.terminations[alive[0]] = True
        self.agent_selection = after[0]
        self._accumulate_rewards()
        self._deads_step_first()


THROWS = DiscreteCodec("Rock beats scissors.", ("rock", "paper", "scissors"))


def throws(**more):
    env = Throws(**{key: more.pop(key) for key in ("rounds", "cut") if key in more})
    return PettingZooGame(
        env=env, codec=THROWS, name="throws", interest="opposed", max_turns=10, **more
    )


def standing():
    return PettingZooGame(
        env=LastOneStanding(),
        codec=DiscreteCodec("Roll.", ("low", "middle", "high")),
        name="standing",
        returns=(-1.0, 2.0),
        max_turns=200,
    )


def test_parallel_moves_are_made_at_once():
    game = throws()
    game.reset(seed=0)
    assert game.acting() == ("player_0", "player_1")
    before = game.observation("player_1")
    game.act("player_0", Move("paper"))
    assert game.observation("player_1") == before and game.acting() == ("player_1",)
    game.act("player_1", Move("rock"))
    assert game.take_rewards() == {"player_0": 1.0, "player_1": -1.0}
    assert game.observation("player_1").text == (
        "You are player_1. You see:\n0 1\nLegal actions: rock, paper, scissors."
    )
    game.act("player_1", Move("rock"))  # in any order
    game.act("player_0", Move("rock"))
    assert game.outcomes() == {"player_0": Outcome.WIN, "player_1": Outcome.LOSS}


def test_faults_are_paid_by_the_table():
    game = throws()
    game.reset(seed=0)
    game.act("player_0", Move("lizard"))
    game.act("player_1", Move("rock"))
    assert game.outcomes() == {"player_0": Outcome.ILLEGAL, "player_1": Outcome.OTHER_FORFEIT}
    assert game.take_rewards() == {"player_0": -1.0, "player_1": 1.0}


def test_a_truncating_environment_truncates():
    game = throws(rounds=1, cut=True)
    game.reset(seed=0)
    for agent in game.possible_agents:
        game.act(agent, Move("rock"))
    assert set(game.outcomes().values()) == {Outcome.TRUNCATED}
    assert all(game.truncations.values())


def test_agents_that_end_early_are_not_asked_again():
    game = standing()
    for seed in range(20):
        game.reset(seed=seed)
        out, totals = set(), dict.fromkeys(game.possible_agents, 0.0)
        while game.acting():
            (agent,) = game.acting()
            assert agent not in out
            seen = game.observation(agent)
            game.act(agent, Move(seen.legal[-1]))
            for who, reward in game.take_rewards().items():
                totals[who] += reward
                out |= {who} if reward < 0 else set()
        assert sorted(totals.values()) == [-1.0, -1.0, 2.0]
        results = game.outcomes()
        assert {who for who, result in results.items() if result is Outcome.WIN} == (
            set(game.possible_agents) - out
        )
        assert all("You see" in game.observation(agent).text for agent in game.possible_agents)


def test_the_mask_is_the_legal_list():
    game = standing()
    legal = set()
    for seed in range(10):
        game.reset(seed=seed)
        while game.acting():
            (agent,) = game.acting()
            legal.add(game.observation(agent).legal)
            game.act(agent, Move("low"))
    assert legal == {("low", "middle", "high"), ("low", "high")}


@pytest.mark.parametrize("make", [throws, standing])
def test_pettingzoo_tests_snapshots_and_pickles(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        api_test(make(), num_cycles=30)
        seed_test(make, num_cycles=30)
    game = make()
    game.reset(seed=4)
    game.act(game.acting()[0], Move(game.actions[0]))
    copy = pickle.loads(pickle.dumps(game))
    other = make()
    other.restore(game.snapshot())
    while game.acting():
        agent = game.acting()[0]
        assert game.acting() == copy.acting() == other.acting()
        assert game.observation(agent) == copy.observation(agent) == other.observation(agent)
        for each in (game, copy, other):
            each.act(agent, Move(game.actions[0]))
    assert game.outcomes() == copy.outcomes() == other.outcomes()


def test_our_own_games_are_pettingzoo_environments_too():
    """Kuhn poker wrapped in the adapter pays what Kuhn poker pays."""

    class Reads:
        rules, actions = "Kuhn poker.", ("pass", "bet")

        def words(self, player, observation):
            return observation["text"], ""

        def decode(self, player, action):
            return self.actions.index(action) if action in self.actions else None

    kuhn = KuhnPoker()
    game = PettingZooGame(
        env=kuhn, codec=Reads(), name="k", interest="opposed", returns=(-2, 2), max_turns=3
    )
    game.reset(seed=1)
    assert game.observation("player_0").text.startswith(kuhn.observation("player_0").text)
    while game.acting():
        game.act(game.acting()[0], Move("bet"))
    assert sorted(game.take_rewards().values()) == [-2.0, 2.0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: PettingZooGame(env=Throws, codec=THROWS, max_turns=2),
            "needs a PettingZoo AECEnv or ParallelEnv",
        ),
        (
            lambda: PettingZooGame(
                env=Throws(), codec=DiscreteCodec("", ("rock", "paper")), max_turns=2
            ),
            "names 2 actions, but left has",
        ),
        (
            lambda: PettingZooGame(env=Throws(), codec=THROWS, max_turns=2, returns=(1.0,)),
            "a lowest and a highest",
        ),
    ],
)
def test_errors_say_what_to_do(make, says):
    with pytest.raises(GameError, match=says):
        make()


class StartsAnew(Throws, EzPickle):
    """Pickled as PettingZoo's own environments are: by its arguments, without its episode."""

    def __init__(self, rounds=2):
        EzPickle.__init__(self, rounds)
        Throws.__init__(self, rounds)


class StandingAnew(LastOneStanding, EzPickle):
    """The same for one where agents move in turn."""

    def __init__(self):
        EzPickle.__init__(self)
        LastOneStanding.__init__(self)


@pytest.mark.parametrize("env", [StartsAnew(3), StandingAnew()])
def test_a_copy_goes_on_though_the_environment_starts_anew(env):
    actions = THROWS.actions
    game = PettingZooGame(env=env, codec=THROWS, name="anew", returns=(-3.0, 3.0), max_turns=90)
    assert pickle.loads(pickle.dumps(game)).acting() == ()  # never begun
    game.reset(seed=4)
    rng = np.random.default_rng(0)
    while game.acting():
        copy = pickle.loads(pickle.dumps(game))
        for agent in game.acting():
            assert copy.observation(agent) == game.observation(agent)
        agent = game.acting()[0]
        legal = game.legal(agent)
        action = legal[int(rng.integers(len(legal)))]
        assert action in actions
        for one in (game, copy):
            one.act(agent, Move(action))
        assert (copy.acting(), copy.take_rewards()) == (game.acting(), game.take_rewards())
        assert copy.outcomes() == game.outcomes()
