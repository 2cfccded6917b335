"""Every experiment composes and builds, its plan holds, and the small ones run."""

import pytest

from marl_llm.cli import main
from marl_llm.config import choices, compose, read
from marl_llm.footprint import footprint, size_of
from marl_llm.plan import lines
from marl_llm.report.metrics import read as read_metrics
from marl_llm.settings import RunSettings

EXPERIMENTS = choices("experiment")
LARGE = {"mars_qwen3_4b"}
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
        "connect_four_selfplay", "mars_generalist", "mars_qwen3_4b", "household_hae",
    }  # fmt: skip


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_has_a_plan_without_failures(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
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
