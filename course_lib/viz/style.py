"""One look for all figures: colours that colour-blind readers can tell apart, on an opaque white card.

The card is opaque so that figures read the same in JupyterLab's dark theme. Colours are those of Okabe and
Ito (2008), "Color Universal Design"; a colour means one thing in the whole course.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PINK, YELLOW, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#8C8C8C"
INK, MUTED, FAINT, CARD = "#1F2430", "#6B7280", "#E5E7EB", "#FFFFFF"

PHASES = {"forward": BLUE, "backward": GREEN, "optimizer": PINK}
COMMUNICATION, WAITING = ORANGE, VERMILLION
MEMORY = {"parameters": BLUE, "gradients": GREEN, "optimizer": PINK, "activations": ORANGE, "other": GREY}
AXES = {"layer": BLUE, "batch": GREEN, "sequence": VERMILLION, "dim": PINK}

_RC: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": FAINT,
    "legend.frameon": False,
    "axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, PINK, VERMILLION, SKY, GREY]),
}


class CourseFigure(Figure):
    """A figure that a notebook shows when it is a cell's value, whichever matplotlib backend is active."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
        return buffer.getvalue()


@contextmanager
def course_style() -> Iterator[None]:
    """Draw in the course's style inside this block; global settings are left alone."""
    with mpl.rc_context(_RC):
        yield


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """Return an empty card; call it inside `course_style()`."""
    return CourseFigure(figsize=(width_inches, height_inches), facecolor=CARD, layout="constrained")
