"""The objective of one optimizer step, and its gradient, micro-batch by micro-batch.

    J = Σ_m w_m (ℓ_m + c · kl_m)        over all sampled tokens m of the step

with ℓ from `losses.py`, kl from `reference.py` and w from `aggregation.py`. A micro-batch adds its
part of the sum, so the split does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from marl_llm.errors import TrainingError
from marl_llm.learn.importance import Correction
from marl_llm.learn.live import LiveTurns
from marl_llm.learn.logprobs import score
from marl_llm.learn.losses import PolicyLoss, Terms
from marl_llm.learn.reference import k2, k3, ratio_k3
from marl_llm.learn.rows import Array, Microbatch


@dataclass(frozen=True, slots=True)
class Objective:
    """Everything but the current log-probs, flat over the M tokens of a step, on the device."""

    loss: PolicyLoss
    advantages: Tensor  # [M] float32
    weights: Tensor  # [M] float32, with the denominators of the whole batch
    sampler: Tensor  # [M] float32 nats
    fresh: Tensor  # [M] bool: sampled by the very weights that this update starts from
    correction: Correction
    old: Tensor | None = None  # [M] nats; None = the current ones (one step per batch)
    reference: Tensor | None = None  # [M] nats
    kl_form: str = "k2"  # k2 or ratio_k3 are added to the loss; reward was already taken off
    kl_coefficient: float = 0.0
    tolerance: float | None = None  # nats: check that the ratio is one; None = do not

    @classmethod
    def of(
        cls, live: LiveTurns, loss: PolicyLoss, version: int, correction: Correction, kl_form: str,
        kl_coefficient: float, tolerance: float | None, device: torch.device,
    ) -> Objective:  # fmt: skip
        """The objective of these turns for a policy that is at `version`."""

        def tensor(values: Array) -> Tensor:
            return torch.from_numpy(np.asarray(values, np.float32)).to(device)

        fresh = np.repeat(live.version == version, live.lengths)
        return cls(
            loss=loss,
            advantages=tensor(live.advantages),
            weights=tensor(live.weights),
            sampler=tensor(live.sampler),
            fresh=torch.from_numpy(fresh).to(device),
            correction=correction,
            old=None if live.old is None else tensor(live.old),
            reference=None if live.reference is None else tensor(live.reference),
            kl_form=kl_form,
            kl_coefficient=kl_coefficient,
            tolerance=tolerance,
        )

    def terms(self, logprobs: Tensor, before: Tensor, lengths: Tensor) -> tuple[Terms, Tensor]:
        """The loss's terms, and ℓ + c · kl per token, [M].

        Args:
            logprobs: [M] current, with gradient.
            before: [M] the trainer's before this update.
            lengths: [N] tokens per turn.
        """
        old, weight = self.correction.of(self.sampler, before, self.fresh, lengths)
        terms = self.loss.terms(logprobs, old, self.advantages * weight, lengths)
        if self.reference is None or self.kl_form == "reward" or self.kl_coefficient == 0:
            return terms, terms.loss
        if self.kl_form == "k2":
            kl = k2(logprobs, self.reference)
        else:
            kl = ratio_k3(logprobs, old, self.reference)
        return terms, terms.loss + self.kl_coefficient * kl

    def distances(self, current: Tensor, before: Tensor) -> Tensor:
        """How far a fresh token's log-prob is from the two others, [M] nats; 0 before any step."""
        off = torch.maximum((current - self.sampler).abs(), (current - before).abs())
        return torch.where(self.fresh, off, torch.zeros_like(off))

    def take(self, tokens: Tensor) -> Objective:
        """The objective of some of the tokens."""
        return replace(
            self,
            advantages=self.advantages[tokens],
            weights=self.weights[tokens],
            sampler=self.sampler[tokens],
            fresh=self.fresh[tokens],
            old=None if self.old is None else self.old[tokens],
            reference=None if self.reference is None else self.reference[tokens],
        )


def accumulate(
    model: nn.Module, batch: Microbatch, objective: Objective, who: Callable[[int], str]
) -> dict[str, float]:
    """Add a micro-batch's part of ∇J to the parameters' gradients.

    Args:
        model: a causal LM.
        batch: on the model's device; `batch.tokens` index the objective's M tokens.
        objective: of the whole step.
        who: names the turn of a token, for errors.

    Returns:
        Sums over the micro-batch's tokens, and maxima where the name ends in ``_max``.

    Raises:
        TrainingError: a log-prob or a term is not finite, or a ratio that must be one is not; the
            micro-batch's gradient was not added then.
    """
    part = objective.take(batch.tokens)
    scored = score(model, batch)
    logprobs = scored.logprobs.index_select(0, batch.slot)
    current = logprobs.detach()
    before = current if part.old is None else part.old
    terms, per_token = part.terms(logprobs, before, batch.lengths)
    value = (part.weights * per_token).sum()

    off = part.distances(current, before)
    drift = torch.zeros_like(current)
    if part.reference is not None:
        drift = k3(current, part.reference)
    numbers = {
        "objective": value.detach(),
        "clipped": terms.clipped.sum(),
        "ratio": terms.ratio.sum(),
        "ratio_max": terms.ratio.max(),
        "kl": drift.sum(),
        "entropy": scored.entropy.index_select(0, batch.slot).sum(),
        "fresh": part.fresh.sum(),
        "gap": ((current - part.sampler).abs() * part.fresh).sum(),
        "off_max": off.max(),
        "broken": (~torch.isfinite(current + per_token.detach())).sum(),
    }
    values = torch.stack([number.double() for number in numbers.values()]).tolist()  # one sync
    found = dict(zip(numbers, values, strict=True))
    if found["broken"]:
        blame_number(current, per_token.detach(), batch.tokens, who)
    if part.tolerance is not None and found["off_max"] > part.tolerance:
        blame_ratio(current, part, off, batch.tokens, who)
    value.backward()
    return found


def merge(parts: list[dict[str, float]]) -> dict[str, float]:
    """One record of several: sums, and maxima where the name ends in ``_max``."""
    return {
        name: (max if name.endswith("_max") else sum)(part[name] for part in parts)
        for name in parts[0]
    }


def blame_number(
    logprobs: Tensor, terms: Tensor, tokens: Tensor, who: Callable[[int], str]
) -> None:
    """Raise for the first token whose log-prob or term is not finite."""
    first = int(torch.nonzero(~torch.isfinite(logprobs + terms))[0])
    raise TrainingError(
        f"{who(int(tokens[first]))}: a sampled token has log-prob {logprobs[first].item()} and "
        f"loss term {terms[first].item()}, which must be finite; the step was not taken. Lower the "
        "learning rate or go back to a checkpoint"
    )


def blame_ratio(
    logprobs: Tensor,
    part: Objective,
    distance: Tensor,
    tokens: Tensor,
    who: Callable[[int], str],
) -> None:
    """Raise for the token whose log-prob is furthest from what it was sampled with."""
    worst = int(distance.argmax())
    old = "" if part.old is None else f", before this update {part.old[worst].item():.6f}"
    raise TrainingError(
        f"{who(int(tokens[worst]))}: before the first step the trainer gives a token log-prob "
        f"{logprobs[worst].item():.6f}, the sampler gave {part.sampler[worst].item():.6f}{old}; "
        f"they differ by {distance[worst].item():.2g}, more than {part.tolerance:.2g} nats. "
        "Sampler and trainer must agree in weights, token ids, temperature and precision; for low "
        "precision raise ratio_tolerance, or set it to null to go on unchecked"
    )
