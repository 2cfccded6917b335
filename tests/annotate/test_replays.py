"""Playing on from the turns of a batch, against exact expectations, and what is made of it."""

from dataclasses import replace

import numpy as np
import pytest

from marl_llm.agents.scripted import Uniform
from marl_llm.annotate.action_values import ActionValues
from marl_llm.annotate.agent_ablation import AgentAblation
from marl_llm.annotate.greedy_return import GreedyReturn
from marl_llm.annotate.turn_ablation import TurnAblation
from marl_llm.credit import assign, returns
from marl_llm.credit.columns import from_episodes
from marl_llm.credit.given import Given
from marl_llm.credit.vine_ppo import VinePPO
from marl_llm.errors import EpisodeError
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.games.matrix import MatrixGame
from marl_llm.games.outcomes import OutcomeTable
from marl_llm.types import Move

PLAYERS = ("player_0", "player_1")


def coin(prompt, seed):
    """Passes or bets, whatever the cards."""
    return f"<answer>{('pass', 'bet')[seed % 2]}</answer>"


@pytest.fixture
def material(make_material, make_table):
    return make_material(make_table(coin), "kuhn", 12, size=2, user="{brief}")


def exact(episode, moves, agent):
    """What the coin earns an agent on average once these moves have been made."""
    game = KuhnPoker()
    game.reset(episode.seed)
    got = 0.0
    for action in moves:
        (mover,) = game.acting()
        game.act(mover, Move(action))
        got += game.take_rewards().get(agent, 0.0)
    if not game.acting():
        return got
    (mover,) = game.acting()
    return np.mean([exact(episode, [*moves, a], agent) for a in game.legal(mover)])


@pytest.mark.parametrize("after", [False, True])
def test_the_mean_of_continuations_is_the_expectation(material, after):
    rows = np.arange(5)
    count = 300
    found = material.replays(rows, count, after=after)
    batch = material.batch
    for row, got in zip(rows.tolist(), found, strict=True):
        episode = material.replays.episodes[batch.episode[row]]
        k = int(batch.turn[row])
        moves = [turn.action for turn in episode.turns[: k + after]]
        agent = material.turns[row].observation.agent
        last = not any(t.observation.agent == agent for t in episode.turns[k + 1 :])
        if after and last:
            assert set(got) == {episode.returns[agent]}
        else:
            # returns are within 2 of 0: five standard errors are below 10 / √300
            assert got.mean() == pytest.approx(exact(episode, moves, agent), abs=10 / count**0.5)
            assert set(got) <= {-2.0, -1.0, 1.0, 2.0}


def test_all_rows_and_continuations_are_one_rollout(material):
    material.replays(np.arange(len(material.batch)), 3)
    assert sizes(material) == [3 * len(material.batch)]


def sizes(material):
    """Of the rollouts that replays asked for."""
    return [len(episodes) for episodes in material.reach.play.rollouts]


def test_equal_questions_have_equal_answers_in_any_order_and_company(material):
    replays, n = material.replays, len(material.batch)
    whole = replays(np.arange(n), 4)
    some = np.array([5, 2, 5, 9])
    np.testing.assert_array_equal(replays(some, 4), whole[some])
    np.testing.assert_array_equal(replays(some, 2), whole[some, :2])
    assert not np.array_equal(replays(np.arange(n), 4, after=True), whole)
    assert replays(np.arange(0), 4).shape == (0, 4)


def test_rewards_before_the_restart_count(make_material, make_table):
    # "fold" is illegal and costs 0.1, whoever says it; the other gets them.
    makers = {"kuhn": lambda: KuhnPoker(table=OutcomeTable(illegal_ends=False))}
    words = ("pass", "bet", "fold")
    engine = make_table(lambda prompt, seed: f"<answer>{words[seed % 3]}</answer>")
    material = make_material(engine, "kuhn", 40, makers=makers, user="{brief}")
    fined = np.array([row for row, turn in enumerate(material.turns) if turn.action == "fold"])
    assert len(fined) > 5
    behind = material.replays(fined, 3, after=True)
    (episodes,) = material.reach.play.rollouts
    opened = iter(episodes)
    batch = material.batch
    for row, got in zip(fined.tolist(), behind.tolist(), strict=True):
        agent, k = material.turns[row].observation.agent, int(batch.turn[row])
        if batch.agents().after[row] == 0:
            continue  # nothing was left to play for it
        for value in got:
            turns = next(opened).turns
            assert turns[k].action == "fold"
            own = sum(turn.reward for turn in turns if turn.observation.agent == agent)
            assert value == pytest.approx(own)


def test_returns_are_counted_as_in_the_batch(make_material, make_table):
    # A charge of 10 per turn of the policy, as a KL term in the reward would be.
    def charged(episodes):
        batch = from_episodes(episodes, "main")
        return replace(batch, reward=batch.reward - 10.0)

    engine = make_table(coin)
    plain = make_material(engine, "kuhn", 6, user="{brief}")
    taxed = make_material(engine, "kuhn", 6, user="{brief}", columns=charged)
    rows = np.arange(len(plain.batch))
    saved = plain.replays(rows, 3) - taxed.replays(rows, 3)
    assert set(np.unique(saved)) == {10.0, 20.0}, "one or two turns of the agent"


def test_a_game_that_its_seed_and_moves_do_not_fix_is_refused(make_material, make_table):
    class Moody(KuhnPoker):
        """Deals differently every time."""

        resets = 0

        def reset(self, seed=None, options=None):
            Moody.resets += 1
            super().reset(seed + Moody.resets, options)

    material = make_material(make_table(coin), "kuhn", 8, makers={"kuhn": Moody}, user="{brief}")
    with pytest.raises(EpisodeError, match=r"cannot be played on from turn \d.*games check"):
        material.replays(np.arange(len(material.batch)), 1)


def test_simultaneous_moves_are_played_on_from_between_them(make_material, make_table):
    makers = {"pennies": MatrixGame}
    engine = make_table(lambda prompt, seed: f"<answer>{('heads', 'tails')[seed % 2]}</answer>")
    material = make_material(engine, "pennies", 10, makers=makers, user="{brief}")
    found = material.replays(np.arange(len(material.batch)), 60)
    # player_0's move drawn anew, and player_1's with it: 0 on average; player_1's alone too.
    np.testing.assert_allclose(found.mean(axis=1), 0.0, atol=5 / 60**0.5)
    assert set(np.unique(found)) == {-1.0, 1.0}


def test_vine_ppo_on_a_real_game_adds_up_to_the_return(material):
    vine = VinePPO(count=4, whiten=False)
    credit = assign(vine, material.batch, Given(resample=material.replays))
    agents = material.batch.agents()
    total = returns.totals(material.batch.reward, agents)
    summed = returns.totals(credit.advantage, agents)
    first = agents.before == 0
    before = -credit.components["before"]
    np.testing.assert_allclose(summed[first] + before[first], total[first], atol=1e-12)


# What annotators make of it.


def test_a_turn_drawn_anew(material):
    columns = TurnAblation(count=5).annotate(material)
    expected = material.replays(np.arange(len(material.batch)), 5).mean(axis=1)
    np.testing.assert_array_equal(columns["ablated_return"], expected)


def test_action_values_have_the_taken_action_in_one_and_a_drawn_one_in_the_other(
    make_material, make_table
):
    material = make_material(make_table(coin), "kuhn", 3, user="{brief}")
    columns = ActionValues(count=300).annotate(material)
    batch = material.batch
    for row in range(len(batch)):
        episode = material.replays.episodes[batch.episode[row]]
        k, agent = int(batch.turn[row]), material.turns[row].observation.agent
        moves = [turn.action for turn in episode.turns]
        later = any(t.observation.agent == agent for t in episode.turns[k + 1 :])
        taken = exact(episode, moves[: k + 1] if later else moves, agent)
        drawn = exact(episode, moves[:k], agent)
        assert columns["action_value"][row] == pytest.approx(taken, abs=10 / 300**0.5)
        assert columns["action_value_mean"][row] == pytest.approx(drawn, abs=10 / 300**0.5)


def test_an_agents_seat_is_taken_by_the_default(make_material, make_table):
    class Bold:
        """Always bets."""

        name = "bold"

        def act(self, game, agent, rng):
            return "bet"

    engine = make_table(lambda prompt, seed: "<answer>pass</answer>")
    material = make_material(engine, "kuhn", 8, size=2, user="{brief}")
    columns = AgentAblation(player=Bold(), count=2).annotate(material)
    for row, turn in enumerate(material.turns):
        # The bold one bets and the other passes: it wins the ante.
        assert columns["return_without"][row] == 1.0
        assert turn.policy == "main"
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(
            AgentAblation(player=Uniform(), count=2).annotate(material)["return_without"], 1.0
        )


def test_a_group_shares_the_replays_of_an_agent(material):
    columns = AgentAblation(count=3).annotate(material)
    batch = material.batch
    groups = {}
    for row, value in enumerate(columns["return_without"].tolist()):
        groups.setdefault((batch.group[row], batch.agent[row]), set()).add(value)
    assert all(len(values) == 1 for values in groups.values())
    assert sizes(material) == [3 * len(groups)]


def test_the_greedy_episode_of_a_group_is_at_temperature_0(make_material, make_table):
    engine = make_table(coin)
    material = make_material(engine, "kuhn", 12, size=3, user="{brief}")
    sampled = len(engine.requests)
    engine.reply = lambda prompt, seed: "<answer>pass</answer>"
    columns = GreedyReturn().annotate(material)
    greedy = engine.requests[sampled:]
    assert {request.sampling.temperature for request in greedy} == {0.0}
    assert sizes(material) == [4], "one per group"
    for row, turn in enumerate(material.turns):
        # Both pass: the higher card wins the ante.
        episode = material.replays.episodes[material.batch.episode[row]]
        value = exact_passes(episode, turn.observation.agent)
        assert columns["greedy_return"][row] == value


def exact_passes(episode, agent):
    game = KuhnPoker()
    game.reset(episode.seed)
    while game.acting():
        (mover,) = game.acting()
        game.act(mover, Move("pass"))
    return game.take_rewards().get(agent, 0.0)
