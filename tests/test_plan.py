import pytest

from marl_llm.config import compose
from marl_llm.footprint import in_words, size_of
from marl_llm.plan import lines, print_plan
from marl_llm.serve.sources import PretrainedModel, TinyModel
from marl_llm.serve.tiny import build_model, build_tokenizer
from marl_llm.settings import RunSettings


def found(*words):
    """The plan's lines by what they are about, the worst of each: (status, text)."""
    run = RunSettings.of(compose(["run.dir=/nowhere/at/all", *words]))
    worst_last = sorted(lines(run), key=lambda line: ("ok", "WARN", "FAIL").index(line.status))
    return {line.what: (line.status, line.text) for line in worst_last}


def failing(what, *words):
    status, text = found(*words)[what]
    assert status == "FAIL", text
    return text


def test_the_default_plan_is_all_ok():
    statuses = {status for status, _ in found().values()}
    assert statuses == {"ok"}


def test_episodes_must_fill_groups():
    text = failing("rollout", "rollout.episodes=10", "rollout.group_size=4")
    assert "multiple of rollout.group_size" in text


def test_groups_of_one_say_nothing_to_a_group_rule():
    text = failing("credit of main", "credit=grpo")
    assert "every advantage would be 0" in text
    assert "rollout.group_size=8" in text


VALUES = "+annotator@policies.main.annotators.state_values=state_values"


def test_a_signal_that_nobody_attaches_names_who_would():
    text = failing("credit of main", "credit=gae")
    assert "'value'" in text
    assert f"add {VALUES}" in text
    assert found("credit=gae", VALUES)["credit of main"][0] == "ok"
    text = failing("credit of main", "credit=capo")
    assert "no annotator here attaches it" in text


def test_signals_are_listed_with_the_judge_that_is_asked():
    lines = found("credit=gae", VALUES, "+annotator@policies.main.annotators.good=judge_good")
    assert lines["signals of main: state_values"] == ("ok", "value, value_next, token_value")
    status, text = lines["signals of main: good"]
    assert status == "WARN", "GAE reads no labels"
    assert "asking the policy itself" in text
    lines = found(
        "+annotator@policies.main.annotators.good=judge_good",
        "policies.main.judge.model=some/judge",
    )
    assert "asking some/judge" in lines["signals of main: good"][1]


def test_an_annotator_that_needs_the_reference_says_what_keeps_it():
    off = [f"policies.main.learner.kl.{key}" for key in ("coefficient=0", "final=null", "over=0")]
    words = ("credit=frpo", "rollout.group_size=8", *off,
             "+annotator@policies.main.annotators.r=reference_logprobs")  # fmt: skip
    text = failing("credit of main", *words)
    assert "set policies.main.learner.kl.keep=true" in text
    assert found(*words, "learner.kl.keep=true")["credit of main"][0] == "ok"


def test_a_rule_that_plays_on_says_what_that_costs():
    status, text = found("credit=vine_ppo")["replays"]
    assert status == "ok"
    assert "K·T continuations" in text
    assert "replays" not in found()


def test_a_policy_that_nobody_seats():
    text = failing(
        "policy main",
        "+player@opponents.random=random",
        "rollout.lineups=[[random]]",
    )
    assert "no line-up seats it" in text


def test_a_model_made_of_texts_needs_some():
    text = failing("policy main", "~policies.main.coldstart")
    assert "needs a cold start" in text


def test_a_prompt_longer_than_the_context():
    text = failing("context of main", "model.context=16")
    assert "no reply fits in" in text


def test_a_teacher_that_does_not_know_the_game():
    text = failing("cold start of main", "player@policies.main.coldstart.player=minimax")
    assert "minimax does not play kuhn" in text


def test_an_opponent_that_does_not_know_the_game():
    text = failing("opponent best", "+player@evaluation.panel.best=minimax")
    assert "needs perfect information" in text


def test_no_nash_conv_of_large_games():
    text = failing(
        "NashConv", "+game@held_out.tictactoe=tictactoe", "evaluation.nash_conv=[tictactoe]"
    )
    assert "tictactoe has none" in text


def test_low_precision_and_a_strict_ratio():
    text = failing("precision of main", "engine.dtype=bfloat16")
    assert "learner.ratio_tolerance=null" in text


def test_a_folder_that_holds_a_run(tmp_path):
    (tmp_path / "config.yaml").write_text("x: 1\n")
    run = RunSettings.of(compose([f"run.dir={tmp_path}"]))
    assert next(iter(lines(run))).status == "FAIL"


def test_the_exit_code_tells(capsys):
    good = RunSettings.of(compose(["run.dir=/nowhere/at/all"]))
    assert print_plan(good) == 0
    bad = RunSettings.of(compose(["run.dir=/nowhere/at/all", "model.context=16"]))
    assert print_plan(bad) == 1
    assert "FAIL" in capsys.readouterr().out


def test_a_tiny_models_size_is_that_of_the_model():
    tokenizer = build_tokenizer(["a game of words, words and words"] * 3, 512)
    source = TinyModel(layers=2, width=32, heads=2, kv_heads=1, vocabulary=len(tokenizer))
    model = build_model(tokenizer, layers=2, width=32, heads=2, kv_heads=1, mlp=192, context=256,
                        seed=0)  # fmt: skip
    size = size_of(source)
    assert size.parameters == sum(p.numel() for p in model.parameters())
    assert size.cache_values == 2 * 2 * 1 * 16  # keys and values, layers, key heads, head size
    assert size.context == 256


def test_a_model_that_is_not_here_counts_as_declared(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert size_of(PretrainedModel(name="nobody/nothing-at-all")) is None
    size = size_of(PretrainedModel(name="nobody/nothing-at-all", parameters=1e9, context=4096))
    assert (size.parameters, size.cache_values, size.context) == (10**9, None, 4096)


@pytest.mark.parametrize(
    ("count", "words"), [(12, "12 B"), (1500, "1.5 kB"), (80_400_000_000, "80.4 GB")]
)
def test_bytes_in_words(count, words):
    assert in_words(count) == words


def test_a_cold_start_that_states_sub_goals_needs_a_player_who_has_some():
    words = ("experiment=hiper_household", "player@policies.main.coldstart.player=random")
    assert "pursues no sub-goals" in failing("cold start of main", *words)
    assert found("experiment=hiper_household")["cold start of main"][0] == "ok"
