"""OTB: a baseline for every token, over the tokens that an agent sampled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.batch import per_token
from marl_llm.credit.dr_grpo import DrGRPO
from marl_llm.credit.otb import OTB, score_norms
from marl_llm.errors import ConfigError, EpisodeError

SEEDS = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=20, deadline=None)


def advantage(batch, **options):
    return OTB(**options).estimate(batch).advantage


def token_signals(batch, chance, collision):
    return batch.with_signals({
        "old_logprob": np.log(np.asarray(chance, dtype=float)),
        "collision": np.asarray(collision, dtype=float),
    })  # fmt: skip


def rows_of(batch):
    """The tokens of every agent in every episode: {(group, agent): [token indices, ...]}."""
    out = {}
    agents = batch.agents()
    for chain in range(agents.count):
        rows = [i for i in agents.order if agents.of[i] == chain]
        places = [t for i in rows for t in range(batch.offsets[i], batch.offsets[i + 1])]
        if places:
            cell = (batch.group[rows[0]], batch.agent[rows[0]])
            out.setdefault(cell, []).append(places)
    return out


def plain(estimator, batch):
    """The formula, cell by cell and token by token; rows alone get 0."""
    later, paid = {}, np.zeros(len(batch))
    for i in sorted(range(len(batch)), key=lambda i: -batch.agent_turn[i]):
        me = (batch.episode[i], batch.agent[i])
        later[me] = paid[i] = batch.reward[i] + later.get(me, 0.0)
    to_go = np.repeat(paid, batch.lengths)
    chance = np.exp(batch.signals["old_logprob"])
    noise = 1 - 2 * chance + np.maximum(batch.signals["collision"], chance**2)
    out = np.zeros(len(to_go))
    for rows in rows_of(batch).values():
        if len(rows) == 1:
            continue
        for t in range(max(map(len, rows))):
            alive = [row for row in rows if len(row) > t]
            weights = [noise[row[: t + 1]].sum() for row in alive]
            values = [to_go[row[t]] for row in alive]
            baseline = np.dot(weights, values) / sum(weights)
            for row in alive:
                if len(alive) > 1:
                    out[row[t]] = to_go[row[t]] - baseline
                elif estimator.tail == "raw":
                    out[row[t]] = to_go[row[t]]
    return out


PLAIN = {"otb": plain}


def test_worked_values(make_batch):
    # w = 1 - 2π + Σπ²: .5, .08 and .02, .5; W: .5, .58 and .02, .52.
    # b: .5/.52 = .961538 and .58/1.10 = .527273.
    batch = token_signals(
        make_batch([1, 0], lengths=[2, 2]), [0.5, 0.8, 0.9, 0.5], [0.5, 0.68, 0.82, 0.5]
    )
    np.testing.assert_allclose(
        advantage(batch), [0.038462, 0.472727, -0.961538, -0.527273], atol=5e-7
    )


def test_turns_are_strung_together(make_batch):
    """The same rows cut into turns, with another agent's words in between, are the same rows."""
    chance, collision = [0.5, 0.8, 0.9, 0.5], [0.5, 0.68, 0.82, 0.5]
    batch = token_signals(
        make_batch(
            [0, 7, 1, 0, 7, 0],
            episode=[0, 0, 0, 1, 1, 1],
            agent=[0, 1, 0, 0, 1, 0],
            lengths=[1, 3, 1, 1, 2, 1],
        ),
        [0.5, *[0.3] * 3, 0.8, 0.9, *[0.3] * 2, 0.5],
        [0.5, *[0.3] * 3, 0.68, 0.82, *[0.3] * 2, 0.5],
    )
    whole = token_signals(make_batch([1, 0], lengths=[2, 2]), chance, collision)
    np.testing.assert_allclose(advantage(batch)[[0, 4, 5, 8]], advantage(whole))


def test_the_tail_of_the_longest_row(make_batch):
    # The second row has a third and a fourth token that no other reaches.
    batch = token_signals(make_batch([1, 5], lengths=[2, 4]), [0.5] * 6, [0.5] * 6)
    # w = .5 everywhere: b = (1 + 5)/2 at both common tokens.
    assert advantage(batch).tolist() == [-2, -2, 2, 2, 5, 5]
    assert advantage(batch, tail="zero").tolist() == [-2, -2, 2, 2, 0, 0]
    assert OTB().estimate(batch).stats["tail_tokens"] == 2


def test_rows_alone(make_batch):
    alone = token_signals(make_batch([3], lengths=[2]), [0.5] * 2, [0.5] * 2)
    assert advantage(alone).tolist() == [0, 0]
    for tail in ("raw", "zero"):
        assert advantage(alone, singleton="raw", tail=tail).tolist() == [3, 3]
    assert OTB().estimate(alone).stats["tail_tokens"] == 0
    with pytest.raises(EpisodeError, match="1 turns have nobody"):
        advantage(alone, singleton="error")


def test_without_noise_there_is_no_baseline_and_no_gradient(make_batch):
    # Certain tokens: w = 1 - 2 + 1 = 0 at both rows.
    batch = token_signals(make_batch([1, 3], lengths=[1, 2]), [1.0] * 3, [1.0] * 3)
    assert advantage(batch).tolist() == [1, 3, 3]


def test_small_numbers_at_the_start_are_not_drowned(make_batch):
    """A nearly certain first token, before many that are not; all minus the rest would be noise."""
    more = 1000
    chance = np.concatenate([[1 - 1e-9], np.full(more, 0.1), [1 - 2e-9], np.full(more, 0.1)])
    batch = token_signals(make_batch([0, 1], lengths=[more + 1] * 2), chance, chance**2)
    # w = (1 - π)², which is 1 and 4 times 1e-18: b = 4/5.
    got = advantage(batch)
    np.testing.assert_allclose([got[0], got[more + 1]], [-0.8, 0.2], rtol=1e-6)


def test_a_norm_is_never_negative():
    # Σπ² is at least π²; another engine's log-probs can say otherwise.
    assert score_norms(np.log([0.9]), np.array([0.1]))[0] == pytest.approx(0.01)
    # Two tokens with chances .8 and .2: e - π = (.2, -.2), squared .08.
    assert score_norms(np.log([0.8]), np.array([0.68]))[0] == pytest.approx(0.08)


def test_a_stale_sampler_can_be_weighed_in(make_batch):
    # π_old/π_sampler = 1 and 3: w = .5 and .5 * 9, capped at 2: .5 * 4. b = 2/2.5.
    batch = token_signals(make_batch([0, 1], lengths=[1, 1]), [0.5] * 2, [0.5] * 2)
    batch = replace(batch, logprobs=np.log([0.5, 0.5 / 3]))
    np.testing.assert_allclose(advantage(batch), [-0.5, 0.5])
    np.testing.assert_allclose(advantage(batch, ratio_cap=10.0), [-0.9, 0.1])
    np.testing.assert_allclose(advantage(batch, ratio_cap=2.0), [-0.8, 0.2])


@pytest.mark.parametrize("tail", ["raw", "zero"])
@LAW
@given(SEEDS)
def test_it_equals_the_loop(random_batch, tail, seed):
    batch = random_batch(np.random.default_rng(seed), groups=2)
    np.testing.assert_allclose(advantage(batch, tail=tail), plain(OTB(tail=tail), batch), atol=1e-9)


@LAW
@given(SEEDS)
def test_weighted_by_noise_the_rows_of_a_cell_add_up_to_nothing(random_batch, seed):
    """What makes the baseline that of least variance: Σ W (G - b) = 0 at each token."""
    batch = random_batch(np.random.default_rng(seed), groups=2)
    got = advantage(batch, tail="zero")
    chance = np.exp(batch.signals["old_logprob"])
    noise = score_norms(np.log(chance), batch.signals["collision"])
    for rows in rows_of(batch).values():
        for t in range(max(map(len, rows))):
            alive = [row for row in rows if len(row) > t]
            assert abs(sum(noise[row[: t + 1]].sum() * got[row[t]] for row in alive)) < 1e-9


@LAW
@given(SEEDS)
def test_equal_noise_and_lengths_make_dr_grpo(make_batch, seed):
    rng = np.random.default_rng(seed)
    batch = token_signals(
        make_batch(rng.normal(size=8), group=np.arange(8) // 4, lengths=[3] * 8),
        np.full(24, 0.6), np.full(24, 0.5),
    )  # fmt: skip
    expected = per_token(DrGRPO().estimate(batch), batch)
    np.testing.assert_allclose(advantage(batch), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "turn"}, "otb.unit"),
        ({"tail": "keep"}, "otb.tail has no option 'keep'"),
        ({"ratio_cap": 0.5}, "otb.ratio_cap must be finite and >= 1"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        OTB(**options)
