"""The course's picture: a transformer's four axes, and which parallelism splits each.

Every lab shows it with its own part lit. The activations are a box of batch x sequence x dim; the layers it
passes are the fourth axis.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon

from course_lib.viz import style

THESIS = "Split the computation, then overlap the communication."
SPLITS = {
    "layer": ("PP", "pipeline parallel"),
    "batch": ("DP", "data parallel"),
    "sequence": ("CP", "context parallel"),
    "dim": ("TP", "tensor parallel"),
}
_SIZE = {"sequence": 4.2, "batch": 2.6, "dim": 2.4}  # of the box, in drawing units
_DEPTH = (0.52, 0.42)  # where a unit of depth goes on paper
_NUM_LAYERS = 4
_ORIGIN = (1.6, 1.3)
_STACK = (10.6, 0.9)
Point = tuple[float, float]


def draw_axes(lit: Sequence[str] = tuple(SPLITS)) -> Figure:
    """Draw the four axes with those in `lit` in colour and cut into shares.

    Args:
        lit: any of "layer", "batch", "sequence", "dim"; all by default, () for none.

    Raises: ValueError for another name.
    """
    unknown = [name for name in lit if name not in SPLITS]
    if unknown:
        raise ValueError(f"an axis must be one of {list(SPLITS)}; got {unknown}. Correct the name.")
    with style.course_style():
        figure = style.new_figure(9.6, 3.9, _alt(lit))
        ax = figure.subplots()
        _draw_box(ax, lit)
        _draw_layers(ax, "layer" in lit)
        _draw_labels(ax, lit)
        figure.suptitle(THESIS, fontsize=13, fontweight="bold")
        ax.set_aspect("equal")
        ax.set_xlim(-1.6, 16.2)
        ax.set_ylim(-0.2, 5.5)
        ax.axis("off")
    return figure


def _alt(lit: Sequence[str]) -> str:
    cuts = "; ".join(f"{name} is cut by {SPLITS[name][1]} ({SPLITS[name][0]})" for name in lit)
    return (
        "A transformer's four axes: a box of activations with batch, sequence and dim as its sides, and the "
        f"stack of layers it passes through. In colour: {cuts or 'nothing'}. Above it: {THESIS}"
    )


def _paper(sequence: float, batch: float, dim: float) -> Point:
    """Where a point of the box lies on paper; batch runs downwards, dim into the page."""
    x, y = _ORIGIN
    return x + sequence + dim * _DEPTH[0], y + _SIZE["batch"] - batch + dim * _DEPTH[1]


def _draw_box(ax: Axes, lit: Sequence[str]) -> None:
    """Draw the pieces back to front, with a gap along each axis that is cut."""
    cut = [name for name in _SIZE if name in lit]
    shares = {name: (4 if len(cut) == 1 else 2) if name in cut else 1 for name in _SIZE}
    color = style.AXES[cut[0]] if len(cut) == 1 else style.SKY if cut else style.GREY
    for k in reversed(range(shares["dim"])):
        for j in reversed(range(shares["batch"])):
            for i in range(shares["sequence"]):
                ranges = [_share(n, p, shares[n]) for n, p in (("sequence", i), ("batch", j), ("dim", k))]
                _draw_piece(ax, ranges, color, strength=1.0 - 0.18 * ((i + j + k) % 4) if cut else 0.35)


def _share(name: str, position: int, num_shares: int) -> Point:
    """Start and end of one share of an axis, shrunk to leave a gap."""
    step = _SIZE[name] / num_shares
    gap = 0.09 * _SIZE[name] / _SIZE["batch"] if num_shares > 1 else 0.0
    return position * step + gap / 2, (position + 1) * step - gap / 2


def _draw_piece(ax: Axes, ranges: list[Point], color: str, strength: float) -> None:
    (s0, s1), (b0, b1), (d0, d1) = ranges
    front = [_paper(s0, b0, d0), _paper(s1, b0, d0), _paper(s1, b1, d0), _paper(s0, b1, d0)]
    top = [_paper(s0, b0, d0), _paper(s1, b0, d0), _paper(s1, b0, d1), _paper(s0, b0, d1)]
    side = [_paper(s1, b0, d0), _paper(s1, b1, d0), _paper(s1, b1, d1), _paper(s1, b0, d1)]
    for face, alpha in ((side, 0.55), (top, 0.35), (front, 0.8)):
        ax.add_patch(Polygon(face, facecolor="white", edgecolor="none"))
        ax.add_patch(Polygon(face, facecolor=color, alpha=alpha * strength, edgecolor="none"))
        ax.add_patch(Polygon(face, facecolor="none", edgecolor="white", linewidth=0.8))


def _draw_layers(ax: Axes, is_lit: bool) -> None:
    x, y = _STACK
    color = style.AXES["layer"] if is_lit else style.GREY
    for i in range(_NUM_LAYERS):
        low = y + i * (1.06 if is_lit else 0.96)
        strength = 0.85 - 0.15 * i if is_lit else 0.28
        box = FancyBboxPatch((x, low), 2.6, 0.78, boxstyle="round,pad=0.02,rounding_size=0.12")
        box.set(facecolor=color, alpha=strength, edgecolor="none")
        ax.add_patch(box)
        ax.text(x + 1.3, low + 0.39, f"layer {i + 1}", ha="center", va="center", fontsize=9)
    _arrow(ax, (7.5, 2.0), (x - 0.3, 1.3), style.MUTED, curve=0.15)
    ax.text(8.9, 2.15, "through\nthe layers", ha="center", color=style.MUTED, fontsize=9)


def _draw_labels(ax: Axes, lit: Sequence[str]) -> None:
    width, height, depth = _SIZE["sequence"], _SIZE["batch"], _SIZE["dim"]
    arrows = {
        "batch": (_paper(-0.35, 0, 0), _paper(-0.35, height, 0), (-0.15, 0.0), "right"),
        "sequence": (_paper(0, height + 0.35, 0), _paper(width, height + 0.35, 0), (0.0, -0.5), "center"),
        "dim": (_paper(-0.35, -0.1, 0.1), _paper(-0.35, -0.1, depth), (-0.45, 0.35), "right"),
        "layer": ((13.6, 0.9), (13.6, 5.0), (0.2, 0.0), "left"),
    }
    ax.text(*_paper(width / 2, -0.15, depth), "activations", ha="center", color=style.MUTED, fontsize=9)
    for name, (begin, end, (dx, dy), side) in arrows.items():
        color = style.AXES[name] if name in lit else style.GREY
        _arrow(ax, begin, end, color)
        short, full = SPLITS[name]
        x, y = (begin[0] + end[0]) / 2 + dx, (begin[1] + end[1]) / 2 + dy
        ax.text(x, y, f"{name} → {short}", color=color, ha=side, va="center", fontsize=12, fontweight="bold")
        words = style.INK if name in lit else color
        ax.text(x, y - 0.42, full, color=words, ha=side, va="center", fontsize=9)


def _arrow(ax: Axes, begin: Point, end: Point, color: str, curve: float = 0.0) -> None:
    shape = f"arc3,rad={curve}"
    arrow = FancyArrowPatch(begin, end, arrowstyle="-|>", mutation_scale=14, connectionstyle=shape)
    arrow.set(color=color, linewidth=2)
    ax.add_patch(arrow)
