"""Keeping near a reference: KL terms with the gradient of the KL, and the frozen policy itself.

With r = log π_ref - log π at a sampled token, three estimators of KL(π ‖ π_ref) are in use:

    k1 = -r,    k2 = r²/2,    k3 = exp(r) - 1 - r      (Schulman 2020, Approximating KL divergence)

k1 and k3 have the right *mean*, but that says nothing of the gradient when they are differentiated
as a loss on samples: k1 then gives 0 on average, k3 the gradient of the *forward* KL(π_ref ‖ π).
The right ones, all equal to ∇ KL(π ‖ π_ref) in expectation over fresh samples, are:

- `k2`: r²/2 as a loss;
- `ratio_k3`: ρ · k3 with a differentiable ratio ρ = π/π_old, right off-policy too;
- `reward`: k1 subtracted from the reward before credit is given. Alone of the three it also charges
  a token for the drift of the tokens after it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marl_llm.errors import ConfigError, nearest
from marl_llm.learn.losses import log_ratio
from marl_llm.learn.rows import Array, Pair, key

FORMS = ("k2", "ratio_k3", "reward")
REFUSED = {
    "k1": "as a loss its gradient is 0 on average",
    "k3": "as a loss it descends the forward KL, not the KL to the reference",
}


@dataclass(frozen=True, slots=True)
class KL:
    """How strongly, and in which form, the policy is held to its reference."""

    coefficient: float = 0.0  # per nat; 0 = off
    form: str = "k2"
    final: float | None = None  # coefficient after `over` updates; None = constant
    over: int = 0  # updates of the linear way there
    keep: bool = False  # hold a reference though no term uses it, for signals that do

    def __post_init__(self) -> None:
        if self.form in REFUSED:
            raise ConfigError(
                f"kl.form {self.form!r} is refused: {REFUSED[self.form]}; "
                "use 'k2', 'ratio_k3' or 'reward'"
            )
        if self.form not in FORMS:
            raise ConfigError(f"kl.form {self.form!r} is unknown; {nearest(self.form, FORMS)}")
        if self.coefficient < 0 or (self.final is not None and self.final < 0):
            raise ConfigError(
                f"kl.coefficient and kl.final must be >= 0, got {self.coefficient}, {self.final}"
            )
        if (self.final is None) != (self.over == 0) or self.over < 0:
            raise ConfigError(
                "kl.final and kl.over (updates, > 0) go together: the coefficient moves to `final` "
                f"over `over` updates; got final {self.final}, over {self.over}"
            )

    @property
    def used(self) -> bool:
        """Whether a reference is needed at any time of the run."""
        return self.coefficient > 0 or bool(self.final) or self.keep

    def at(self, update: int) -> float:
        """The coefficient at an update (0 = the first)."""
        if self.final is None:
            return self.coefficient
        return self.coefficient + min(update / self.over, 1.0) * (self.final - self.coefficient)


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """(log π_ref - log π)² / 2 per token, [M]; as a loss on fresh samples its gradient is ∇KL.

    Args:
        logprobs: [M] current, nats, with gradient.
        reference: [M] nats, without.

    Source: our reading of Schulman 2020; E[r ∇log π] = -∇KL(π ‖ π_ref) by E[∇log π] = 0.
    """
    return 0.5 * (reference - logprobs).square()


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """The estimate exp(r) - 1 - r, r = log π_ref - log π, per token, [M]; never negative.

    To be looked at, or under a ratio; not to be descended by itself.

    Args:
        logprobs: [M] nats.
        reference: [M] nats.
    """
    r = log_ratio(reference, logprobs)
    return r.exp() - 1 - r


def ratio_k3(logprobs: Tensor, old: Tensor, reference: Tensor) -> Tensor:
    """ρ · k3 per token, [M], ρ = exp(log π - log π_old) differentiable.

    E_old[ρ k3] = KL(π ‖ π_ref) as a function of π, so its gradient is exact, on-policy and off.

    Args:
        logprobs: [M] current, nats, with gradient.
        old: [M] of the policy that the tokens are taken to come from.
        reference: [M] nats.
    """
    return log_ratio(logprobs, old).exp() * k3(logprobs, reference)


class Reference:
    """Log-probs under a policy that never changes, each remembered as long as there is room.

    In a small game the same (prompt, reply) pairs come back at every update, and the reference
    costs nothing. The memory is part of a checkpoint: what is computed afresh, in other
    micro-batches, may differ in the last bit, and a resumed run must not.
    """

    def __init__(
        self, score: Callable[[Sequence[Pair], Array], Array], room: int = 1 << 18
    ) -> None:
        """Start with an empty memory.

        Args:
            score: log-probs [M] of turns (pairs, temperatures [N]) under the frozen policy.
            room: tokens whose log-probs are kept; the turns longest unused go first.
        """
        self._score = score
        self._room = room
        self._kept: OrderedDict[bytes, Array] = OrderedDict()
        self._tokens = 0
        self.computed = 0  # turns that were not in memory, so far

    def logprobs(self, pairs: Sequence[Pair], temperatures: Array) -> Array:
        """Log-probs of all sampled tokens, [M] float32 nats.

        Args:
            pairs: N turns.
            temperatures: [N] of sampling.
        """
        turns = list(zip(pairs, temperatures.tolist(), strict=True))
        name_of = {turn: digest(*turn) for turn in dict.fromkeys(turns)}
        names = [name_of[turn] for turn in turns]
        missing = {name: i for i, name in enumerate(names) if name not in self._kept}
        found: dict[bytes, Array] = {}
        if missing:
            index = list(missing.values())
            wanted = [pairs[i] for i in index]
            values = self._score(wanted, temperatures[index])
            ends = np.cumsum([len(reply) for _, reply in wanted])[:-1]
            # copies: a view would keep the whole batch alive as long as one of its turns
            found = {n: v.copy() for n, v in zip(missing, np.split(values, ends), strict=True)}
            self.computed += len(missing)
        out = []
        for name in names:
            if name in self._kept:
                self._kept.move_to_end(name)
                out.append(self._kept[name])
            else:
                out.append(found[name])
        self._keep(found)
        return np.concatenate(out) if out else np.empty(0, np.float32)

    def _keep(self, found: dict[bytes, Array]) -> None:
        for name, values in found.items():
            self._kept[name] = values
            self._tokens += len(values)
        while self._tokens > self._room:
            _, oldest = self._kept.popitem(last=False)
            self._tokens -= len(oldest)

    def state_dict(self) -> dict[str, Tensor]:
        """The memory, longest unused first."""
        names = b"".join(self._kept)
        lengths = [len(values) for values in self._kept.values()]
        values = np.concatenate(list(self._kept.values())) if lengths else np.empty(0, np.float32)
        return {
            "names": torch.from_numpy(np.frombuffer(names, np.uint8).copy().reshape(-1, NAME)),
            "lengths": torch.tensor(lengths, dtype=torch.int64),
            "values": torch.from_numpy(values),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over a memory."""
        ends = np.cumsum(state["lengths"].numpy())[:-1]
        pieces = np.split(state["values"].numpy(), ends) if len(state["lengths"]) else []
        names = [row.tobytes() for row in state["names"].numpy()]
        self._kept = OrderedDict((n, v.copy()) for n, v in zip(names, pieces, strict=True))
        self._tokens = sum(len(piece) for piece in pieces)


NAME = 16  # bytes


def digest(pair: Pair, temperature: float) -> bytes:
    """A name for (prompt, reply, temperature), `NAME` bytes."""
    text = key(*pair) + f"|{len(pair[0])}|{temperature!r}".encode()
    return hashlib.blake2b(text, digest_size=NAME).digest()
