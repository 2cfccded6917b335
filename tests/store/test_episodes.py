"""Episodes as bytes, and what a policy's learner gets of them."""

import struct
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_llm.credit.columns import from_episodes, turns_of
from marl_llm.errors import EpisodeError
from marl_llm.store.codec import decode, encode
from marl_llm.store.episodes import AtHand, Written, episodes_of, record_of, thin, versions_of
from marl_llm.store.records import Key
from marl_llm.types import FORFEITS, Episode, Event, Finish, Observation, Outcome, Turn

TEXT = st.text(max_size=8)
FLOATS = st.floats()  # infinities and NaN too: an exact copy is one of whatever is there
IDS = st.lists(st.integers(0, 2**20), max_size=4).map(tuple)
AGENTS = st.sampled_from(["planner", "searcher_1", "searcher_2"])
EVENTS = st.lists(
    st.builds(Event, st.sampled_from(["joined", "left"]), AGENTS, st.integers(0, 9)), max_size=2
).map(tuple)


@st.composite
def turns(draw, number=0, floats=FLOATS):
    """A turn that one of the earlier `number` turns may have called."""
    caller = draw(st.none() | st.integers(0, number - 1)) if number else None
    agent = draw(AGENTS)
    ids = draw(IDS)
    policy = draw(st.sampled_from(["planner", "searcher", None]))
    cut = draw(st.integers(0, len(ids)))
    return Turn(
        observation=Observation(
            agent=agent,
            role=agent.partition("_")[0],
            text=draw(TEXT),
            brief=draw(TEXT),
            legal=draw(st.none() | st.lists(TEXT, max_size=2).map(tuple)),
            key=draw(TEXT),
            parent=caller,
            events=draw(EVENTS),
        ),
        policy=policy,
        player=draw(TEXT),
        prompt_ids=draw(IDS),
        ids=ids,
        logprobs=tuple(draw(floats) for _ in ids),
        versions=((4, 0, cut), (3, cut, len(ids))) if ids else (),
        reply=draw(TEXT),
        action=draw(st.none() | TEXT),
        fault=draw(st.none() | st.sampled_from(sorted(FORFEITS))),
        finish=draw(st.none() | st.sampled_from(Finish)),
        reward=draw(floats),
        shaping=draw(floats),
        parent=caller,
    )


@st.composite
def episodes(draw, floats=FLOATS):
    return Episode(
        id=draw(st.integers(0, 2**63 - 1)),
        attempt=draw(st.integers(0, 3)),
        game=draw(TEXT),
        group=draw(st.integers(0, 2**63 - 1)),
        seed=draw(st.integers(0, 2**63 - 1)),
        turns=tuple(draw(turns(n, floats)) for n in range(draw(st.integers(0, 5)))),
        seats=draw(st.dictionaries(AGENTS, TEXT)),
        returns=draw(st.dictionaries(AGENTS, floats)),
        outcomes=draw(st.dictionaries(AGENTS, st.sampled_from(Outcome))),
        terminated=draw(st.booleans()),
        events=draw(EVENTS),
        seconds=draw(floats),
        void=draw(st.none() | TEXT),
    )


def spelled(value):
    """A value with its types, and its floats as bits, so that NaN is NaN and -0.0 is not 0.0."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, tuple):
        return tuple(map(spelled, value))
    if isinstance(value, dict):
        return {key: spelled(each) for key, each in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return type(value), *(spelled(getattr(value, f.name)) for f in fields(value))
    return type(value), value


@given(episodes())
def test_an_episode_comes_back_exactly(episode):
    assert spelled(decode(encode(episode))) == spelled(episode)


def test_the_scalars_of_games_come_back_as_plain_ones():
    turn = Turn(
        Observation("a", "a", "", "", None, ""), "main", "self", (np.int64(3),), (1,), (-0.5,),
        ((np.int32(2), 0, 1),), "", None, None, None, np.float64(0.1), np.float32(0.5),
    )  # fmt: skip
    episode = Episode(1, 0, "g", 0, 0, (turn,), {}, {"a": np.float64(0.1)}, {}, True)
    (back,) = decode(encode(episode)).turns
    assert (back.prompt_ids, back.versions, back.reward, back.shaping) == (
        (3,),
        ((2, 0, 1),),
        0.1,
        0.5,
    )
    assert type(back.reward) is float
    with pytest.raises(EpisodeError, match="complex"):
        encode(replace(episode, returns={"a": 1j}))


@pytest.mark.parametrize("body", [b"", b"\x80", b"\xc1", b"nonsense"])
def test_other_bytes_are_no_episode(body):
    with pytest.raises(EpisodeError, match="no episode"):
        decode(body)


def test_half_an_episode_is_none():
    whole = encode(Episode(1, 0, "kuhn", 0, 0, (), {}, {}, {}, True))
    with pytest.raises(EpisodeError, match="no episode"):
        decode(whole[:-1])


# What a learner gets.

FINITE = st.floats(-100, 100)


@settings(max_examples=50)
@given(st.lists(episodes(FINITE), max_size=3, unique_by=lambda e: e.id))
def test_credit_and_loss_see_the_same_in_a_thin_episode(whole):
    for policy in ("planner", "searcher"):
        thinned = [thin(episode, policy) for episode in whole]
        assert turns_of(thinned, policy) == turns_of(whole, policy)
        one, other = from_episodes(thinned, policy), from_episodes(whole, policy)
        for column in fields(one):
            if column.compare and column.name not in ("names", "signals"):
                found, expected = getattr(one, column.name), getattr(other, column.name)
                assert np.array_equal(found, expected), column.name
        assert one.names == other.names
        assert one.signals.keys() == other.signals.keys()
        for name, signal in one.signals.items():
            assert np.array_equal(signal, other.signals[name])


@given(episodes())
def test_no_text_and_no_token_of_another_policy_is_in_a_thin_episode(episode):
    thinned = thin(episode, "planner")
    assert len(thinned.turns) == len(episode.turns)
    digests = {}
    for turn, was in zip(thinned.turns, episode.turns, strict=True):
        if was.policy == "planner":
            assert turn is was
            continue
        assert turn.prompt_ids == turn.ids == turn.logprobs == ()
        seen = turn.observation
        assert turn.reply == seen.text == seen.brief == ""
        assert turn.action is turn.finish is seen.legal is None
        for name in ("policy", "player", "fault", "parent", "versions"):
            assert getattr(turn, name) == getattr(was, name)
        assert spelled((turn.reward, turn.shaping)) == spelled((was.reward, was.shaping))
        for name in ("agent", "role", "parent", "events"):
            assert getattr(seen, name) == getattr(was.observation, name)
        digests[was.observation.key] = seen.key
    assert len(set(digests.values())) == len(digests)
    assert all(len(digest) == 16 for digest in digests.values())
    assert spelled(replace(thinned, turns=())) == spelled(replace(episode, turns=()))


def turn(policy, *versions):
    observation = Observation("a", "a", "seen", "", None, "")
    return Turn(
        observation, policy, "self", (1,), (2,) * len(versions), (-0.5,) * len(versions),
        tuple((version, n, n + 1) for n, version in enumerate(versions)), "said", "act", None,
        Finish.STOP, 0.0, 0.0,
    )  # fmt: skip


EPISODE = Episode(
    5, 1, "g", 2, 0, (turn("planner", 7, 8), turn("searcher", 4), turn("searcher", 3)), {}, {}, {},
    True,
)  # fmt: skip


@pytest.mark.parametrize("carrier", [Written(), AtHand()])
def test_a_record_is_as_old_as_the_policys_oldest_token_and_knows_its_partners(carrier):
    assert versions_of(EPISODE) == {"planner": 7, "searcher": 3}
    record = record_of(EPISODE, "searcher", size=4, version=9, whole=False, carrier=carrier)
    assert (record.key, record.group, record.size) == (Key(5, 1), 2, 4)
    assert (record.version, record.partners) == (3, {"planner": 7})
    assert episodes_of([record], "searcher", carrier) == [thin(EPISODE, "searcher")]
    bystander = record_of(EPISODE, "judge", size=4, version=9, whole=True, carrier=carrier)
    assert (bystander.version, bystander.partners) == (9, {"planner": 7, "searcher": 3})
    assert episodes_of([bystander], "judge", carrier) == [EPISODE]


def test_a_void_episode_is_a_record_without_play():
    spoilt = replace(EPISODE, void="the engine was killed")
    record = record_of(spoilt, "searcher", 4, 9, True, Written())
    assert (record.body, record.void, record.version) == (b"", "the engine was killed", 3)
