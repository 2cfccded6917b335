"""What every store keeps to: in memory, in a file, and in an actor."""

import os
import pickle
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from marl_llm.errors import CheckpointError, ConfigError, EpisodeError, FullError
from marl_llm.store import Counts, Key, Missing, Record, SqliteStore
from marl_llm.types import Weights

BACKENDS = ["memory", "file", pytest.param("actor", marks=pytest.mark.ray)]


class Clock:
    """A clock that another process reads too: the age of a file."""

    def __init__(self, path: Path):
        self._path = path
        path.touch()
        self.set(0)

    def set(self, seconds):
        os.utime(self._path, (seconds, seconds))

    @property
    def read(self):
        return partial(os.path.getmtime, str(self._path))


@pytest.fixture(scope="module")
def cluster():
    import ray

    from marl_llm.cluster.runtime import start_cluster

    start_cluster(processes=40)
    yield
    ray.shutdown()


@pytest.fixture
def clock(tmp_path):
    return Clock(tmp_path / "clock")


@pytest.fixture(params=BACKENDS)
def make(request, tmp_path, clock):
    """Makes a store of this kind, with other limits if asked for."""
    if request.param == "actor":
        request.getfixturevalue("cluster")
        from marl_llm.cluster.clients import RemoteStore
        from marl_llm.cluster.runtime import start_store

        return lambda **limits: RemoteStore(
            start_store(tmp_path / "store.sqlite", clock.read, **limits)
        )
    path = ":memory:" if request.param == "memory" else tmp_path / "store.sqlite"
    return lambda **limits: SqliteStore(path, clock.read, **limits)


@pytest.fixture
def box(make):
    return make()


def record(episode, attempt=0, *, group=None, size=1, version=0, path="", void=None, **more):
    body = b"" if void else f"{episode}.{attempt}{path}".encode()
    group = episode if group is None else group
    return Record(Key(episode, attempt, path), group, size, version, body, void=void, **more)


def pair(group, attempts=(0, 0), void=(None, None), version=0):
    """A group of two episodes, 2 * group and the one after it."""
    return [
        record(2 * group + n, attempts[n], group=group, size=2, void=void[n], version=version)
        for n in range(2)
    ]


def bodies(claim):
    return [record.body.decode() for record in claim.records]


# Records, once and in order.


def test_records_come_in_the_order_they_were_put_and_once(box):
    first = record(6, version=3, partners={"other": 2})
    assert box.put("main", [first, record(5, version=3)]) == 2
    assert box.put("main", [record(6, version=3), record(7, version=3)]) == 1
    claim = box.claim("main", 2, oldest=0, lease=10)
    assert claim.records == (first, record(5, version=3))
    assert box.claim("main", 2, oldest=0, lease=10) is None
    assert box.counts("main") == Counts(put=4, waiting=1, leased=2, doubled=1)
    box.acknowledge("main", claim.id)
    assert box.put("main", [record(6)]) == 0, "learned once is learned for good"
    assert box.counts("main") == Counts(put=5, waiting=1, acknowledged=2, doubled=2)


def test_a_second_attempt_after_a_good_one_changes_nothing(box):
    box.put("main", [record(1, 0)])
    assert box.put("main", [record(1, 1)]) == 0
    assert box.put("main", [record(1, 1, void="late")]) == 0
    assert bodies(box.claim("main", 1, 0, 1)) == ["1.0"]
    assert box.counts("main") == Counts(put=3, leased=1, doubled=2)


def test_a_good_attempt_takes_the_place_of_a_void_one(box):
    assert box.put("main", [record(1, 0, void="killed")]) == 1
    assert box.claim("main", 1, 0, 1) is None, "a void record is no play"
    assert box.put("main", [record(1, 0, void="killed")]) == 0
    assert box.put("main", [record(1, 1)]) == 1
    assert box.put("main", [record(1, 0, void="killed")]) == 0
    assert bodies(box.claim("main", 1, 0, 1)) == ["1.1"]
    assert box.counts("main") == Counts(put=4, leased=1, void=1, doubled=2)


def test_the_parts_of_an_episode_are_of_one_attempt(box):
    box.put("main", [record(1, 0, path="0"), record(1, 0, path="1", void="killed")])
    assert box.put("main", [record(1, 0, path="2")]) == 1, "void with the rest of its attempt"
    assert box.counts("main") == Counts(put=3, void=3)
    box.put("main", [record(1, 1, path="1"), record(1, 1, path="0/1")])
    assert box.put("main", [record(1, 0, path="2")]) == 0
    claim = box.claim("main", 1, 0, 1)
    assert bodies(claim) == ["1.11", "1.10/1"]
    assert box.put("main", [record(1, 1, path="3")]) == 0, "too late: the group is claimed"
    assert box.counts("main") == Counts(put=7, leased=2, dropped=1, void=3, doubled=1)


def test_topics_are_apart(box):
    box.put("planner", [record(1)])
    assert box.claim("executor", 1, 0, 1) is None
    assert box.counts("executor") == Counts()
    assert box.put("executor", [record(1)]) == 1


def test_ids_of_groups_and_episodes_are_unique_or_nothing_is_kept(box):
    box.put("main", pair(0))
    for wrong in (
        record(0, group=3),  # the episode is of group 0
        record(9, group=0, size=4),  # the group has two episodes
        record(9, group=0, size=2),  # and they are there
    ):
        with pytest.raises(EpisodeError, match="must be unique"):
            box.put("main", [record(20), wrong])
    assert box.counts("main") == Counts(put=2, waiting=2)


@pytest.mark.parametrize(
    "make_it",
    [
        lambda: Key(0, -1),
        lambda: Key(0, 0, "0//1"),
        lambda: Key(0, 0, "first"),
        lambda: Record(Key(0), 0, 0, 0, b""),
        lambda: Record(Key(0), 0, 1, -1, b""),
        lambda: Record(Key(0), 0, 1, 0, b"play", void="killed"),
    ],
)
def test_what_is_no_record_is_refused_where_it_is_made(make_it):
    with pytest.raises(EpisodeError):
        make_it()


# Leases.


def test_an_expired_lease_can_be_claimed_again_and_the_late_learner_is_told(box, clock):
    box.put("main", [record(1), record(2)])
    first = box.claim("main", 2, 0, lease=10)
    assert first.expires == 10
    clock.set(9)
    assert box.claim("main", 1, 0, lease=10) is None
    clock.set(10)
    assert box.counts("main") == Counts(put=2, waiting=2)
    second = box.claim("main", 1, 0, lease=10)
    assert bodies(second) == ["1.0"]
    assert second.id != first.id
    with pytest.raises(EpisodeError, match="expired"):  # half of it is another's
        box.acknowledge("main", first.id)
    box.acknowledge("main", second.id)
    assert bodies(box.claim("main", 1, 0, lease=10)) == ["2.0"]


def test_a_late_acknowledgement_counts_if_nobody_took_the_records(box, clock):
    box.put("main", [record(1)])
    claim = box.claim("main", 1, 0, lease=10)
    clock.set(99)
    box.acknowledge("main", claim.id)
    assert box.counts("main") == Counts(put=1, acknowledged=1)
    with pytest.raises(EpisodeError, match="unknown"):
        box.acknowledge("main", claim.id)
    with pytest.raises(EpisodeError, match="unknown"):
        box.acknowledge("other", claim.id)


def test_ids_of_claims_are_never_used_again(box):
    ids = set()
    for episode in range(5):
        box.put(f"topic {episode % 2}", [record(episode)])
        claim = box.claim(f"topic {episode % 2}", 1, 0, 1)
        box.acknowledge(f"topic {episode % 2}", claim.id)
        ids.add(claim.id)
    assert len(ids) == 5


def test_a_lease_may_have_no_end(box, clock):
    box.put("main", [record(1)])
    claim = box.claim("main", 1, 0, lease=float("inf"))
    clock.set(1e9)
    assert claim.expires == float("inf")
    assert box.claim("main", 1, 0, 1) is None


# Age.


def test_stale_records_are_dropped_and_counted_whenever_they_come(box):
    box.put("main", [record(1, version=3), record(2, version=4)])
    assert bodies(box.claim("main", 1, oldest=4, lease=1)) == ["2.0"]
    assert box.counts("main") == Counts(put=2, leased=1, dropped=1)
    assert box.put("main", [record(3, version=3), record(1, version=3)]) == 0
    assert box.counts("main") == Counts(put=4, leased=1, dropped=3)


def test_a_group_is_dropped_with_its_oldest_member(box):
    box.put("main", [record(0, group=0, size=2, version=3), record(1, group=0, size=2, version=4)])
    box.put("main", pair(1, version=4))
    assert bodies(box.claim("main", 1, oldest=4, lease=1)) == ["2.0", "3.0"]
    assert box.put("main", [record(1, group=0, size=2, version=4)]) == 0
    assert box.counts("main") == Counts(put=5, leased=2, dropped=2, doubled=1)


def test_what_is_leased_is_left_alone_however_old_it_gets(box, clock):
    box.put("main", [record(1, version=1), record(2, version=1)])
    first = box.claim("main", 1, 1, lease=10)
    second = box.claim("main", 1, 1, lease=5)
    clock.set(5)
    assert box.claim("main", 1, oldest=2, lease=1) is None
    assert box.counts("main") == Counts(put=2, leased=1, dropped=1)
    box.acknowledge("main", first.id)
    with pytest.raises(EpisodeError, match="expired"):
        box.acknowledge("main", second.id)
    assert box.counts("main") == Counts(put=2, acknowledged=1, dropped=1)


def test_no_older_version_is_taken_once_a_newer_one_was_asked_for(box):
    assert box.claim("main", 1, oldest=5, lease=1) is None
    assert box.put("main", [record(1, version=4)]) == 0
    assert box.claim("main", 1, oldest=0, lease=1) is None
    assert box.put("main", [record(2, version=4)]) == 0
    assert box.counts("main") == Counts(put=2, dropped=2)


# Groups.


def test_groups_are_claimed_whole_and_the_lowest_numbers_first(box):
    early, late = pair(0), pair(1)
    box.put("main", late)
    box.put("main", early[1:])
    assert bodies(box.claim("main", 1, 0, 1)) == ["2.0", "3.0"]
    box.put("main", pair(2))
    box.put("main", early[:1])
    assert box.claim("main", 3, 0, 1) is None
    assert bodies(box.claim("main", 1, 0, 1)) == ["1.0", "0.0"]


def test_wait_lets_no_void_episode_pass(box):
    box.put("main", pair(0, void=(None, "killed")))
    assert box.claim("main", 1, 0, 1, "wait") is None
    box.put("main", [record(1, 1, group=0, size=2)])
    assert bodies(box.claim("main", 1, 0, 1, "wait")) == ["0.0", "1.1"]


def trio(void):
    return [record(n, group=0, size=3, void=void.get(n)) for n in range(3)]


def test_partial_passes_with_two_good_ones(box):
    box.put("main", trio({1: "killed"})[:2])
    assert box.claim("main", 1, 0, 1, "partial") is None, "one has not come"
    box.put("main", trio({})[2:])
    claim = box.claim("main", 1, 0, 1, "partial")
    assert bodies(claim) == ["0.0", "2.0"]
    assert claim.lost == (Missing(0, 1, 1, "killed"),)
    assert box.put("main", [record(1, 1, group=0, size=3)]) == 0, "too late"
    box.acknowledge("main", claim.id)
    assert box.counts("main") == Counts(put=4, acknowledged=2, dropped=1, given_up=1)


def test_partial_gives_a_group_up_that_has_only_one_left(box):
    box.put("main", trio({0: "killed", 1: "killed"}))
    assert box.claim("main", 1, 0, 1, "partial") is None
    assert box.counts("main") == Counts(put=3, given_up=3)
    assert box.put("main", [record(1, 1, group=0, size=3)]) == 0
    assert box.room("main") == 1_000_000


def test_refill_asks_for_further_attempts_as_long_as_the_budget_lasts(make):
    box = make(retries=2)
    box.put("main", trio({1: "killed", 2: "timed out"}))
    assert box.missing("main") == (Missing(0, 1, 1, "killed"), Missing(0, 2, 1, "timed out"))
    assert box.claim("main", 1, 0, 1, "refill") is None
    box.put("main", [record(1, 1, group=0, size=3), record(2, 1, group=0, size=3, void="again")])
    assert box.put("main", [record(2, 0, group=0, size=3, void="timed out")]) == 0, "a late one"
    assert box.missing("main") == (Missing(0, 2, 2, "again"),)
    assert box.claim("main", 1, 0, 1, "refill") is None
    box.put("main", [record(2, 2, group=0, size=3, void="for good")])
    assert box.missing("main") == ()
    claim = box.claim("main", 1, 0, 1, "refill")
    assert bodies(claim) == ["0.0", "1.1"]
    assert claim.lost == (Missing(0, 2, 3, "for good"),)
    assert box.counts("main") == Counts(put=7, leased=2, void=4, doubled=1)
    box.acknowledge("main", claim.id)
    assert box.counts("main") == Counts(put=7, acknowledged=2, void=3, given_up=1, doubled=1)


def test_a_group_of_one_whose_attempts_have_all_failed_is_given_up(make):
    box = make(retries=0)
    box.put("main", [record(1, void="killed"), record(2)])
    assert bodies(box.claim("main", 1, 0, 1, "refill")) == ["2.0"]
    assert box.counts("main") == Counts(put=2, leased=1, given_up=1)


def test_an_unknown_rule_is_named(box):
    with pytest.raises(ConfigError, match="did you mean 'partial'"):
        box.claim("main", 1, 0, 1, "partly")
    with pytest.raises(EpisodeError, match="at least one group"):
        box.claim("main", 0, 0, 1)


# Room.


def test_a_full_topic_refuses_and_keeps_nothing_of_the_rest(make):
    box = make(capacity=2)
    box.put("main", [record(1)])
    with pytest.raises(FullError, match="only 2 may wait"):
        box.put("main", [record(2), record(3)])
    assert box.counts("main") == Counts(put=1, waiting=1)
    assert box.room("main") == 1
    assert box.put("main", [record(2)]) == 1
    assert box.room("main") == 0
    assert box.put("main", [record(2)]) == 0, "what changes nothing needs no room"
    assert box.room("other") == 2
    claim = box.claim("main", 2, 0, 1)
    assert box.room("main") == 0, "what is leased may come back"
    box.acknowledge("main", claim.id)
    assert box.room("main") == 2


def test_what_has_begun_can_always_be_completed(make):
    box = make(capacity=5)
    first, second = pair(0), pair(1)
    box.put("main", [first[0], second[0]])
    assert box.room("main") == 1
    with pytest.raises(FullError):
        box.put("main", pair(2)[:1])
    box.put("main", [first[1]])
    box.put("main", [second[1]])
    assert len(box.claim("main", 2, 0, 1).records) == 4


# Several topics at once.


def test_settling_is_all_or_nothing(make, clock):
    box = make(capacity=2)
    box.put("plans", [record(1), record(2)])
    claim = box.claim("plans", 1, 0, lease=10)
    with pytest.raises(FullError):
        box.settle("plans", claim.id, {"planner": [record(1)], "executor": pair(1) + pair(2)})
    assert box.counts("plans") == Counts(put=2, waiting=1, leased=1)
    assert box.counts("planner") == Counts()
    assert box.settle("plans", claim.id, {"planner": [record(1)], "executor": pair(1)}) == 3
    assert box.counts("plans") == Counts(put=2, waiting=1, acknowledged=1)
    assert box.counts("executor") == Counts(put=2, waiting=2)

    late = box.claim("plans", 1, 0, lease=10)
    clock.set(10)
    quick = box.claim("plans", 1, 0, lease=10)
    with pytest.raises(EpisodeError, match="expired"):
        box.settle("plans", late.id, {"planner": [record(2)]})
    assert box.counts("planner") == Counts(put=1, waiting=1)
    assert box.settle("plans", quick.id, {"planner": [record(2)]}) == 1


# Weights.


def test_weights_only_go_forward(box, tmp_path):
    file = tmp_path / "weights"
    file.touch()
    assert box.latest("main") is None
    box.publish(Weights("main", 1, "c", path=str(file)))
    box.publish(Weights("main", 2, "d", path=str(file)))
    assert box.latest("main") == Weights("main", 2, "d", path=str(file))
    with pytest.raises(EpisodeError, match="cannot go back"):
        box.publish(Weights("main", 1, "c", path=str(file)))
    file.unlink()
    assert box.latest("main") is None


def test_weights_in_memory_are_had_as_they_were_published(box):
    box.publish(Weights("main", 0, "c", tensors={"w": (1.0, 2.0)}))
    assert box.latest("main").tensors == {"w": (1.0, 2.0)}
    box.publish(Weights("main", 0, "c", tensors={"w": (3.0,)}))
    assert box.latest("main").tensors == {"w": (3.0,)}, "the same version may be published again"


def test_consumers_are_known_with_how_far_they_are_behind(box):
    box.publish(Weights("main", 3, "c", tensors={}))
    box.served("engine 1", "main", 1)
    box.served("engine 0", "main", 3)
    box.served("engine 1", "other", 0)
    found = [(c.name, c.policy, c.version, c.staleness) for c in box.consumers()]
    expected = [("engine 0", "main", 3, 0), ("engine 1", "main", 1, 2), ("engine 1", "other", 0, 0)]
    assert found == expected
    box.served("engine 1", "main", 3)
    assert [c.staleness for c in box.consumers()] == [0, 0, 0]


# Checkpoints.


def test_what_came_after_a_checkpoint_is_forgotten_and_may_come_again(box, tmp_path):
    box.put("main", [record(1, version=1), record(2, version=1), record(3, version=2)])
    box.acknowledge("main", box.claim("main", 1, 1, 10).id)
    box.claim("main", 1, 1, lease=float("inf"))
    box.publish(Weights("main", 2, "c", tensors={}))
    box.served("engine", "main", 1)
    box.save(tmp_path / "kept")
    before = (tmp_path / "kept").read_bytes()

    box.put("main", [record(4, version=3)])
    claim = box.claim("main", 1, 3, 10)
    box.acknowledge("main", claim.id)
    box.restore(tmp_path / "kept")
    assert box.counts("main") == Counts(put=3, waiting=2, acknowledged=1), "nobody has a lease"
    assert box.latest("main") is None
    assert box.consumers() == []
    box.publish(Weights("main", 0, "c", tensors={}))
    assert box.put("main", [record(1, version=1), record(4, version=3)]) == 1
    assert bodies(box.claim("main", 3, 1, 10)) == ["2.0", "3.0", "4.0"]
    assert (tmp_path / "kept").read_bytes() == before
    assert not list(tmp_path.glob("kept-*")), "reading a checkpoint leaves nothing beside it"


def test_a_file_that_is_no_store_is_refused(box, tmp_path):
    (tmp_path / "words").write_text("something else than a store " * 100)
    for name in ("words", "nothing"):
        with pytest.raises(CheckpointError, match=name):
            box.restore(tmp_path / name)
    assert box.put("main", [record(1)]) == 1


def test_claims_pickle():
    with closing(SqliteStore(":memory:", lambda: 0.0)) as box:
        box.put("main", [record(1)])
        claim = box.claim("main", 1, 0, 1)
        assert pickle.loads(pickle.dumps(claim)) == claim
