"""Random sequences of calls against a plain-Python model: nothing lost, nothing unaccounted."""

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from marl_llm.errors import EpisodeError, FullError
from marl_llm.store import Counts, Key, Missing, Record, SqliteStore

CAPACITY, RETRIES, SIZE = 7, 1, 3  # two groups of three, and a place that is of no use
TOPIC = "main"


@dataclass
class Member:
    """An episode of a group: one attempt at it, good or void as a whole."""

    attempt: int
    void: str | None = None
    parts: dict[str, tuple[int, Record]] = field(default_factory=dict)  # path -> place, record


@dataclass
class Group:
    members: dict[int, Member] = field(default_factory=dict)
    claim: int | None = None
    expires: float = 0.0
    closed: bool = False

    def of(self, void):
        return {e: m for e, m in self.members.items() if (m.void is not None) == void}

    def count(self, void):
        return sum(len(member.parts) for member in self.of(void).values())

    def records(self):
        return sorted(part for member in self.of(False).values() for part in member.parts.values())


class Model:
    """A topic as the documentation describes it."""

    def __init__(self):
        self.groups: dict[int, Group] = {}
        self.oldest = self.claims = 0
        self.places = count()
        self.done = Counter()

    def put(self, records):
        """How many were new; whether there is too little room for the groups that are."""
        new, before = 0, set(self.groups)
        for record in records:
            self.done["put"] += 1
            fate = self.fate(record)
            if fate == "new":
                new += 1
                self.keep(record)
            else:
                self.done[fate] += 1
        return new, bool(self.groups.keys() - before) and self.taken() > CAPACITY

    def fate(self, record):
        key, group = record.key, self.groups.get(record.group)
        member = group and group.members.get(key.episode)
        if member and member.attempt == key.attempt and key.path in member.parts:
            return "doubled"
        another = member and member.attempt != key.attempt
        if another and (member.void is None or (record.void and key.attempt < member.attempt)):
            return "doubled"
        shut = group and (group.closed or group.claim is not None)
        return "dropped" if shut or record.version < self.oldest else "new"

    def keep(self, record):
        members = self.groups.setdefault(record.group, Group()).members
        member = members.get(record.key.episode)
        if member is None or member.attempt != record.key.attempt:
            member = members[record.key.episode] = Member(record.key.attempt)
        if record.void and member.void is None:
            self.done["void"] += len(member.parts)
        member.void = record.void or member.void
        self.done["void"] += member.void is not None
        member.parts[record.key.path] = next(self.places), record

    def taken(self):
        return sum(
            max(SIZE, group.count(True) + group.count(False))
            for group in self.groups.values()
            if not group.closed
        )

    def claim(self, groups, oldest, now, lease, rule):
        """Id, records and lost members of a claim, or None."""
        self.oldest = max(self.oldest, oldest)
        for group in self.free(now):
            if any(record.version < self.oldest for _, record in group.records()):
                self.close(group, "dropped")
        self.forget()
        ready = []
        for group in self.free(now):
            void = group.of(True).values()
            excused = {
                "wait": 0,
                "refill": sum(member.attempt >= RETRIES for member in void),
                "partial": len(void),
            }
            good = len(group.of(False))
            if good + excused[rule] == SIZE:
                if good >= 2:
                    ready.append(group)
                else:
                    self.close(group, "given_up")
        if len(ready) < groups:
            return None
        self.claims += 1
        for group in ready[:groups]:
            self.take_back(group)
        for group in ready[:groups]:
            group.claim, group.expires = self.claims, now + lease
        parts = sorted(part for group in ready[:groups] for part in group.records())
        return self.claims, tuple(record for _, record in parts)

    def lost(self, claim):
        return sum(len(group.of(True)) for group in self.groups.values() if group.claim == claim)

    def free(self, now):
        return [
            group
            for _, group in sorted(self.groups.items())
            if not group.closed and (group.claim is None or group.expires <= now)
        ]

    def forget(self):
        for number, group in list(self.groups.items()):
            if group.closed:
                for episode, member in list(group.members.items()):
                    member.parts = {
                        path: (place, record)
                        for path, (place, record) in member.parts.items()
                        if record.version >= self.oldest
                    }
                    if not member.parts:
                        del group.members[episode]
                if not group.members:
                    del self.groups[number]

    def take_back(self, group):
        claim = group.claim
        for other in self.groups.values():
            if claim is not None and other.claim == claim:
                other.claim = None

    def close(self, group, end):
        self.take_back(group)
        group.closed = True
        self.done[end] += group.count(False)
        if end != "dropped":
            self.done["void"] -= group.count(True)
            self.done["given_up"] += group.count(True)

    def acknowledge(self, claim):
        """False if nobody has that claim."""
        held = [group for group in self.groups.values() if group.claim == claim]
        for group in held:
            group.claim = None
            self.close(group, "acknowledged")
        return bool(held)

    def missing(self):
        return {
            (number, episode, member.attempt + 1)
            for number, group in self.groups.items()
            if not group.closed and group.claim is None
            for episode, member in group.of(True).items()
            if member.attempt < RETRIES
        }

    def counts(self, now):
        waiting = leased = 0
        for group in self.groups.values():
            if not group.closed:
                if group.claim is not None and group.expires > now:
                    leased += group.count(False)
                else:
                    waiting += group.count(False)
        return Counts(waiting=waiting, leased=leased, **self.done)

    def remembered(self):
        return sum(group.count(True) + group.count(False) for group in self.groups.values())


@st.composite
def records(draw, episode, attempt=None, void="killed", path=None):
    attempt = draw(st.integers(0, RETRIES)) if attempt is None else attempt
    void = draw(st.sampled_from([None, None, void]))
    path = draw(st.sampled_from(["", "0", "0/1"])) if path is None else path
    body = b"" if void else f"{episode}.{attempt}.{path}".encode()
    key, version = Key(episode, attempt, path), draw(st.sampled_from([0, 1, 1, 2, 2, 2]))
    return Record(key, episode // SIZE, SIZE, version, body, void=void)


@st.composite
def whole_groups(draw, void="killed"):
    first = SIZE * draw(st.integers(0, 4))
    return [draw(records(first + n, 0, void, "")) for n in range(SIZE)]


ANY = st.integers(0, 5 * SIZE - 1).flatmap(records)
PUTS = st.one_of(whole_groups(), whole_groups(void=None), st.lists(ANY, max_size=5))
CLAIMS = st.tuples(
    st.just("claim"),
    st.sampled_from([1, 1, 2]),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.integers(1, 3),
    st.sampled_from(["wait", "refill", "partial", "partial"]),
)
AGO = st.integers(0, 2)  # claims since that one, 0 = the last
CALLS = st.one_of(
    st.tuples(st.just("put"), PUTS),
    st.tuples(st.just("put"), PUTS),
    CLAIMS,
    st.tuples(st.just("acknowledge"), AGO),
    st.tuples(st.just("settle"), AGO, PUTS),
    st.tuples(st.just("pass"), st.integers(1, 3)),
    st.just(("open again",)),
)


def agrees(box, model, now):
    counts = box.counts(TOPIC)
    assert counts == model.counts(now)
    assert counts.put == (
        counts.waiting
        + counts.leased
        + counts.acknowledged
        + counts.dropped
        + counts.void
        + counts.given_up
        + counts.doubled
    )
    assert {(m.group, m.episode, m.attempt) for m in box.missing(TOPIC)} == model.missing()
    assert all(isinstance(m, Missing) and m.reason == "killed" for m in box.missing(TOPIC))
    assert box.room(TOPIC) == max(CAPACITY - model.taken(), 0)
    assert box.remembered(TOPIC) == model.remembered()


@settings(max_examples=100)
@given(st.lists(CALLS, min_size=10, max_size=30))
def test_a_store_does_what_its_documentation_says_and_accounts_for_all(tmp_path_factory, calls):
    path = tmp_path_factory.mktemp("store") / "store.sqlite"
    now = [0.0]
    box, model = SqliteStore(path, lambda: now[0], CAPACITY, RETRIES), Model()
    for name, *words in calls:
        if name == "put":
            after = deepcopy(model)
            new, full = after.put(words[0])
            if full:
                with pytest.raises(FullError):
                    box.put(TOPIC, words[0])
            else:
                model = after
                assert box.put(TOPIC, words[0]) == new
        elif name == "claim":
            groups, oldest, lease, rule = words
            expected = model.claim(groups, oldest, now[0], lease, rule)
            claim = box.claim(TOPIC, groups, oldest, lease, rule)
            assert (claim and (claim.id, claim.records)) == expected
            assert claim is None or claim.expires == now[0] + lease
            assert claim is None or len(claim.lost) == model.lost(claim.id)
            event(f"claim: {claim and len(claim.lost) > 0}")
        elif name == "acknowledge":
            number = model.claims - words[0]
            if model.acknowledge(number):
                box.acknowledge(TOPIC, number)
            else:
                with pytest.raises(EpisodeError):
                    box.acknowledge(TOPIC, number)
        elif name == "settle":  # what comes of it goes into the same topic here
            after, number = deepcopy(model), model.claims - words[0]
            known = after.acknowledge(number)
            new, full = after.put(words[1])
            if known and not full:
                model = after
                assert box.settle(TOPIC, number, {TOPIC: words[1]}) == new
            else:
                with pytest.raises(FullError if known else EpisodeError):
                    box.settle(TOPIC, number, {TOPIC: words[1]})
        elif name == "pass":
            now[0] += words[0]
        else:
            box.close()
            box = SqliteStore(path, lambda: now[0], CAPACITY, RETRIES)
        agrees(box, model, now[0])
    for fate, number in model.done.items():
        event(f"{fate}: {number > 0}")
    box.close()


@given(st.integers(1, 30), st.integers(1, 5))
def test_the_store_does_not_grow_with_the_updates(updates, staleness):
    box = SqliteStore(":memory:", lambda: 0.0)
    for update in range(updates):
        put = [Record(Key(4 * update + n), update, 4, update, b"play") for n in range(4)]
        box.put(TOPIC, put)
        claim = box.claim(TOPIC, 1, oldest=max(0, update - staleness), lease=1)
        box.acknowledge(TOPIC, claim.id)
        assert box.put(TOPIC, put[:1]) == 0
    assert box.counts(TOPIC) == Counts(put=5 * updates, acknowledged=4 * updates, doubled=updates)
    assert box.remembered(TOPIC) <= 4 * (staleness + 1)
    box.close()
