"""Updates: the learner against a bare loop, and where the time of a whole update goes."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from marl_llm import team
from marl_llm.bench.timing import Stopwatch, Work, interleaved, median_seconds
from marl_llm.bench.workload import Workload, store
from marl_llm.credit import assign
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.credit.columns import from_episodes, turns_of
from marl_llm.credit.given import Given
from marl_llm.learn.learner import Learner, LearnerSettings
from marl_llm.learn.live import live_turns
from marl_llm.learn.reference import KL
from marl_llm.learn.rows import Microbatch, pack
from marl_llm.local import LocalRuntime
from marl_llm.seeds import generator
from marl_llm.serve.models import load_model
from marl_llm.store.episodes import AtHand, episodes_of, record_of
from marl_llm.train import plans_of
from marl_llm.types import Turn

PULL = 0.2  # coefficient of the KL term, where one is asked for


@dataclass(frozen=True, slots=True)
class Lecture:
    """A batch with its credit, ready to be learned from."""

    turns: list[Turn]
    batch: TurnBatch
    credit: Credit
    temperatures: np.ndarray  # [N]

    @classmethod
    def of(cls, work: Workload) -> Lecture:
        """The recorded episodes."""
        policy = work.run.policies[work.policy]
        turns = turns_of(work.episodes, work.policy)
        batch = from_episodes(work.episodes, work.policy)
        seats = work.run.seats
        return cls(
            turns,
            batch,
            assign(policy.credit, batch, Given(generator(work.run.seed, "bench"))),
            np.array([seats[turn.player].role.sampling.temperature for turn in turns]),
        )


def update_rates(work: Workload, rounds: int) -> dict[str, list[float]]:
    """Tokens per second of `learner`, `learner_with_kl` and `bare`, one number per round.

    A token is a sampled one. All three start from the same weights in every round and pass over the
    batch once, whatever the experiment asks for.
    """
    policy = work.run.policies[work.policy]
    model, _ = load_model(str(work.folder / team.MODELS / work.policy), device=policy.engine.device)
    lecture = Lecture.of(work)
    free = replace(policy.learner, epochs=1, minibatches=1, kl=KL())
    held = replace(free, kl=KL(coefficient=PULL))
    works = {
        "learner": learner(model, free, lecture),
        "bare": bare(model, policy.learner, lecture),
        "learner_with_kl": learner(model, held, lecture),
    }
    return interleaved(works, rounds)


def learner(model: nn.Module, settings: LearnerSettings, lecture: Lecture) -> Work:
    """`Learner.update`, by a learner that remembers nothing of the reference."""

    def once(watch: Stopwatch) -> int:
        pupil = Learner("bench", copy.deepcopy(model), settings)
        with watch.running():
            pupil.update(lecture.turns, lecture.batch, lecture.credit, lecture.temperatures)
        return len(lecture.batch.logprobs)

    return once


def bare(model: nn.Module, settings: LearnerSettings, lecture: Lecture) -> Work:
    """Forward, cross entropy, backward and AdamW on the rows and positions of the same batch.

    The rows are laid out beforehand, and the output layer sees no other position either.
    """
    pairs = [(turn.prompt_ids, turn.ids) for turn in lecture.turns]
    device = next(model.parameters()).device
    batches = [one.to(device) for one in pack(pairs).microbatches(settings.micro_tokens)]

    def once(watch: Stopwatch) -> int:
        pupil = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(pupil.parameters(), lr=settings.lr)
        with watch.running():
            for batch in batches:
                cross_entropy(pupil, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        return len(lecture.batch.logprobs)

    return once


def cross_entropy(model: nn.Module, batch: Microbatch) -> torch.Tensor:
    """-Σ log π over the positions of a micro-batch."""
    body: nn.Module = model.base_model  # type: ignore[assignment]
    head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
    hidden = body(input_ids=batch.input_ids, use_cache=False).last_hidden_state
    logits = head(hidden.flatten(0, 1)[batch.positions])
    return F.cross_entropy(logits, batch.targets, reduction="sum")


def overhead(work: Workload, rounds: int) -> dict[str, float]:
    """Median seconds of a whole update, and of its parts that are neither sampling nor learning.

    Returns:
        `update` and its two halves `collect` and `learn`; `credit` (columns and advantages),
        `batching` (turns to rows to micro-batches), `store` (there and back, as bytes; publish);
        `weights` (copy, checksum and load, the way to the engine) is no part of the overhead.
    """
    run, policy = work.run, work.run.policies[work.policy]
    runtime = LocalRuntime(run, work.folder)
    collects, learns = [], []
    for update in range(rounds + 1):
        plans = plans_of(run, update)
        collecting, learning = Stopwatch(), Stopwatch()
        with collecting.running():
            runtime.collect(update, plans)
            runtime.wait()
        with learning.running():
            runtime.learn(work.policy, update)
            runtime.wait()
        if update:  # the first does not count
            collects.append(collecting.seconds)
            learns.append(learning.seconds)
    lecture = Lecture.of(work)
    pupil = team.learner(run, work.folder, work.policy)
    engine = team.engine(run, work.folder, work.policy)
    return {
        "update": statistics.median(map(sum, zip(collects, learns, strict=True))),
        "collect": statistics.median(collects),
        "learn": statistics.median(learns),
        "credit": median_seconds(lambda: Lecture.of(work), rounds),
        "batching": median_seconds(batching(lecture, policy.learner), rounds),
        "store": median_seconds(storing(work, pupil), rounds),
        "weights": median_seconds(lambda: engine.load(pupil.weights()), rounds),
    }


def batching(lecture: Lecture, settings: LearnerSettings) -> Callable[[], None]:
    """What the learner does between credit and the model."""

    def once() -> None:
        live = live_turns(
            lecture.turns,
            lecture.batch,
            lecture.credit,
            lecture.temperatures,
            settings.aggregation,
        )
        pack(live.pairs, live.temperatures).microbatches(settings.micro_tokens)

    return once


def storing(work: Workload, pupil: Learner) -> Callable[[], None]:
    """An update's way through the store, there and back."""
    weights = pupil.weights()
    size, whole = work.run.rollout.group_size, work.run.policies[work.policy].whole

    shelf, carrier, topics = store(), AtHand(), count()

    def once() -> None:
        policy, topic = work.policy, f"{work.policy} {next(topics)}"  # as if they were new
        records = [record_of(one, policy, size, 0, whole, carrier) for one in work.episodes]
        shelf.put(topic, records)
        claim = shelf.claim(topic, len(work.episodes) // size, 0, float("inf"))
        assert claim is not None, "all were put"
        episodes_of(claim.records, policy, carrier)
        shelf.acknowledge(topic, claim.id)
        shelf.publish(weights)
        shelf.latest(work.policy)

    return once
