"""Clusters as plain data, so that a case can hold them and a program in a rank can build them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_lib.cost.cluster import Cluster, Link, Span
from course_lib.cost.hardware import accelerator


def make_cluster(plain: Mapping[str, Any]) -> Cluster:
    """Build a cluster of H100 from {"name", "spans": [{"name", "devices", "latency_s", "bytes_per_s"}]}."""
    spans = tuple(
        Span(
            name=span["name"],
            devices=span["devices"],
            link=Link(latency_s=span["latency_s"], bandwidth_bytes_per_s=span["bytes_per_s"]),
        )
        for span in plain["spans"]
    )
    return Cluster(name=plain["name"], accelerator=accelerator("H100"), spans=spans)
