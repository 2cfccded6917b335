"""Sampling: self-play, the engine alone on the same requests, and transformers' own `generate`."""

from __future__ import annotations

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from marl_llm import team
from marl_llm.bench.timing import Stopwatch, Work, interleaved
from marl_llm.bench.workload import Workload, sampled, store
from marl_llm.games import Game
from marl_llm.serve import generate
from marl_llm.serve.models import load_model
from marl_llm.store.episodes import AtHand
from marl_llm.types import Sampling


def sampling_rates(work: Workload, rounds: int) -> dict[str, list[float]]:
    """Tokens per second of `rollout`, `engine` and `generate`, one number per round."""
    works = {"rollout": self_play(work), "engine": engine_alone(work), "generate": plain(work)}
    return interleaved(works, rounds)


def self_play(work: Workload) -> Work:
    """Play the recorded episodes once more and put them into a store, as an update does."""
    engine = team.engine(work.run, work.folder, work.policy)
    weights = team.learner(work.run, work.folder, work.policy).weights()
    idle: dict[str, list[Game]] = {}

    def once(watch: Stopwatch) -> int:
        engine.load(weights)  # no prefix is known, as after an update
        shelf = store()  # which a run makes once
        with watch.running():
            episodes = team.collect(
                work.run,
                work.makers,
                work.seats,
                {work.policy: engine},
                {work.policy: engine.version},
                shelf,
                AtHand(),
                work.plans,
                idle,
            )
        return sampled(episodes)

    return once


def engine_alone(work: Workload) -> Work:
    """All recorded requests at once, to an engine with the same settings."""
    engine = team.engine(work.run, work.folder, work.policy)
    weights = team.learner(work.run, work.folder, work.policy).weights()

    def once(watch: Stopwatch) -> int:
        engine.load(weights)
        with watch.running():
            completions = generate(engine, work.requests)
        return sum(len(completion.ids) for completion in completions)

    return once


def plain(work: Workload) -> Work:
    """`generate` on the recorded requests, in left-padded batches of the engine's `max_batch`.

    It is told how long each batch's longest reply is and runs exactly that far, without looking for
    the end of a reply: less work per step, and no step more than a batch needs. What it samples
    beyond a request's recorded length is padding and does not count.
    """
    settings = work.run.policies[work.policy].engine
    model, tokenizer = load_model(
        str(work.folder / team.MODELS / work.policy), dtype=settings.dtype, device=settings.device
    )
    model.generation_config.eos_token_id = None
    size = settings.max_batch
    batches = [
        left_padded([request.prompt_ids for request in work.requests[i : i + size]], tokenizer)
        for i in range(0, len(work.requests), size)
    ]
    longest = [max(work.lengths[i : i + size]) for i in range(0, len(work.lengths), size)]
    sampling = work.requests[0].sampling

    def once(watch: Stopwatch) -> int:
        with torch.random.fork_rng(), watch.running():
            torch.manual_seed(work.run.seed)
            for (ids, mask), steps in zip(batches, longest, strict=True):
                run_to(model, tokenizer, ids, mask, steps, sampling)
        return sum(work.lengths)

    return once


def left_padded(
    prompts: list[tuple[int, ...]], tokenizer: PreTrainedTokenizerBase
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [B, T] and mask [B, T] of prompts that end together."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), int(tokenizer.pad_token_id))
    mask = torch.zeros((len(prompts), width), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids, mask


def run_to(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    ids: torch.Tensor,
    mask: torch.Tensor,
    steps: int,
    sampling: Sampling,
) -> torch.Tensor:
    """Sample `steps` tokens after every prompt, [B, T + steps]."""
    how = GenerationConfig(
        do_sample=True,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        max_new_tokens=steps,
        pad_token_id=tokenizer.pad_token_id,
    )
    device = model.device
    return model.generate(  # type: ignore[operator]
        ids.to(device), attention_mask=mask.to(device), generation_config=how
    )
