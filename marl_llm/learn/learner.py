"""The learner: one policy's weights and optimizer. Turns and credit in, new weights out.

    live turns ─▶ [reference, old log-probs] ─▶ step: rows ─▶ Σ micro-batches ∇J ─▶ clip ─▶ AdamW

A loss that needs the whole batch looks at it before each step (`twopass.py`).

One `update` is one new version of the weights, whatever its number of optimizer steps. The model
stays in eval mode: dropout would move the ratio off 1. Nothing random is remembered: every draw
hangs on the seed, the policy's name and the version, so a state holds no generator.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor, nn

from marl_llm import weights as files
from marl_llm.credit.batch import Credit, TurnBatch
from marl_llm.errors import CheckpointError, ConfigError, TrainingError
from marl_llm.learn.aggregation import Aggregation
from marl_llm.learn.importance import Correction
from marl_llm.learn.live import LiveTurns, by_episode, live_turns
from marl_llm.learn.logprobs import score_all, statistics_all
from marl_llm.learn.lora import Lora, attach, merged
from marl_llm.learn.losses import PolicyLoss, PPOClip
from marl_llm.learn.objective import Objective, accumulate, merge
from marl_llm.learn.optimizer import adamw, check_rates, check_schedule, learning_rate
from marl_llm.learn.reference import KL, Reference
from marl_llm.learn.rows import Array, Pair, pack
from marl_llm.learn.state import LearnerState, part, prefixed, read, write
from marl_llm.learn.twopass import TwoPassLoss, prepare
from marl_llm.seeds import derive, generator
from marl_llm.types import Turn, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """How a policy learns. Schedules count updates."""

    lr: float = 3e-4
    schedule: str = "constant"  # constant, linear or cosine
    warmup: int = 0  # updates of the rise
    updates: int = 0  # after which linear and cosine have reached the floor
    lr_floor: float = 0.0  # lowest rate, as a fraction of lr
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    epochs: int = 1  # passes over a batch
    minibatches: int = 1  # optimizer steps per pass; each takes whole episodes
    micro_tokens: int = 8192  # padded tokens that pass through the model at once
    loss: PolicyLoss = field(default_factory=PPOClip)
    aggregation: Aggregation = field(default_factory=Aggregation)
    kl: KL = field(default_factory=KL)
    correction: Correction = field(default_factory=Correction)  # of tokens of an older version
    lora: Lora | None = None
    ratio_tolerance: float | None = 0.01  # nats between sampler and trainer; None = unchecked

    def __post_init__(self) -> None:
        check_schedule(self.schedule, self.warmup, self.updates, self.lr_floor)
        check_rates(self.lr, self.weight_decay, self.max_grad_norm)
        if min(self.epochs, self.minibatches, self.micro_tokens) < 1:
            raise ConfigError(
                "epochs, minibatches and micro_tokens must be at least 1, got "
                f"{self.epochs}, {self.minibatches}, {self.micro_tokens}"
            )
        if self.ratio_tolerance is not None and self.ratio_tolerance <= 0:
            raise ConfigError(
                f"ratio_tolerance must be > 0 nats, or null, got {self.ratio_tolerance}"
            )
        if isinstance(self.loss, TwoPassLoss):
            self.loss.check(self.aggregation)

    @property
    def needs_reference(self) -> bool:
        """Whether the weights of version 0 are needed at any time of the run."""
        return self.kl.used or self.loss_reads_reference

    @property
    def corrects(self) -> Correction:
        """What is done about tokens of an older version; nothing where the loss does it itself."""
        itself = isinstance(self.loss, TwoPassLoss) and self.loss.off_policy
        return Correction(form="ratio") if itself else self.correction

    @property
    def loss_reads_reference(self) -> bool:
        """Whether the loss itself compares with the reference, whatever kl says."""
        return isinstance(self.loss, TwoPassLoss) and self.loss.reads_reference


class Learner:
    """One policy's weights, optimizer and reference."""

    def __init__(
        self,
        policy: str,
        model: nn.Module,
        settings: LearnerSettings,
        *,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take over a model; its weights now are version 0 and, if one is needed, the reference.

        Args:
            policy: its name.
            model: a Hugging Face causal LM, float32 unless LoRA adapters are trained on it. It is
                changed in place.
            settings: how to learn.
            seed: the run's.
            clock: seconds, for statistics.
        """
        self.policy, self.settings, self.version = policy, settings, 0
        self._seed, self._clock = seed, clock
        model.eval()
        self._frozen: nn.Module | None = None
        if settings.lora is not None:
            model = attach(model, settings.lora, derive(seed, "lora", policy))
        elif settings.needs_reference:
            self._frozen = copy.deepcopy(model).requires_grad_(False)
        self._model = model
        self._reference = Reference(self._score_reference) if settings.needs_reference else None
        self._optimizer = adamw(model, settings.betas, settings.weight_decay)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self._model.parameters()).device

    def penalised(self, turns: Sequence[Turn], batch: TurnBatch, temperatures: Array) -> TurnBatch:
        """The batch that credit should see: under kl.form `reward` each turn is charged c Σ_t k1.

        The charge is shaping: reward - shaping stays the strategic reward. Other forms charge
        nothing.

        Args:
            turns: N, of the batch.
            batch: their columns.
            temperatures: [N] of sampling.
        """
        coefficient = self.settings.kl.at(self.version)
        if self.settings.kl.form != "reward" or coefficient == 0:
            return batch
        penalty = coefficient * self.divergence(turns, batch, temperatures)
        return replace(batch, reward=batch.reward - penalty, shaping=batch.shaping - penalty)

    def divergence(self, turns: Sequence[Turn], batch: TurnBatch, temperatures: Array) -> Array:
        """Σ_t log π(y_t) - log π_ref(y_t) per turn, [N] float64 nats, π being what sampled.

        Its mean over samples is the KL from the sampler to the reference.
        """
        assert self._reference is not None, "kl.used makes a reference"
        reference = self._reference.logprobs(
            [(turn.prompt_ids, turn.ids) for turn in turns], temperatures
        )
        k1 = batch.logprobs - reference
        return np.bincount(
            np.repeat(np.arange(len(batch)), batch.lengths), weights=k1, minlength=len(batch)
        )

    def token_statistics(self, pairs: Sequence[Pair], temperatures: Array) -> dict[str, Array]:
        """What the policy says of all sampled tokens now, see `logprobs.statistics_all`.

        Args:
            pairs: N turns.
            temperatures: [N] of sampling.
        """
        rows = pack(pairs, temperatures)
        return statistics_all(self._model, rows, self.settings.micro_tokens)

    def reference_logprobs(self, pairs: Sequence[Pair], temperatures: Array) -> Array:
        """Log-probs of all sampled tokens under the reference, [M] nats.

        Args:
            pairs: N turns.
            temperatures: [N] of sampling.

        Raises:
            ConfigError: the learner holds no reference.
        """
        if self._reference is None:
            raise ConfigError(
                f"the learner of policy {self.policy!r} holds no reference; set "
                "learner.kl.keep=true, or a KL term"
            )
        return self._reference.logprobs(pairs, temperatures).astype(np.float64)

    def update(
        self, turns: Sequence[Turn], batch: TurnBatch, credit: Credit, temperatures: Array
    ) -> dict[str, float]:
        """Learn from one batch; the weights become the next version.

        Args:
            turns: N, of the batch, in its order.
            batch: their columns.
            credit: what they were worth. Turns of weight 0 are left out.
            temperatures: [N] of sampling.

        Returns:
            Flat statistics; those of tokens are means over the tokens that count, over all steps.

        Raises:
            TrainingError: something is not finite, or the trainer does not agree with the sampler;
                the message names the turn. The step that met it is not taken, the version stays.
        """
        began = self._clock()
        live = live_turns(turns, batch, credit, temperatures, self.settings.aggregation)
        coefficient = self.settings.kl.at(self.version)
        compares = coefficient > 0 or self.settings.loss_reads_reference
        if self._reference is not None and compares:
            known = self._reference.logprobs(live.pairs, live.temperatures)
            live = replace(live, reference=known)
        rate = self._set_rate()
        steps = self._steps(live, coefficient) if live.pairs else []
        stale = float(np.sum(live.version != self.version))
        self.version += 1
        return {
            **statistics(steps),
            "tokens": float(live.lengths.sum()),
            "turns": float(len(live.pairs)),
            "stale_turns": stale,
            "lr": rate,
            "kl_coefficient": coefficient,
            "seconds": self._clock() - began,
        }

    def weights(self) -> Weights:
        """The weights now, copied to the CPU, as an engine takes them: adapters merged."""
        tensors = {name: tensor.cpu().clone() for name, tensor in self._served().items()}
        return Weights(self.policy, self.version, files.checksum(tensors), tensors=tensors)

    def state_dict(self) -> LearnerState:
        """All that is needed to go on bit by bit. The tensors are the learner's own, not copies."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._model.named_parameters():
            for what, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{what}/{name}"] = value
        if self.settings.lora is not None:
            tensors |= prefixed("model", files.named_weights(self._model))
        if self._frozen is not None:
            tensors |= prefixed("reference", files.named_weights(self._frozen))
        if self._reference is not None:
            tensors |= prefixed("memory", self._reference.state_dict())
        return LearnerState(
            weights=self._served(),
            tensors=tensors,
            scalars={"policy": self.policy, "version": self.version},
        )

    def load_state_dict(self, state: LearnerState) -> None:
        """Go on from a state of a learner with the same kind of model, kl and lora settings.

        Raises:
            CheckpointError: the state is another policy's, or lacks a part that the settings need.
            ModelError: it does not fit the model.
        """
        if state.scalars["policy"] != self.policy:
            raise CheckpointError(
                f"the state is policy {state.scalars['policy']!r}'s, this is {self.policy!r}"
            )
        lora = self.settings.lora is not None
        files.assign(self._model, part(state, "model") if lora else state.weights)
        if self._frozen is not None:
            files.assign(self._frozen, part(state, "reference"))
        if self._reference is not None:
            self._reference.load_state_dict(part(state, "memory"))
        self._optimizer.state.clear()
        for name, parameter in self._model.named_parameters():
            # clones: what was read from a file may lie unaligned, and then sums in another order
            kept = {
                what: state.tensors[f"optimizer/{what}/{name}"].clone()
                for what in ("step", "exp_avg", "exp_avg_sq")
                if f"optimizer/{what}/{name}" in state.tensors
            }
            if kept:
                moments = {k: v.to(self.device) for k, v in kept.items() if k != "step"}
                self._optimizer.state[parameter] = {"step": kept["step"], **moments}
        self.version = int(state.scalars["version"])

    def save(self, folder: Path) -> None:
        """Write the state into a folder."""
        write(self.state_dict(), folder)

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        self.load_state_dict(read(folder))

    def _steps(self, live: LiveTurns, coefficient: float) -> list[Step]:
        """All optimizer steps of an update."""
        settings = self.settings
        if settings.epochs * settings.minibatches > 1:
            rows = pack(live.pairs, live.temperatures)
            live = replace(live, old=score_all(self._model, rows, settings.micro_tokens))
        steps: list[Step] = []
        for epoch in range(settings.epochs):
            rng = generator(self._seed, "minibatches", self.policy, self.version, epoch)
            parts = by_episode(live.episode, settings.minibatches, rng)
            for turns in parts:
                # The ratio is one only until the weights have moved.
                tolerance = None if steps else settings.ratio_tolerance
                ready = prepare(
                    self._model, settings.loss, live, self.version, settings.micro_tokens
                )
                chosen = ready.take(turns, scale=len(parts))
                objective = Objective.of(
                    chosen, settings.loss, self.version, settings.corrects, settings.kl.form,
                    coefficient, tolerance, self.device,
                )  # fmt: skip
                steps.append(self._step(chosen, objective))
        return steps

    def _step(self, live: LiveTurns, objective: Objective) -> Step:
        """One optimizer step: the gradient over all micro-batches, clipped, then AdamW."""
        rows = pack(live.pairs, live.temperatures)
        self._optimizer.zero_grad(set_to_none=True)
        parts = [
            accumulate(self._model, batch.to(self.device), objective, live.who)
            for batch in rows.microbatches(self.settings.micro_tokens)
        ]
        trained = [p for p in self._model.parameters() if p.requires_grad]
        norm = float(nn.utils.clip_grad_norm_(trained, self.settings.max_grad_norm, foreach=True))
        if not np.isfinite(norm):
            raise TrainingError(
                f"{self._culprit(live, objective)}: its gradient is not finite; the step was not "
                "taken. Lower the learning rate or go back to a checkpoint"
            )
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return Step(merge(parts), norm, len(rows.slot), len(rows.ids))

    def _culprit(self, live: LiveTurns, objective: Objective) -> str:
        """The first turn whose gradient alone is not finite; leaves no gradients behind."""
        ends = np.cumsum(live.lengths)
        objective = replace(objective, tolerance=None)
        found = "no single turn"
        for i, pair in enumerate(live.pairs):
            (batch,) = pack([pair], live.temperatures[i : i + 1]).microbatches(1)
            self._optimizer.zero_grad(set_to_none=True)
            alone = objective.take(torch.arange(ends[i] - live.lengths[i], ends[i]))
            accumulate(self._model, batch.to(self.device), alone, live.who)
            gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
            if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
                found = live.name(int(live.places[i]))
                break
        self._optimizer.zero_grad(set_to_none=True)
        return found

    def _set_rate(self) -> float:
        settings = self.settings
        rate = learning_rate(
            settings.lr, settings.schedule, settings.warmup, settings.updates, settings.lr_floor,
            self.version,
        )  # fmt: skip
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _served(self) -> dict[str, Tensor]:
        if isinstance(self._model, PeftModel):
            return merged(self._model)
        return files.named_weights(self._model)

    def _score_reference(self, pairs: Sequence[Pair], temperatures: Array) -> Array:
        rows = pack(pairs, temperatures)
        if isinstance(self._model, PeftModel):
            with self._model.disable_adapter():
                return score_all(self._model, rows, self.settings.micro_tokens)
        assert self._frozen is not None, "without adapters, a frozen copy is kept"
        return score_all(self._frozen, rows, self.settings.micro_tokens)


@dataclass(frozen=True, slots=True)
class Step:
    """What one optimizer step was."""

    sums: dict[str, float]  # over its tokens, see `objective.accumulate`
    grad_norm: float  # before clipping
    tokens: int
    rows: int


def statistics(steps: Sequence[Step]) -> dict[str, float]:
    """Means over the tokens of all steps; loss, gradient norm and rows are means over steps.

    The gap between sampler and trainer is measured on fresh tokens before the first step.
    """
    if not steps:
        return {"steps": 0.0}
    sums = merge([step.sums for step in steps])
    tokens = sum(step.tokens for step in steps)
    return {
        "steps": float(len(steps)),
        "rows": float(sum(step.rows for step in steps)) / len(steps),
        "loss": sums["objective"] / len(steps),
        "grad_norm": sum(step.grad_norm for step in steps) / len(steps),
        "clip_fraction": sums["clipped"] / tokens,
        "ratio_mean": sums["ratio"] / tokens,
        "ratio_max": sums["ratio_max"],
        "entropy": sums["entropy"] / tokens,
        "kl_nats": sums["kl"] / tokens,
        "sampler_gap": steps[0].sums["gap"] / max(steps[0].sums["fresh"], 1),
        "sampler_gap_max": steps[0].sums["off_max"],
    }
