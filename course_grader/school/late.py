"""What submitting late costs: nbgrader's plugin for it, set by the table `[late]` of `class.toml`.

Without that table a late submission is marked as late and keeps its points. Extensions in the
gradebook count before all of this.
"""

from __future__ import annotations

import math

from nbgrader.plugins import LateSubmissionPlugin
from traitlets import Float


class LatePolicy(LateSubmissionPlugin):  # type: ignore[misc]
    """A share of the points for each day begun after the grace period."""

    grace_h = Float(0.0, help="hours after the due date that cost nothing").tag(config=True)
    percent_a_day = Float(0.0, help="percent of the points reached, for each day begun").tag(config=True)
    most_percent = Float(100.0, help="percent that are never exceeded").tag(config=True)

    def late_submission_penalty(
        self, student_id: str, score: float, total_seconds_late: float
    ) -> float | None:
        """Return the points to take off, None for none."""
        del student_id
        over_s = total_seconds_late - self.grace_h * 3600
        if over_s <= 0 or not self.percent_a_day:
            return None
        percent = min(self.most_percent, self.percent_a_day * math.ceil(over_s / 86_400))
        return float(score) * percent / 100
