"""Shaping: a small reward for form, apart from the game's own and never able to flip an outcome.

An accepted action earns `valid`; a reply longer than `free` tokens loses up to `weight`, linearly,
at `full` tokens (MARS, arXiv 2510.15414, uses 0.05 and a penalty of 0.5 between 2,048 and 4,096
tokens). What an agent collects in one episode is clipped to `share` of half the smallest gap
between two outcomes of the game, so that two agents' shaping together can never make up for a worse
outcome.
"""

from __future__ import annotations

from dataclasses import dataclass

from marl_llm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Shaping:
    """Reward for form. The defaults are no shaping at all."""

    valid: float = 0.0  # for an accepted action
    free: int = 2048  # tokens of a reply that cost nothing
    full: int = 4096  # tokens at which the whole penalty is due
    weight: float = 0.0  # the whole penalty for length
    share: float = 0.9  # of half the smallest gap between outcomes

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ConfigError(f"shaping.share must be in [0, 1), got {self.share}")
        if self.weight < 0:
            raise ConfigError(f"shaping.weight is a penalty and must be >= 0, got {self.weight}")
        if not 0 <= self.free < self.full:
            raise ConfigError(f"shaping needs 0 <= free < full, got {self.free} and {self.full}")

    @property
    def active(self) -> bool:
        """Whether any of it is switched on."""
        return self.valid != 0.0 or self.weight != 0.0

    def of_turn(self, tokens: int, accepted: bool) -> float:
        """Shaping of one reply before the cap.

        Args:
            tokens: sampled tokens of the reply.
            accepted: the game took its action.
        """
        over = min(1.0, max(0.0, (tokens - self.free) / (self.full - self.free)))
        return (self.valid if accepted else 0.0) - self.weight * over

    def capped(self, so_far: float, more: float, gap: float) -> float:
        """The part of `more` that keeps an agent's total of the episode within the cap.

        Args:
            so_far: the agent's shaping in this episode until now.
            more: what `of_turn` would add.
            gap: the smallest difference between two outcomes' rewards.
        """
        cap = self.share * gap / 2
        return min(cap, max(-cap, so_far + more)) - so_far
