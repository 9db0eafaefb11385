"""The kernel that a learner works in, if this is one, and the cells it has run."""

from __future__ import annotations

from typing import Any


def shell() -> Any:
    """Return the IPython shell this runs in, None outside of one."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return None
    return get_ipython()  # type: ignore[no-untyped-call,unused-ignore]


def in_notebook() -> bool:
    """Say whether this is a kernel or IPython, where a learner works."""
    return shell() is not None


def executed_cells(symbol: str, obj: Any) -> list[str]:
    """Return the cells that this kernel has run, as typed, in order; [] if its `symbol` is not `obj`."""
    kernel = shell()
    if kernel is None or kernel.user_ns.get(symbol) is not obj:
        return []
    return [str(cell) for cell in kernel.history_manager.input_hist_raw]
