import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_llm.errors import EpisodeError, TrainingError
from marl_llm.store import MemoryStore
from marl_llm.types import Weights


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def store(**settings):
    clock = Clock()
    return MemoryStore(clock, **settings), clock


def test_records_come_in_the_order_they_were_put_and_once():
    box, _ = store()
    assert box.put("main", 0, {"a": "A", "b": "B"}) == 2
    assert box.put("main", 0, {"a": "again", "c": "C"}) == 1
    claim = box.claim("main", 2, oldest=0, lease=10)
    assert claim.records == ("A", "B")
    assert box.claim("main", 2, oldest=0, lease=10) is None
    box.acknowledge("main", claim.id)
    assert box.waiting("main") == 1
    assert box.put("main", 0, {"a": "again"}) == 0, "learned once is learned for good"


def test_an_expired_lease_can_be_claimed_again_and_the_late_learner_is_told():
    box, clock = store()
    box.put("main", 0, {1: "x"})
    first = box.claim("main", 1, 0, lease=10)
    clock.now = 10.0
    second = box.claim("main", 1, 0, lease=10)
    assert second.records == ("x",)
    with pytest.raises(EpisodeError, match="expired"):
        box.acknowledge("main", first.id)
    box.acknowledge("main", second.id)


def test_topics_are_apart():
    box, _ = store()
    box.put("planner", 0, {1: "p"})
    assert box.claim("executor", 1, 0, 1) is None


def test_stale_records_are_dropped_and_counted_whenever_they_come():
    box, _ = store()
    box.put("main", 3, {1: "old"})
    box.put("main", 4, {2: "new"})
    assert box.claim("main", 1, oldest=4, lease=1).records == ("new",)
    assert box.dropped("main") == 1
    assert box.put("main", 3, {3: "late"}) == 0
    assert box.dropped("main") == 2


@given(st.integers(1, 30), st.integers(1, 5))
def test_the_store_does_not_grow_with_the_updates(updates, staleness):
    box, _ = store()
    for update in range(updates):
        box.put("main", update, {(update, episode): "e" for episode in range(4)})
        claim = box.claim("main", 4, oldest=max(0, update - staleness), lease=1)
        box.acknowledge("main", claim.id)
        assert box.put("main", update, {(update, 0): "again"}) == 0
    assert box.waiting("main") == 0
    assert box.remembered("main") <= 4 * (staleness + 1)


def test_a_full_topic_refuses_and_keeps_nothing_of_the_rest():
    box, _ = store(capacity=2)
    box.put("main", 0, {1: "x"})
    with pytest.raises(TrainingError, match="only 2 may wait"):
        box.put("main", 0, {2: "y", 3: "z"})
    assert box.waiting("main") == 1
    assert box.put("main", 0, {2: "y"}) == 1


def test_weights_only_go_forward():
    box, _ = store()
    assert box.latest("main") is None
    box.publish(Weights("main", 1, "c", path="a"))
    box.publish(Weights("main", 2, "d", path="b"))
    assert box.latest("main").version == 2
    with pytest.raises(EpisodeError, match="cannot go back"):
        box.publish(Weights("main", 1, "c", path="a"))


def test_claims_pickle():
    box, _ = store()
    box.put("main", 0, {1: "x"})
    claim = box.claim("main", 1, 0, 1)
    assert pickle.loads(pickle.dumps(claim)) == claim
