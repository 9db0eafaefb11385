"""Write a trace as Chrome JSON, which Perfetto and chrome://tracing show.

Each rank is a process with tracks for compute, for the communication of each group (from launch to wait), for
waits, and a counter of live bytes by category. Arrows lead from each launch to its wait.
Format: the "Trace Event Format" document of the Chromium project; times in microseconds.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.comm.events import Backward, Compute, Launch, Mark, Wait

if TYPE_CHECKING:
    from course_lib.comm.trace import RankTrace, Trace

COMPUTE, WAITS, FIRST_GROUP = 1, 2, 10
Row = dict[str, Any]


def write_chrome_json(trace: "Trace", path: str | Path) -> Path:
    """Write `trace` to `path` and return it; missing folders are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(chrome_json(trace), separators=(",", ":")), encoding="utf-8")
    return path


def chrome_json(trace: "Trace") -> dict[str, Any]:
    """Return `trace` as the object of the Trace Event Format."""
    rows = [row for rank in trace.ranks for row in _rank_rows(rank)]
    return {"traceEvents": rows, "displayTimeUnit": "ms"}


def _rank_rows(rank: "RankTrace") -> list[Row]:
    rows = _names(rank)
    for event in rank.events:
        if isinstance(event, Compute):
            details = {
                k: getattr(event, k) for k in ("phase", "read_bytes", "written_bytes", "flops", "dtype")
            }
            rows.append(_span(rank, COMPUTE, event.name, event.t_s, event.duration_s, details))
        elif isinstance(event, Mark):
            rows.append(_point(rank, event.name, event.t_s))
        elif isinstance(event, Backward):
            rows.append(_point(rank, "backward begins" if event.begins else "backward ends", event.t_s))
    rows += _comm_rows(rank)
    for t_s, live in rank.live():
        row = {"ph": "C", "name": "live bytes", "pid": rank.rank, "ts": _us(t_s), "args": dict(live)}
        rows.append(row)
    return rows


def _comm_rows(rank: "RankTrace") -> list[Row]:
    tracks = _group_tracks(rank)
    waits = {w.launch_id: w for w in rank.waits()}
    rows = []
    for call in rank.launches():
        wait = waits.get(call.id)
        end_s = wait.t_s + wait.duration_s if wait else call.t_s
        rows.append(_span(rank, tracks[_track(call)], call.op, call.t_s, end_s - call.t_s, _details(call)))
        if wait is not None:
            rows.append(_span(rank, WAITS, f"wait {call.op}", wait.t_s, wait.duration_s, {"launch": call.id}))
            rows += _arrow(rank, call, wait, tracks[_track(call)])
    return rows


def _track(call: Launch) -> str:
    """One stream per group, and one per ordered pair for point-to-point."""
    if call.op in ("send", "recv"):
        return f"{call.src if call.src is not None else 'any'} -> {call.dst}"
    return str(call.group)


def _group_tracks(rank: "RankTrace") -> dict[str, int]:
    names = dict.fromkeys(_track(call) for call in rank.launches())
    return {name: FIRST_GROUP + i for i, name in enumerate(names)}


def _details(call: Launch) -> Row:
    file, line, function = call.site
    return {
        "group": str(call.group),
        "ordinal": call.ordinal,
        "bytes": call.bytes_,
        "dtype": call.dtype,
        "shapes": str(list(map(list, call.shapes))),
        "reduce_op": call.reduce_op,
        "phase": call.phase,
        "line": f"{Path(file).name}:{line} in {function}",
    }


def _arrow(rank: "RankTrace", call: Launch, wait: Wait, track: int) -> list[Row]:
    common = {"name": "launch to wait", "cat": "comm", "pid": rank.rank, "id": rank.rank * 10**6 + call.id}
    start = {**common, "ph": "s", "tid": track, "ts": _us(call.t_s)}
    return [start, {**common, "ph": "f", "bp": "e", "tid": WAITS, "ts": _us(wait.t_s)}]


def _span(rank: "RankTrace", track: int, name: str, t_s: float, duration_s: float, args: Row) -> Row:
    row = {"ph": "X", "name": name, "pid": rank.rank, "tid": track, "ts": _us(t_s), "dur": _us(duration_s)}
    return {**row, "args": args}


def _point(rank: "RankTrace", name: str, t_s: float) -> Row:
    return {"ph": "i", "name": name, "pid": rank.rank, "tid": COMPUTE, "ts": _us(t_s), "s": "t"}


def _names(rank: "RankTrace") -> list[Row]:
    tracks = {"compute": COMPUTE, "waits": WAITS}
    tracks |= {f"comm {name}": track for name, track in _group_tracks(rank).items()}
    rows: list[Row] = [_meta(rank, "process_name", 0, {"name": f"rank {rank.rank}"})]
    rows.append(_meta(rank, "process_sort_index", 0, {"sort_index": rank.rank}))
    for name, track in tracks.items():
        rows.append(_meta(rank, "thread_name", track, {"name": name}))
        rows.append(_meta(rank, "thread_sort_index", track, {"sort_index": track}))
    return rows


def _meta(rank: "RankTrace", name: str, track: int, args: Row) -> Row:
    return {"ph": "M", "name": name, "pid": rank.rank, "tid": track, "args": args}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
