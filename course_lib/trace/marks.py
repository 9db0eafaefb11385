"""Named points that a program puts into the trace of its rank."""

from collections.abc import Callable

marker: Callable[[str], None] | None = None  # set by the recorder of this process while it records


def mark(name: str) -> None:
    """Put a named point into this rank's trace, after a garbage collection; nothing when untraced."""
    if marker is not None:
        marker(name)
