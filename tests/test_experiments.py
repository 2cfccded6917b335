"""Every experiment composes and builds, its plan holds, and the small ones run."""

import pytest

from marl_llm.cli import main
from marl_llm.config import choices, compose, read
from marl_llm.credit.m_grpo import MGRPORandom
from marl_llm.footprint import footprint, size_of
from marl_llm.plan import lines
from marl_llm.report.metrics import read as read_metrics
from marl_llm.settings import RunSettings

EXPERIMENTS = choices("experiment")
LARGE = {"mars_qwen3_4b", "mgrpo_qwen3_30b", "hiper_qwen25_7b"}
SMALL = [
    "updates=2",
    "rollout.episodes=16",  # of any of their groups
    "evaluation.pairs=2",
    "evaluation.thoughts=1",
    "model.layers=1",
    "model.width=32",
]


def settings(name, *words):
    return RunSettings.of(compose([f"experiment={name}", *words]))


def test_all_experiments_are_there():
    assert set(EXPERIMENTS) >= {
        "kuhn_selfplay", "tictactoe_selfplay", "leduc_selfplay", "hanabi_selfplay",
        "connect_four_selfplay", "mars_generalist", "mars_qwen3_4b", "hiper_household",
        "planner_executor", "planner_executor_search", "planner_solo", "planner_solo_search",
        "mgrpo_search", "nested_delegation", "mgrpo_qwen3_30b", "hiper_qwen25_7b",
    }  # fmt: skip


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_has_a_plan_without_failures(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)  # whatever fits on one that is here
    run = settings(name, f"run.dir={tmp_path / 'run'}")
    assert run.experiment == name
    assert [line for line in lines(run) if line.status == "FAIL"] == []


@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - LARGE))
def test_a_credit_rule_can_be_changed_by_one_word(name):
    policies = settings(name, "credit=gae").policies.values()
    assert {type(policy.credit).__name__ for policy in policies} == {"GAE"}


@pytest.mark.parametrize("rule", choices("credit"))
def test_every_credit_rule_fits_the_default_experiment(rule):
    settings("kuhn_selfplay", f"credit={rule}")


def test_the_papers_scale_is_the_papers():
    run = settings("mars_qwen3_4b")
    policy = run.policies["main"]
    learner = policy.learner
    assert (run.updates, run.rollout.episodes, run.rollout.group_size) == (200, 384, 1)
    assert (learner.lr, learner.schedule, learner.warmup) == (1e-6, "cosine", 10)
    assert (learner.weight_decay, learner.betas) == (0.05, (0.9, 0.95))
    assert (learner.kl.coefficient, learner.kl.form) == (0.2, "k2")
    assert (learner.loss.low, learner.loss.high) == (0.2, 0.2)
    assert set(policy.credit.by) == {"role", "agent", "game"}
    shaping = run.rollout.shaping
    assert (shaping.valid, shaping.free, shaping.full, shaping.weight) == (0.05, 2048, 4096, 0.5)
    role = run.seats["self"].role
    assert (role.sampling.temperature, role.sampling.max_tokens) == (0.6, 4096)
    assert set(run.games) == {"tictactoe", "kuhn", "hanabi_mini"}
    assert set(run.held_out) == {"connect_four", "leduc", "hanabi_simple"}
    # a draw of tic-tac-toe pays 0.1 to both under this table
    assert run.makers()["tictactoe"]().table.draw == 0.1


def test_the_papers_scale_needs_this_much(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    policy = settings("mars_qwen3_4b").policies["main"]
    size = size_of(policy.model)
    takes = footprint(size, policy.learner, policy.engine, 1000)
    parameters = 4_022_468_096
    assert size.parameters == parameters
    # weights, gradients and reference at 4 bytes, two moments at 4, the engine's bfloat16 at 2
    assert takes.certain == parameters * (4 + 4 + 4 + 8 + 2)
    # 73,728 numbers per token in bfloat16; 32 requests of 1,000 tokens and 65,536 remembered ones
    assert takes.cache == 73_728 * 2 * (32 * 1000 + 65_536)


@pytest.mark.parametrize("name", ["mgrpo_search", "mgrpo_qwen3_30b"])
def test_m_grpo_is_as_published(name):
    run = settings(name)
    pay = run.makers()["phantom_search"]().pay
    assert (pay.format, pay.correct) == (0.1, 0.9)
    assert (pay.sub_format, pay.sub_main, pay.sub_own, pay.price) == (0.1, 0.4, 0.5, 0.0)
    assert run.rollout.group_size == 8
    assert set(run.policies) == {"planner", "searcher"}
    for policy in run.policies.values():
        assert type(policy.credit) is MGRPORandom
        assert policy.credit.size == 8


def test_m_grpos_scale_is_that_of_its_code(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run = settings("mgrpo_qwen3_30b")
    assert run.rollout.episodes == 16
    game = run.makers()["phantom_search"]()
    assert (game.level.planner_turns, game.level.searcher_turns) == (20, 20)
    for seat, policy in run.policies.items():
        learner = policy.learner
        assert (learner.lr, learner.schedule) == (1e-6, "constant")
        assert (learner.weight_decay, learner.betas) == (0.1, (0.9, 0.98))
        assert (learner.loss.low, learner.loss.high) == (0.2, 0.28)
        assert not learner.needs_reference
        assert run.seats[seat].role.sampling.temperature == 1.0
        # embeddings in and out, 48 layers with attention and 128 experts, and the last norm
        layer = 2 * 2048 * 4096 + 2 * 2048 * 512 + 256 + 2048 * 128 + 128 * 3 * 2048 * 768 + 4096
        assert size_of(policy.model).parameters == 2 * 151936 * 2048 + 48 * layer + 2048
    assert len({policy.engine.device for policy in run.policies.values()}) == 2


def test_hipers_scale_is_that_of_its_code(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run = settings("hiper_qwen25_7b")
    policy = run.policies["main"]
    learner, credit = policy.learner, policy.credit
    assert (run.updates, run.rollout.episodes, run.games["household"]["turns"]) == (150, 128, 50)
    assert (learner.lr, learner.kl.coefficient, learner.loss.low, learner.loss.high,
            learner.loss.dual) == (1e-6, 0.01, 0.2, 0.2, 3.0)  # fmt: skip
    assert (credit.gamma, credit.lam_turn, credit.lam_segment) == (1.0, 1.0, 0.95)
    assert (credit.form, credit.truncation, credit.whiten) == ("shipped", "exact", True)
    assert (policy.engine.context, run.seats["self"].role.sampling.max_tokens) == (2560, 512)
    # embeddings in and out, 28 layers with biases on queries, keys and values, and the last norm
    layer = 2 * 3584 * 3584 + 2 * 3584 * 512 + 3584 + 2 * 512 + 3 * 3584 * 18944 + 2 * 3584
    assert size_of(policy.model).parameters == 2 * 152064 * 3584 + 28 * layer + 3584


def test_nested_calls_weigh_by_their_place_in_the_tree():
    policies = settings("nested_delegation").policies
    assert set(policies) == {"planner", "executor", "opener"}
    assert {policy.credit.alignment for policy in policies.values()} == {"nested"}


@pytest.mark.parametrize("name", ["planner_executor", "planner_executor_search"])
def test_one_agent_is_compared_under_the_same_conditions(name):
    team, solo = settings(name), settings(name.replace("executor", "solo"))
    (game,) = team.games
    assert {**team.games[game], "solo": True} == solo.games[game]
    assert (team.updates, team.rollout.episodes) == (solo.updates, solo.rollout.episodes)
    ours, theirs = team.policies["planner"], solo.policies["planner"]
    assert (ours.learner, ours.model, ours.credit) == (theirs.learner, theirs.model, theirs.credit)
    assert ours.coldstart == theirs.coldstart


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - LARGE))
def test_a_small_experiment_runs(name, tmp_path, capsys):
    run_dir = tmp_path / "run"
    run = settings(name)
    cold = {"games": 60, "fit.steps": 20}
    words = [f"policies.{p}.coldstart.{key}={n}" for p in run.policies for key, n in cold.items()]
    if run.evaluation.success:
        words.append("evaluation.success=8")
    words += [f"experiment={name}", f"run.dir={run_dir}", *SMALL]
    assert main(["train", *words]) == 0
    assert "report:" in capsys.readouterr().out
    assert read(run_dir / "config.yaml")["experiment"] == name
    rows = read_metrics(run_dir)
    assert rows[-1]["update"] == 2
    assert any(key.startswith("evaluate/") for row in rows for key in row)
