"""Minimise robust squares with Levenberg-Marquardt: what fits the course's constants, and a user's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from course_lib.cost.constants import Array

ROBUST = 0.15
"""Log errors beyond this count linearly: measurements have outliers."""
PRIOR = 0.05
"""Weight of a constant's prior, against one run: log error that a run is trusted to."""


def robust(error: Array) -> Array:
    """Return errors whose squares grow like the error itself beyond ROBUST."""
    found: Array = np.sign(error) * ROBUST * np.sqrt(2 * (np.sqrt(1 + (error / ROBUST) ** 2) - 1))
    return found


def levenberg_marquardt(residuals: Callable[[Array], Array], start: Array, rounds: int = 40) -> Array:
    """Minimise the sum of squares of `residuals` from `start`, with numerical derivatives."""
    values, damping = start.copy(), 1e-2
    error = residuals(values)
    for _ in range(rounds):
        jacobian = np.stack(
            [(residuals(values + step) - error) / 1e-4 for step in 1e-4 * np.eye(len(values))], 1
        )
        squares, slope = jacobian.T @ jacobian, jacobian.T @ error
        before = error @ error
        for _ in range(8):
            damped = squares + damping * np.diag(np.diag(squares) + 1e-9)
            trial = values + np.clip(np.linalg.solve(damped, -slope), -0.5, 0.5)
            found = residuals(trial)
            if found @ found < before:
                break
            damping *= 4
        else:
            return values
        values, error, damping = trial, found, max(damping / 5, 1e-6)
        if before - error @ error < 1e-5 * before:
            break
    return values
