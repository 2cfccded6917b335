"""How sure a measured number is: intervals for shares, means, paired differences, correlations.

What is counted once (the *unit*) is for the caller to choose and must be independent: a pair of
games with swapped seats is one unit, its two games are not. Every function takes one value per unit
and returns an `Interval`; `verdict` puts the comparison of two arms into words and says "no
difference found" where that is the case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from marl_llm.errors import ConfigError
from marl_llm.seeds import generator


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the range that holds the truth in a share `level` of repetitions."""

    value: float
    low: float
    high: float
    n: int  # independent units it rests on
    level: float = 0.95

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson(
    mean: float, n: int, *, level: float = 0.95, bounds: tuple[float, float] = (0.0, 1.0)
) -> Interval:
    """The score interval of a share, also near 0 and 1 and for few units.

        centre = (p + z²/2n) / (1 + z²/n),   half = z √(p(1-p)/n + z²/4n²) / (1 + z²/n)

    For values anywhere within `bounds` and not only at them it is wider than needed, never too
    narrow: of all distributions with this mean, the one on the two bounds varies most
    (Bhatia and Davis 2000).

    Args:
        mean: mean of the n values, e.g. successes / n.
        n: independent units.
        level: coverage.
        bounds: the least and the greatest value a unit can have.

    Returns:
        The interval, inside `bounds`.

    Raises:
        ConfigError: no units, or a mean outside the bounds.

    Source: Wilson 1927.
    """
    least, most = bounds
    if n < 1:
        raise ConfigError(f"an interval needs at least 1 unit, got {n}; play more")
    if not least <= mean <= most:
        raise ConfigError(f"a mean within {bounds} is expected, got {mean}")
    z = _quantile(level)
    p = (mean - least) / (most - least)
    scale = 1 + z * z / n
    centre = (p + z * z / (2 * n)) / scale
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / scale
    low = least + (most - least) * max(0.0, centre - half)
    high = least + (most - least) * min(1.0, centre + half)
    return Interval(mean, min(low, mean), max(high, mean), n, level)  # rounding keeps mean inside


def bootstrap_mean(
    values: Sequence[float] | np.ndarray,
    *,
    seed: int,
    level: float = 0.95,
    resamples: int = 2000,
    bounds: tuple[float, float] | None = None,
) -> Interval:
    """The mean with its percentile bootstrap interval over units.

    Args:
        values: [n] one value per independent unit.
        seed: of the resampling; the same values and seed give the same interval.
        level: coverage.
        resamples: bootstrap samples; 2000 leave the ends uncertain by about 1 % of the width.
        bounds: what a value can be at all. With bounds, n equal values give the Wilson interval:
            resampling ten wins only ever shows ten wins, which does not prove losses impossible.

    Returns:
        The interval; of width 0 for equal values without bounds.

    Raises:
        ConfigError: fewer than 2 values, or one that is not finite.

    Source: Efron 1979.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size < 2:
        raise ConfigError(
            f"a bootstrap needs a list of at least 2 units, got shape {array.shape}; play more"
        )
    if not np.isfinite(array).all():
        raise ConfigError(f"values must be finite, got {array[~np.isfinite(array)][0]}")
    if np.ptp(array) == 0:
        if bounds is not None:
            return wilson(float(array[0]), array.size, level=level, bounds=bounds)
        return Interval(float(array[0]), float(array[0]), float(array[0]), array.size, level)
    means = _resampled_means(array, seed, resamples)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(array.mean()), float(low), float(high), array.size, level)


def paired_difference(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    *,
    seed: int,
    level: float = 0.95,
    resamples: int = 2000,
) -> Interval:
    """mean(first - second) for values that belong together (same deal, same question).

    What both arms share (an easy question, a lucky deal) drops out of each difference, so this is
    narrower than two intervals side by side.

    Args:
        first: [n] one value per unit.
        second: [n] the other arm's value for the same unit.
        seed: of the resampling.
        level: coverage.
        resamples: bootstrap samples.

    Raises:
        ConfigError: different lengths, or fewer than 2 pairs.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise ConfigError(
            f"paired values must come in pairs, got {a.size} and {b.size}; "
            "evaluate both arms on the same units"
        )
    return bootstrap_mean(a - b, seed=seed, level=level, resamples=resamples)


def bootstrap_correlation(
    first: np.ndarray,
    second: np.ndarray,
    unit: np.ndarray,
    *,
    seed: int,
    within: bool = False,
    level: float = 0.95,
    resamples: int = 2000,
) -> Interval:
    """Pearson's correlation with its percentile bootstrap interval over units of several values.

        r = Σ (x - x̄)(y - ȳ) / √(Σ (x - x̄)² Σ (y - ȳ)²)

    Args:
        first: x, [n].
        second: y, [n].
        unit: the unit that each pair belongs to, [n] int; whole units are resampled.
        seed: of the resampling.
        within: x̄ and ȳ are those of the pair's own unit, so that only differences inside units
            count.
        level: coverage.
        resamples: bootstrap samples.

    Returns:
        The interval; `n` is the number of units. r is 0 where x or y does not vary.

    Raises:
        ConfigError: columns of different lengths, fewer than 2 units, or values that are not
            finite.

    Source: Efron 1979.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if not x.shape == y.shape == unit.shape:
        raise ConfigError(
            f"a correlation needs columns of one length, got {x.shape}, {y.shape}, {unit.shape}"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ConfigError("values of a correlation must be finite")
    _, of = np.unique(unit, return_inverse=True)
    units = int(of.max(initial=-1)) + 1
    if units < 2:
        raise ConfigError(f"a bootstrap needs at least 2 units, got {units}; play more")
    count = np.bincount(of)
    centres = [np.bincount(of, z)[of] / count[of] if within else z.mean() for z in (x, y)]
    x, y = x - centres[0], y - centres[1]
    each = np.stack([np.bincount(of, z) for z in (np.ones(len(x)), x, y, x * x, y * y, x * y)])
    rng = generator(seed, "bootstrap")
    draws = rng.multinomial(units, np.full(units, 1 / units), size=resamples)
    low, high = np.quantile(
        _pearson(each @ draws.T.astype(np.float64)), [(1 - level) / 2, (1 + level) / 2]
    )
    return Interval(float(_pearson(each.sum(axis=1))), float(low), float(high), units, level)


def verdict(difference: Interval, first: str, second: str) -> str:
    """The comparison in words: who is better and by how much, or that no difference was found."""
    numbers = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    known = f"{numbers}, {difference.n} pairs, {difference.level:.0%} interval"
    if difference.low > 0:
        return f"{first} is better than {second}: {known}"
    if difference.high < 0:
        return f"{second} is better than {first}: {known}"
    return f"no difference found between {first} and {second}: {known}"


def _quantile(level: float) -> float:
    """Two-sided standard normal quantile, 1.96 for 0.95."""
    if not 0 < level < 1:
        raise ConfigError(f"level must be inside (0, 1), e.g. 0.95, got {level}")
    return NormalDist().inv_cdf((1 + level) / 2)


def _pearson(sums: np.ndarray) -> np.ndarray:
    """Correlation from the sums of 1, x, y, x², y², xy, [6, ...]; 0 where one does not vary."""
    n, x, y, xx, yy, xy = sums
    spread = np.maximum(xx - x * x / n, 0.0) * np.maximum(yy - y * y / n, 0.0)
    # Of equal values rounding leaves some 1e-16 of their squares.
    varies = spread > 1e-20 * np.maximum(xx * yy, 1e-300)
    return np.where(varies, (xy - x * y / n) / np.sqrt(np.where(varies, spread, 1.0)), 0.0)


def _resampled_means(values: np.ndarray, seed: int, resamples: int) -> np.ndarray:
    """[resamples] means of n draws with replacement, in blocks that keep memory small."""
    rng = generator(seed, "bootstrap")
    block = max(1, 2_000_000 // values.size)
    means = [
        values[rng.integers(values.size, size=(min(block, resamples - start), values.size))].mean(1)
        for start in range(0, resamples, block)
    ]
    return np.concatenate(means)
