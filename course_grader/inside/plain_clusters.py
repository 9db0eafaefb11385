"""Clusters as plain data, so that a case can hold them and a program in a rank can build them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_lib.cost.cluster import Cluster, Link, Span
from course_lib.cost.hardware import accelerator


def make_cluster(plain: Mapping[str, Any]) -> Cluster:
    """Build a cluster of H100 from {"name", "spans": [{"name", "devices", "latency_s", "bytes_per_s"}]}.

    "memory_bytes" gives each GPU another memory.
    """
    spans = tuple(
        Span(
            name=span["name"],
            devices=span["devices"],
            link=Link(latency_s=span["latency_s"], bandwidth_bytes_per_s=span["bytes_per_s"]),
        )
        for span in plain["spans"]
    )
    other = {"memory_bytes": plain["memory_bytes"]} if "memory_bytes" in plain else {}
    return Cluster(name=plain["name"], accelerator=accelerator("H100").replace(**other), spans=spans)
