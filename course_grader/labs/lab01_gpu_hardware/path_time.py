"""`path_time`: a message on a path of one or two links, in pieces.

Longer than 120 lines: the path and the pieces are played here again, with ten slips.
"""

from typing import Any

import numpy as np

from course_grader.expected.samples import samples, separating
from course_grader.parts.numbers import Formula, Numbers, Point
from course_grader.types import Exercise

UNITS = {"bytes/s": 1, "bytes/s both ways": 2, "bits/s": 8, "bits/s both ways": 16}
"""How much larger the printed number is than bytes/s one way."""
KINDS = ("one link", "whole", "pieces", "pieces")


def _link(rng: np.random.Generator, one_way: float, unit: str = "") -> dict[str, Any]:
    unit = unit or str(rng.choice(list(UNITS)))
    latency_s = float(10 ** rng.uniform(-6, -4.5))
    return {"bandwidth": float(f"{one_way * UNITS[unit]:.4g}"), "unit": unit, "latency_s": latency_s}


def _one(rng: np.random.Generator, place: int) -> dict[str, Any]:
    """A message of the kind whose turn it is; every second network is the faster link."""
    n, kind = int(rng.choice([4, 6, 8, 16])), KINDS[place % 4]
    servers = [int(v) for v in rng.choice(6, 2, replace=False)]
    seats = [int(v) for v in rng.choice(n, 2, replace=False)]
    if kind == "one link":
        inside = place % 8 == 0
        servers, seats = ([servers[0]] * 2, seats) if inside else (servers, [seats[0]] * 2)
    elif place % 3 == 0:  # neighbours by number, across a border
        servers, seats = [2, 3], [n - 1, 0]
    units = ["", ""]
    if kind in ("one link", "whole"):  # each part meets each unit, and never one for both links
        turn = 1 + place // 4 % 3
        units = [list(UNITS)[i] for i in (turn, (turn + 1) % 4)][:: -1 if place // 4 % 2 else 1]
    first, second = float(10 ** rng.uniform(10, 11.7)), float(rng.uniform(1.2, 6))
    network = first * second if place % 2 else first / second
    size = int(10 ** rng.uniform(4, 8))
    pieces = 1 if kind == "whole" else int(rng.integers(3, 60))
    return {
        "size_bytes": size,
        "piece_bytes": int(size / (pieces - float(rng.uniform(0.2, 0.8)))) + 1,
        "a": servers[0] * n + seats[0],
        "b": servers[1] * n + seats[1],
        "cluster": {
            "name": "unseen cluster",
            "gpus_per_server": n,
            "inside": _link(rng, first, units[0]),
            "network": _link(rng, network, units[1]),
        },
    }


def _draw(rng: np.random.Generator, count: int) -> list[dict[str, Any]]:
    rules = [lambda p, s=slip: f"{solve(p, **s):.4g}" for slip in SLIPS.values()]
    return separating(_one, rules, lambda p, got: got != f"{solve(p):.4g}", rng, count)


EXERCISE = Exercise(
    order=5,
    title="A path over two links",
    minutes=30,
    difficulty=3,
    importance=4,
    lines=16,
    points={"one_link": 1.0, "two_links": 0.5, "pieces": 1.5},
    task="Write a function that returns the seconds in which a message gets from GPU a to GPU b, by "
    "the rules above.",
    graded={
        "one_link": "Where one link joins the two.",
        "two_links": "Where two do, and the message is one piece.",
        "pieces": "Where two do, and the message travels in pieces.",
    },
    details="12 messages on clusters you have not seen (hidden: 40), within 0.1%: up to 60 pieces, the last "
    "one smaller, servers of 4 to 16 GPUs, all four units.",
    signature="(size_bytes, piece_bytes, a, b, cluster)",
    forbids=("cost model",),
    scenario=samples(stream=14, draw=_draw),
    hints=(
        "GPU 7 and GPU 8 are neighbours by number. In which servers are they, and which card of its server "
        "is beside each?",
        "Draw a row for each link and time to the right. Where is the second piece in the first row, "
        "and when may it begin in the second?",
        "Keep two kinds of times: since when a piece lies at the end of a link, and since when a link is "
        "free. A "
        "piece begins at the later of the two. Latency delays its arrival, and does not keep the link.",
    ),
)

OPEN = [12]
HIDDEN = [28]


def solve(
    p: Point,
    by_distance: bool = False,
    direct: bool = False,
    reads_bits: bool = True,
    reads_both: bool = True,
    latencies: float = 1,
    in_pieces: bool = True,
    last_is_whole: bool = False,
    holds_link: bool = False,
    fills: bool = True,
) -> float:
    """Seconds; with other arguments, what a slip makes of them."""
    links = _path(p, by_distance, direct)
    rates = [link["bandwidth"] / _per_byte(link["unit"], reads_bits, reads_both) for link in links]
    size, piece = p["size_bytes"], p["piece_bytes"] if in_pieces else p["size_bytes"]
    if not fills:
        return float(size / min(rates) + sum(link["latency_s"] for link in links))
    sizes = [min(piece, size - start) for start in range(0, size, piece)]
    if last_is_whole:
        sizes[-1] = piece
    free_s, arrives_s = [0.0] * len(links), 0.0
    for piece_bytes in sizes:
        arrives_s = 0.0
        for i, (link, rate) in enumerate(zip(links, rates, strict=True)):
            free_s[i] = max(arrives_s, free_s[i]) + piece_bytes / rate
            arrives_s = free_s[i] + latencies * link["latency_s"]
            if holds_link:
                free_s[i] = arrives_s
    return arrives_s


def _path(p: Point, by_distance: bool = False, direct: bool = False) -> list[dict[str, Any]]:
    cluster, n = p["cluster"], p["cluster"]["gpus_per_server"]
    inside, network = cluster["inside"], cluster["network"]
    if (abs(p["a"] - p["b"]) < n) if by_distance else (p["a"] // n == p["b"] // n):
        return [inside]
    return [network] if direct or p["a"] % n == p["b"] % n else [inside, network]


def _per_byte(unit: str, reads_bits: bool, reads_both: bool) -> int:
    return (8 if "bits" in unit and reads_bits else 1) * (2 if "both" in unit and reads_both else 1)


SLIPS: dict[str, dict[str, Any]] = {
    "bits are taken for bytes": {"reads_bits": False},
    "a bandwidth for both ways is taken for one way": {"reads_both": False},
    "`unit` is not read": {"reads_bits": False, "reads_both": False},
    "the latency is left out": {"latencies": 0},
    "the latency is paid there and back": {"latencies": 2},
    "GPUs near by number are taken for one server: 7 and 8 are in different ones": {"by_distance": True},
    "every message to another server takes the network alone": {"direct": True},
    "the second link waits for the whole message: pieces go on as they arrive": {"in_pieces": False},
    "the last piece is as large as the others: it is what is left": {"last_is_whole": True},
    "latency keeps a link busy: the next piece follows at once": {"holds_link": True},
    "the slower link alone counts: the first or last piece crosses the other one, too": {"fills": False},
}


def _mistakes(p: Point) -> dict[str, float | str]:
    return {words: solve(p, **slip) for words, slip in SLIPS.items()}


def _kind(p: Point) -> str:
    if len(_path(p)) == 1:
        return "one_link"
    return "pieces" if p["piece_bytes"] < p["size_bytes"] else "two_links"


def _words(p: Point) -> str:
    cluster = p["cluster"]
    links = "; ".join(
        f"{name}: {cluster[name]['bandwidth']:.5g} {cluster[name]['unit']}, "
        f"{cluster[name]['latency_s']:.3g} s"
        for name in ("inside", "network")
    )
    return (
        f"{p['size_bytes']:,} bytes in pieces of {p['piece_bytes']:,} from GPU {p['a']} to GPU {p['b']}; "
        f"{cluster['gpus_per_server']} GPUs per server; {links}"
    )


FORMULA = Formula(want=solve, mistakes=_mistakes, unit="s")


def _part(name: str) -> Numbers:
    return Numbers(
        part=name, formula=FORMULA, only=lambda p: _kind(p) == name, name="the time", describe=_words
    )


PARTS = [_part(name) for name in ("one_link", "two_links", "pieces")]
