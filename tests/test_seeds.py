"""Seeds hang on their path alone."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from marl_llm.seeds import derive, generator


def test_a_path_has_one_seed():
    assert derive(1, "game", 2) == derive(1, "game", 2)
    others = [(1, "game", 3), (2, "game", 2), ("1", "game", 2), (1, "game2"), (1, "game", 2, 0)]
    assert len({derive(*path) for path in [(1, "game", 2), *others]}) == 6
    assert all(0 <= derive(7, i) < 2**63 for i in range(100))


def test_a_generator_repeats_and_differs_from_its_neighbours():
    assert generator(1, "a").random(5).tolist() == generator(1, "a").random(5).tolist()
    assert generator(1, "a").random() != generator(1, "b").random()


def test_draws_are_uniform_over_neighbouring_paths():
    # The first draw of 4,000 generators: each tenth of [0, 1) expects 400, sd 19.
    draws = np.array([generator(3, "episode", i).random() for i in range(4000)])
    counts = np.histogram(draws, 10, (0.0, 1.0))[0]
    assert abs(counts - 400).max() < 5 * 19
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 0.08


def test_children_are_independent_and_new_each_time():
    parent = generator(1, "a")
    first, second = parent.spawn(2)
    (third,) = parent.spawn(1)
    assert len({g.random() for g in (generator(1, "a"), first, second, third)}) == 4


def test_a_generator_travels_in_the_middle_of_its_draws():
    rng = generator(1, "a")
    rng.random(3)
    again = pickle.loads(pickle.dumps(rng))
    assert again.random() == rng.random()
    assert again.spawn(1)[0].random() == rng.spawn(1)[0].random()


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937])
def test_other_bit_generators_can_be_seeded_from_the_same_words(kind):
    # MT19937 asks for more words than one digest holds.
    assert kind(generator(1, "a").bit_generator.seed_seq).random_raw() >= 0
