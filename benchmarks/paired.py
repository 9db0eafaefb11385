"""Ratios of times that were taken in pairs, and how sure they are."""

import math
import statistics
from collections.abc import Sequence


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, str]:
    """Give the median of above / below over rounds, and "95% between a and b" for where that median lies.

    The bounds are order statistics: they assume nothing about how the ratios are distributed.
    """
    ratios = sorted(a / b for a, b in zip(above, below, strict=True))
    n = len(ratios)
    reach = 1.96 * math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach))
    return statistics.median(ratios), f"{n} rounds, 95% between {ratios[low]:.3f} and {ratios[high]:.3f}"
