"""Training end to end: sampled tokens per second over those of TRL's GRPOTrainer.

    python -m venv .venv-trl
    .venv-trl/bin/pip install -c benchmarks/trl_constraints.txt trl
    OMP_NUM_THREADS=2 .venv/bin/python benchmarks/over_trl.py --json FILE

Both sides start from one model folder, take 256 completions per update (ours about so many: a game
has two or three turns), sample at temperature 1 until the end of the answer (48 tokens at most, no
length forced), hold on to a reference with coefficient 0.2 and step AdamW once at the same rate.
Ours plays Kuhn poker against itself, rules and parsing included; TRL gets prompts
that this play gave rise to, in 32 groups of 8, and a reward that costs nothing. Neither side
evaluates or writes anything. Each runs in a process of its own, in turn, several rounds; a rate is
that of the updates after two that do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from marl_llm import config, team
from marl_llm.bench.rollout import SHORT
from marl_llm.bench.workload import Workload, sampled
from marl_llm.local import LocalRuntime
from marl_llm.runtime import Collected
from marl_llm.settings import RunSettings
from marl_llm.train import plans_of

COMPLETIONS = 256  # per update
GROUP = 8  # TRL's completions of one prompt
WARM = 2  # updates that do not count
BETA = 0.2
WORDS = (
    "experiment=kuhn_selfplay",
    *SHORT,
    "learner.epochs=1",
    "learner.schedule=constant",
    "learner.kl.form=k2",
    f"learner.kl.coefficient={BETA}",
    "learner.kl.final=null",
    "learner.kl.over=0",
)
PEER = Path(__file__).with_name("trl_grpo.py")
END = "</answer>"  # both sides' replies end here


def prepare(folder: Path, updates: int) -> Path:
    """Make the model, play one update for its prompts, and write the job of both sides."""
    run = RunSettings.of(config.compose(WORDS))
    work = Workload.prepare(run, folder / "run", print)
    source = folder / "run" / "models" / "main"
    model = AutoModelForCausalLM.from_pretrained(source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    prompts = [tokenizer.decode(request.prompt_ids) for request in work.requests]
    again = [tuple(ids) for ids in tokenizer(prompts, add_special_tokens=False)["input_ids"]]
    assert again == [request.prompt_ids for request in work.requests], "prompts survive as text"

    # TRL knows one end of a reply, the tokenizer's: in its copy of the folder that is END.
    tokenizer.eos_token = END
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder / "peer")
    tokenizer.save_pretrained(folder / "peer")
    job = {
        "model": str(folder / "peer"),
        "run": str(folder / "run"),
        "prompts": prompts,
        "games": round(COMPLETIONS * len(work.episodes) / len(work.requests)),
        "completions": COMPLETIONS,
        "group": GROUP,
        "max_tokens": work.requests[0].sampling.max_tokens,
        "beta": BETA,
        "lr": run.policies["main"].learner.lr,
        "updates": updates,
        "warm": WARM,
        "threads": int(os.environ.get("OMP_NUM_THREADS", str(os.cpu_count()))),
        "seed": run.seed,
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    return path


def ours(job: dict[str, Any]) -> dict[str, float]:
    """Collect and learn, as `marl-llm train` does between two evaluations."""
    torch.set_num_threads(job["threads"])
    run = RunSettings.of(config.compose([*WORDS, f"rollout.episodes={job['games']}"]))
    runtime = LocalRuntime(run, Path(job["run"]))
    team.settle()
    tokens = turns = 0
    began = 0.0
    for update in range(job["warm"] + job["updates"]):
        if update == job["warm"]:
            tokens, turns, began = 0, 0, time.perf_counter()
        runtime.collect(update, plans_of(run, update))
        collected = runtime.wait()
        assert isinstance(collected, Collected)
        episodes = collected.episodes
        runtime.learn("main", update)
        runtime.wait()
        tokens += sampled(episodes)
        turns += sum(len(episode.turns) for episode in episodes)
    return {"seconds": time.perf_counter() - began, "tokens": tokens, "completions": turns}


def one_side(python: Path, script: Path, job: Path) -> dict[str, float]:
    """Run one side in its own process; its last line of output is its result."""
    done = subprocess.run(
        [str(python), str(script), "--job", str(job)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
    )
    if done.returncode:
        sys.exit(f"{script.name} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(python: Path, rounds: int, updates: int) -> dict[str, Any]:
    """Both sides in turn; the ratio is the median of the rounds' ratios."""
    with tempfile.TemporaryDirectory(prefix="over_trl_") as folder:
        job = prepare(Path(folder), updates)
        pairs = [
            (one_side(Path(sys.executable), Path(__file__), job), one_side(python, PEER, job))
            for _ in range(rounds)
        ]
        settings = json.loads(job.read_text())
    rates = [tuple(side["tokens"] / side["seconds"] for side in pair) for pair in pairs]
    return {
        "over_trl": statistics.median(own / peer for own, peer in rates),
        "tokens_per_second": {
            "ours": statistics.median(own for own, _ in rates),
            "trl": statistics.median(peer for _, peer in rates),
        },
        "rounds": [{"ours": own, "trl": peer} for own, peer in pairs],
        "settings": {key: value for key, value in settings.items() if key != "prompts"},
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=8, help="that count, per round")
    parser.add_argument("--trl-python", type=Path, default=Path(".venv-trl/bin/python"))
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        print(json.dumps(ours(json.loads(options.job.read_text()))))
        return
    if not options.trl_python.exists():
        parser.error(f"{options.trl_python} is missing; {PEER.name} says how to make it")
    result = compare(options.trl_python, options.rounds, options.updates)
    rates = result["tokens_per_second"]
    print(
        f"over_trl {result['over_trl']:.2f}   "
        f"(tokens/s of training: ours {rates['ours']:,.0f}, TRL {rates['trl']:,.0f})"
    )
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
