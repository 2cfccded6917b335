import pytest

from marl_llm.errors import ConfigError
from marl_llm.rollout.room import check_room
from marl_llm.types import Episode, Finish, Observation, Outcome, Turn

SEEN = Observation("player_0", "player", "text", "brief", None, "key")


def turn(policy, finish, ids=()):
    logprobs = (-1.0,) * len(ids)
    return Turn(SEEN, policy, "self", (1,) * 9, ids, logprobs, (), "", None, Outcome.CONTEXT,
                finish, 0.0, 0.0)  # fmt: skip


def episode(*turns):
    return Episode(0, 0, "kuhn", 0, 0, turns, {}, {}, {}, terminated=True)


def test_a_policy_that_never_had_room_is_refused_with_the_numbers():
    full = episode(turn("main", Finish.CONTEXT), turn("main", Finish.CONTEXT))
    with pytest.raises(ConfigError, match="shortest of 2 has 9 tokens, the context 8;"):
        check_room([full], {"main": 8})


@pytest.mark.parametrize(
    "other",
    [turn("main", Finish.STOP, (3,)), turn("main", Finish.CONTEXT, (3,))],
    ids=["a reply", "a reply cut short by the context"],
)
def test_one_reply_is_enough(other):
    check_room([episode(turn("main", Finish.CONTEXT), other)], {"main": 8})


def test_other_policies_and_scripted_players_do_not_count():
    scripted = turn(None, None)
    with pytest.raises(ConfigError, match="'main'"):
        check_room(
            [episode(turn("main", Finish.CONTEXT), turn("other", Finish.STOP, (3,)), scripted)],
            {"main": 8, "other": 8},
        )


def test_a_policy_that_was_not_asked_is_left_alone():
    check_room([episode(turn("main", Finish.STOP, (3,)))], {"main": 8, "idle": 8})
