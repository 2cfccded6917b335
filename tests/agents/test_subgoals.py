"""Players with sub-goals, and the demonstrations that are made of their play."""

import numpy as np
import pytest

from marl_llm import coldstart
from marl_llm.agents.chat import Chat
from marl_llm.agents.parsers import Tags
from marl_llm.agents.plan_execute import PlanExecute
from marl_llm.agents.role import Role
from marl_llm.agents.scripted import Uniform
from marl_llm.agents.subgoals import Purposeful, Skipper, SubGoalSolver
from marl_llm.errors import ConfigError, GameError
from marl_llm.games.household.single import Household
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.serve.tiny import build_tokenizer
from marl_llm.types import Finish, Move, Outcome

ME = "player_0"
GAMES = {"household": Household}
ROLE = Role("player", user="{brief}; goal {subgoal}", parser=PlanExecute())
SOLVER, SKIPPER = SubGoalSolver(), Skipper(skip=0.6, slip=0.1)


def outcome(player, seed, family=None):
    game, rng = Household(), np.random.default_rng(seed)
    game.reset(seed, {"family": family})
    while game.acting():
        game.act(ME, Move(player.act(game, ME, rng)))
    return game.outcomes()[ME]


def wins(player, family, count=60):
    return sum(outcome(player, seed, family) is Outcome.WIN for seed in range(count)) / count


def test_the_solver_wins():
    assert wins(SOLVER, None) == 1.0


@pytest.mark.parametrize("family", ["clean", "heat", "cool", "light"])
def test_the_skipper_leaves_out_what_changes_a_thing(family):
    assert wins(Skipper(skip=1.0, slip=0.0), family, 20) < 0.2  # by the random play behind it
    assert wins(Skipper(skip=0.0, slip=0.0), family, 20) == 1.0
    assert 0.2 < wins(SKIPPER, family) < 0.6


@pytest.mark.parametrize("family", ["place", "two"])
def test_the_skipper_does_the_rest(family):
    assert wins(Skipper(skip=1.0, slip=0.0), family, 20) == 1.0


@pytest.mark.parametrize("player", [SOLVER, SKIPPER])
def test_a_player_says_the_same_of_an_episode_that_is_told_again(player):
    """What it was after in each turn, asked while it played and asked of the finished episodes."""
    said = []

    class Listening:
        name = player.name

        def act(self, game, agent, rng):
            said.append(player.intent(game, agent))
            return player.act(game, agent, rng)

    episodes = coldstart.scripted_games(GAMES, Listening(), 12, seed=3)
    goals = coldstart.pursued(episodes, GAMES, {"player": ROLE}, player)
    assert sorted(goal for some in goals.values() for goal in some) == sorted(said)
    assert all(len(goals[episode.id]) == len(episode.turns) for episode in episodes)


def demonstrated(player, role=ROLE, count=20):
    episodes = coldstart.scripted_games(GAMES, player, count, seed=3)
    cast = {"player": role}
    goals = coldstart.pursued(episodes, GAMES, cast, player)
    chat = Chat(build_tokenizer(coldstart.texts(episodes, GAMES, cast, goals), 420))
    pairs = coldstart.demonstrations(episodes, GAMES, cast, chat, "none", goals)
    return episodes, goals, chat, pairs


@pytest.mark.parametrize("copied", [False, True])
def test_demonstrations_carry_switch_and_sub_goal(copied):
    parser = PlanExecute(copied=copied)
    role = Role("player", user=ROLE.user, parser=parser)
    episodes, goals, chat, pairs = demonstrated(SKIPPER, role)
    rows = iter(pairs)
    switches = 0
    for episode in episodes:
        held = "none"
        for turn, goal in zip(episode.turns, goals[episode.id], strict=True):
            prompt, reply = next(rows)
            assert f"goal {held}<" in chat.tokenizer.decode(prompt)
            text = chat.decode(reply)
            move, plan = parser.go_on(held, text, Finish.STOP)
            assert move == Move(turn.action)
            assert plan.switch == (goal != held)
            assert (plan.subgoal is None) == (not plan.switch and not copied)
            held = plan.then(held)
            assert held == goal
            switches += plan.switch
    assert next(rows, None) is None
    assert len(episodes) < switches < len(pairs) / 2


def test_the_solvers_switches_are_the_boundaries_of_the_game():
    episodes, goals, _, _ = demonstrated(SOLVER)
    game = Household()
    for episode in episodes:
        game.reset(episode.seed)
        for turn in episode.turns:
            game.act(ME, Move(turn.action))
        record = game.subgoals()
        said = goals[episode.id]
        starts = [0, *(n for n in range(1, len(said)) if said[n] != said[n - 1])]
        reached = [turn for _, turn in record]
        # A sub-goal that was reached ahead of its turn has no segment of its own.
        assert starts == sorted({0, *reached[:-1]} - {len(said)})


def test_a_role_without_sub_goals_gets_demonstrations_as_ever():
    role = Role("player", user="{brief}", parser=Tags(think="none"))
    _, goals, chat, pairs = demonstrated(Uniform(), role, 2)
    assert goals == {}
    assert chat.decode(pairs[0][1]).startswith("<answer>")


def test_a_player_without_sub_goals_cannot_teach_them():
    assert isinstance(SOLVER, Purposeful) and not isinstance(Uniform(), Purposeful)
    with pytest.raises(ConfigError, match=r"'random' pursues no sub-goals.*skipper"):
        demonstrated(Uniform())


@pytest.mark.parametrize("player", [SOLVER, SKIPPER])
def test_games_without_sub_goals_are_refused(player):
    game = KuhnPoker()
    game.reset(0)
    with pytest.raises(GameError, match="kuhn is none"):
        player.act(game, game.acting()[0], np.random.default_rng(0))


@pytest.mark.parametrize("settings", [{"skip": 1.5}, {"slip": -0.1}])
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError, match="is a probability"):
        Skipper(**settings)


def test_players_play_longer_errands_too():
    game, rng = Household(level=5), np.random.default_rng(0)
    for player, seed in ((SOLVER, 0), (Skipper(skip=0.0, slip=0.3), 1)):
        game.reset(seed)
        while game.acting():
            game.act(ME, Move(player.act(game, ME, rng)))
        assert game.outcomes()[ME] is Outcome.WIN
