"""Lists of actions for the exercises that run one: GPipe, 1F1B, and orders that no counter gets right."""

from __future__ import annotations

Actions = list[tuple[str, int, int]]


def gpipe(p: int, m: int, *, last_first: bool = False) -> list[Actions]:
    """All forwards, then all backwards; last_first: those in the opposite order."""
    back = range(m - 1, -1, -1) if last_first else range(m)
    return [[("F", i, s) for i in range(m)] + [("B", i, s) for i in back] for s in range(p)]


def one_f_one_b(p: int, m: int, order: list[int] | None = None) -> list[Actions]:
    """1F1B; `order` is that of the micro-batches."""
    turns = order or list(range(m))
    ranks = []
    for s in range(p):
        warmup = min(p - 1 - s, m)
        actions = [("F", i, s) for i in turns[:warmup]]
        for k, i in enumerate(turns):
            actions += [("F", turns[warmup + k], s)] if warmup + k < m else []
            actions.append(("B", i, s))
        ranks.append(actions)
    return ranks
