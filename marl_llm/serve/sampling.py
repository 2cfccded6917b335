"""Sampling a whole batch at once: one uniform number per token, from the request's seed alone.

Log-probs are of the full vocabulary at the sampling temperature, log softmax(logits / T), which is
what a trainer computes from the same logits. They are *not* renormalised over what top-k and top-p
leave. At temperature 0 the most likely token is taken and its log-prob is that at temperature 1.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd


def uniform(seed: np.ndarray, position: np.ndarray) -> np.ndarray:
    """One number in [0, 1) for each (seed, position): equal arguments, equal numbers.

        u = mix(mix(seed + g) + (position + 1) · g) >> 12, times 2^-52

    with mix the finaliser of SplitMix64 and g its increment (Steele, Lea and Flood, "Fast
    splittable pseudorandom number generators", 2014). 52 bits, so that u · x < x in float64 for
    every x > 0.

    Args:
        seed: [N] int64, any.
        position: [N] int64: index of the token in its reply.
    """
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        start = _mix(seed.astype(np.uint64) + GOLDEN)
        bits = _mix(start + (position.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    return (bits >> np.uint64(12)) * 2.0**-52


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def sample(
    logits: Tensor,
    draws: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
) -> tuple[Tensor, Tensor]:
    """A token for each row by inverting its cumulative distribution.

    Args:
        logits: [N, V].
        draws: [N] in [0, 1).
        temperature: [N]; 0 = the most likely token.
        top_k: [N] int: how many of the most likely tokens may be drawn, 0 = all.
        top_p: [N]: mass, of what top_k leaves, that may be drawn, 1 = all.

    Returns:
        (ids [N] int64, their log-probs [N] float32, nats). A row whose logits are not finite gives
        a log-prob that is not finite.
    """
    greedy = temperature == 0
    scaled = logits.float()
    if np.any(temperature != 1):
        divisor = np.where(greedy, 1.0, temperature).astype(np.float32)
        scaled = scaled / torch.from_numpy(divisor).to(logits.device)[:, None]
    probs = scaled.softmax(-1)
    narrow = np.flatnonzero((top_k > 0) | (top_p < 1))
    allowed = probs
    if len(narrow):
        rows = torch.from_numpy(narrow).to(logits.device)
        allowed = probs.index_copy(
            0, rows, restrict(probs.index_select(0, rows), top_k[narrow], top_p[narrow])
        )
    # float64: in float32 the tail of a large vocabulary vanishes in the sum
    below = allowed.cumsum(-1, dtype=torch.float64)
    target = torch.from_numpy(draws).to(logits.device)[:, None] * below[:, -1:]
    ids = torch.searchsorted(below, target, right=True).clamp_(max=logits.shape[-1] - 1)[:, 0]
    if np.any(greedy):
        ids = torch.where(torch.from_numpy(greedy).to(logits.device), scaled.argmax(-1), ids)
    return ids, probs.gather(1, ids[:, None])[:, 0].log()


def restrict(probs: Tensor, top_k: np.ndarray, top_p: np.ndarray) -> Tensor:
    """Probabilities with 0 in place of what may not be drawn; not renormalised.

    The `top_k` most likely tokens are kept, and of these the smallest set, from the most likely
    down, whose mass reaches `top_p` of theirs; at least one. Of equal tokens the lower id goes
    first.

    Args:
        probs: [N, V].
        top_k: [N] int, 0 = all.
        top_p: [N] in (0, 1].
    """
    size = probs.shape[-1]
    most = torch.from_numpy(np.where(top_k > 0, top_k, size)).to(probs.device)[:, None]
    share = torch.from_numpy(top_p).to(probs.device)[:, None]
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.double() * (torch.arange(size, device=probs.device) < most)
    mass = ordered.cumsum(-1)
    keep = (mass - ordered < share * mass[:, -1:]) & (ordered > 0)
    keep[:, 0] = True
    return probs * torch.zeros_like(keep).scatter(1, order, keep)
