import pickle

import pytest

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
    for key in "abc":
        assert box.put("main", key, 0, key.upper())
    assert not box.put("main", "a", 0, "again")
    claim = box.claim("main", 2, oldest=0, lease=10)
    assert claim.records == ("A", "B")
    assert box.claim("main", 2, oldest=0, lease=10) is None
    box.acknowledge("main", claim.id)
    assert box.waiting("main") == 1
    assert not box.put("main", "a", 0, "again"), "learned once is learned for good"


def test_an_expired_lease_can_be_claimed_again_and_the_late_learner_is_told():
    box, clock = store()
    box.put("main", 1, 0, "x")
    first = box.claim("main", 1, 0, lease=10)
    clock.now = 10.0
    second = box.claim("main", 1, 0, lease=10)
    assert second.records == ("x",)
    with pytest.raises(EpisodeError, match="expired"):
        box.acknowledge("main", first.id)
    box.acknowledge("main", second.id)


def test_topics_are_apart():
    box, _ = store()
    box.put("planner", 1, 0, "p")
    assert box.claim("executor", 1, 0, 1) is None


def test_stale_records_are_dropped_and_counted():
    box, _ = store()
    box.put("main", 1, 3, "old")
    box.put("main", 2, 4, "new")
    assert box.claim("main", 1, oldest=4, lease=1).records == ("new",)
    assert box.dropped("main") == 1


def test_a_full_topic_refuses():
    box, _ = store(capacity=1)
    box.put("main", 1, 0, "x")
    with pytest.raises(TrainingError, match="capacity"):
        box.put("main", 2, 0, "y")


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
    box.put("main", 1, 0, "x")
    claim = box.claim("main", 1, 0, 1)
    assert pickle.loads(pickle.dumps(claim)) == claim
