"""The critic that counts, against a plain loop and by hand."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.annotate.state_values import StateValues, mean_of_others
from marl_llm.credit import returns
from marl_llm.credit.columns import from_episodes
from marl_llm.credit.gae import GAE
from marl_llm.credit.gae_token import TokenGAE
from marl_llm.errors import ConfigError
from marl_llm.games.kuhn import KuhnPoker
from marl_llm.games.outcomes import OutcomeTable


def plain(values, weights, keys, episodes):
    """For every row, one loop over all rows."""
    means, counts = [], []
    for i in range(len(values)):
        others = [
            (values[j], weights[j])
            for j in range(len(values))
            if keys[j] == keys[i] and episodes[j] != episodes[i]
        ]
        count = sum(w for _, w in others)
        counts.append(count)
        means.append(sum(v * w for v, w in others) / count if count else np.nan)
    return means, counts


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 20))
def test_the_mean_of_others_by_a_plain_loop(seed, n):
    rng = np.random.default_rng(seed)
    values, weights = rng.normal(size=n), rng.integers(0, 2, n).astype(float)
    keys, episodes = rng.integers(0, 4, n), rng.integers(0, 5, n)
    mean, count = mean_of_others(values, weights, (keys,), episodes)
    expected, counts = plain(values.tolist(), weights.tolist(), keys.tolist(), episodes.tolist())
    np.testing.assert_allclose(mean, expected, atol=1e-12)
    assert count.tolist() == counts


def test_equal_returns_have_exactly_their_mean():
    third = np.full(7, 0.1 + 0.2)
    mean, _ = mean_of_others(third, np.ones(7), (np.zeros(7, int),), np.arange(7))
    assert mean.tolist() == third.tolist()


def lucky(prompt, seed):
    """Looks now and then, and guesses."""
    return f"<answer>{('look', 'red', 'blue')[seed % 3]}</answer>"


def test_values_by_hand(make_material, make_table):
    # Three episodes: "red" at once; look and then "blue"; "blue" at once. All start hidden.
    words = iter(["red", "look", "blue", "blue"])
    engine = make_table(lambda prompt, seed: f"<answer>{next(words)}</answer>")
    material = make_material(engine, count=3)
    assert [turn.observation.brief for turn in material.turns].count("hidden") == 3
    g = returns.to_go(material.batch.reward, material.batch.agents())
    hidden = [row for row, turn in enumerate(material.turns) if turn.observation.brief == "hidden"]
    columns = StateValues(least=2).annotate(material)
    for row in hidden:
        others = [g[other] for other in hidden if other != row]
        assert columns["value"][row] == pytest.approx(sum(others) / 2)
    (looked,) = set(range(4)) - set(hidden)
    # Nobody else has looked: the mean over the turns of the other two episodes stands in.
    own = material.batch.episode[looked]
    others = [g[row] for row in hidden if material.batch.episode[row] != own]
    assert columns["value"][looked] == pytest.approx(sum(others) / 2)
    before = looked - 1
    assert columns["value_next"][before] == columns["value"][looked]
    assert columns["value_next"][looked] == 0.0, "it ended by the rules"


def test_own_luck_does_not_move_ones_own_value(make_material, make_table):
    material = make_material(make_table(lucky), count=20)
    before = StateValues().annotate(material)["value"]
    episode = 7
    batch = material.batch
    richer = replace(batch, reward=batch.reward + 100.0 * (batch.episode == episode))
    after = StateValues().annotate(replace(material, batch=richer))["value"]
    own = batch.episode == episode
    assert before[own].tolist() == after[own].tolist()
    assert not np.array_equal(before[~own], after[~own])


def test_tokens_have_the_value_before_their_turn(make_material, make_table):
    material = make_material(make_table(lucky), count=20)
    columns = StateValues().annotate(material)
    expected = np.repeat(columns["value"], material.batch.lengths)
    np.testing.assert_array_equal(columns["token_value"], expected)
    batch = material.batch.with_signals(columns)
    # λ = 1: return minus value at every token, as over turns.
    turns = GAE(lam=1.0).estimate(batch).advantage
    tokens = TokenGAE().estimate(batch).advantage
    np.testing.assert_allclose(tokens, np.repeat(turns, batch.lengths), atol=1e-12)


def test_alone_an_episode_has_no_value_and_gets_no_credit(make_material, make_table):
    material = make_material(make_table(lucky), count=1)
    columns = StateValues().annotate(material)
    assert np.isnan(columns["value"]).all()
    batch = material.batch.with_signals(columns)
    assert not batch.known("value").any()
    assert GAE().estimate(batch).advantage.tolist() == [0.0] * len(batch)
    np.testing.assert_allclose(
        columns["token_value"],
        np.repeat(returns.to_go(batch.reward, batch.agents()), batch.lengths),
    )


def test_after_an_episode_that_was_cut_short_stands_the_state_it_was_left_in(
    make_material, make_table, riddle
):
    def short():
        game = riddle("short")
        game.max_turns = 2
        return game

    # Seeds decide: look twice and be cut short after the second, or name a colour.
    makers = {"short": short}
    engine = make_table(lambda prompt, seed: f"<answer>{('look', 'red')[seed % 2]}</answer>")
    material = make_material(engine, "short", count=24, makers=makers)
    batch = material.batch
    assert batch.truncated.any() and batch.terminated.any()
    columns = StateValues(least=1).annotate(material)
    cut = np.flatnonzero(batch.truncated)
    g = returns.to_go(batch.reward, batch.agents())
    for row in cut.tolist():  # nobody had a turn after two looks: the mean of all others' turns
        others = batch.episode != batch.episode[row]
        assert columns["value_next"][row] == pytest.approx(g[others].mean())
    GAE().estimate(batch.with_signals(columns))


def test_a_state_that_others_had_turns_in_is_known_after_a_cut(make_material, make_table, riddle):
    engine = make_table(lambda prompt, seed: f"<answer>{('look', 'red')[seed % 2]}</answer>")
    material = make_material(engine, count=24)

    def cut(episode):
        """As if it had been cut short after its first look."""
        if len(episode.turns) < 2 or episode.id % 2:
            return episode
        return replace(episode, turns=episode.turns[:1], terminated=False)

    episodes = [cut(episode) for episode in material.episodes]
    batch = from_episodes(episodes, "main")
    material = replace(
        material,
        episodes=tuple(episodes),
        batch=batch,
        turns=tuple(turn for episode in episodes for turn in episode.turns),
        replays=replace(material.replays, episodes={e.id: e for e in episodes}, batch=batch),
    )
    columns = StateValues(least=1).annotate(material)
    g = returns.to_go(batch.reward, batch.agents())
    known = defaultdict(list)
    for row, turn in enumerate(material.turns):
        known[turn.observation.key].append(g[row])
    checked = 0
    for row in np.flatnonzero(batch.truncated).tolist():
        episode = next(e for e in episodes if e.id == batch.episode[row])
        game = riddle()
        game.reset(episode.seed)
        behind = f"{game.ball} 1"
        if known[behind]:
            assert columns["value_next"][row] == pytest.approx(np.mean(known[behind]))
            checked += 1
    assert checked


def test_a_discount_of_the_counted_returns(make_material, make_table):
    engine = make_table(lambda prompt, seed: f"<answer>{('look', 'red')[seed % 2]}</answer>")
    material = make_material(engine, count=20)
    g = returns.to_go(material.batch.reward, material.batch.agents(), 0.5)
    expected, _ = mean_of_others(
        g, np.ones(len(g)), (material.batch.state_key,), material.batch.episode
    )
    found = StateValues(least=1, gamma=0.5).annotate(material)["value"]
    known = ~np.isnan(expected)
    np.testing.assert_allclose(found[known], expected[known])
    assert not np.allclose(found, StateValues(least=1).annotate(material)["value"])


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match=r"state_values.least"):
        StateValues(least=0)
    with pytest.raises(ConfigError, match=r"state_values.parent has no option 'rolle'"):
        StateValues(parent=("rolle",))


def test_faults_and_retries_do_no_harm(make_material, make_table):
    makers = {"kuhn": lambda: KuhnPoker(table=OutcomeTable(illegal_ends=False))}
    words = ("pass", "bet", "fold")
    engine = make_table(lambda prompt, seed: f"<answer>{words[seed % 3]}</answer>")
    material = make_material(engine, "kuhn", count=40, makers=makers, user="{brief}")
    columns = StateValues().annotate(material)
    assert np.isfinite(columns["value"]).all()
