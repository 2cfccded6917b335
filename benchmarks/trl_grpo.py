"""TRL's side of `over_trl.py`; runs in TRL's own environment, which knows nothing of marl_llm.

    python -m venv .venv-trl
    .venv-trl/bin/pip install -c benchmarks/trl_constraints.txt trl

Settings that cost TRL time and are not part of the comparison are off: gradient checkpointing,
logging, saving, dropout. A step samples, scores the reference and takes one optimizer step over the
whole batch at once.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Counts sampled tokens, and notes them with the time after each step."""

    def __init__(self) -> None:
        self.tokens = self.completions = 0
        self.marks: list[tuple[float, int, int]] = []

    def reward(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        """1 for replies of an even number of tokens: free, and not the same for all."""
        self.tokens += sum(map(len, completion_ids))
        self.completions += len(completion_ids)
        return [float(len(ids) % 2 == 0) for ids in completion_ids]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The trainer's call after each optimizer step."""
        self.marks.append((time.perf_counter(), self.tokens, self.completions))


def train(job: dict[str, Any]) -> dict[str, float]:
    """Train and give seconds, tokens and completions of the updates that count."""
    torch.set_num_threads(job["threads"])
    clock = Clock()

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            seed=job["seed"],
            max_steps=job["warm"] + job["updates"],
            per_device_train_batch_size=job["completions"],
            gradient_accumulation_steps=1,
            num_generations=job["group"],
            max_completion_length=job["max_tokens"],
            temperature=1.0,
            beta=job["beta"],
            learning_rate=job["lr"],
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            gradient_checkpointing=False,
            disable_dropout=True,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(job["model"]),
            reward_funcs=clock.reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": job["prompts"]}),
            callbacks=[clock],
        )
        trainer.train()
    began, end = clock.marks[job["warm"] - 1], clock.marks[-1]
    return {
        "seconds": end[0] - began[0],
        "tokens": end[1] - began[1],
        "completions": end[2] - began[2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--job", type=Path, required=True, help="written by over_trl.py")
    print(json.dumps(train(json.loads(parser.parse_args().job.read_text()))))


if __name__ == "__main__":
    main()
