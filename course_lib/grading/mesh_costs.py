"""What a mesh of the exercise `choose_mesh` costs: memory and time. Verdict side only.

The cost model is the one the notebook states: states and whole units in memory; gathers and reductions of
every unit one after the other, nothing hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_lib.cost.cluster import Cluster
from course_lib.cost.collectives import collective_time_s

Plain = Mapping[str, Any]
STATE_BYTES = 16  # of a parameter: bf16 parameter and gradient, float32 master weight and two moments
WIRE_BYTES = 2  # of a parameter or gradient: bf16


def memory_bytes(model: Plain, dp_shard: int) -> float:
    """Bytes a GPU needs: its part of all states, two whole units in bf16, activations."""
    unit = model["num_params"] / model["num_units"]
    states = STATE_BYTES * model["num_params"] / dp_shard
    return float(states + 2 * WIRE_BYTES * unit + model["activation_bytes"])


def step_time_s(
    model: Plain,
    cluster: Cluster,
    world_size: int,
    dp_shard: int,
    *,
    together: bool = False,
    neighbours: bool = False,
) -> float:
    """Seconds of communication of a step.

    Mistakes: `together`, gradients of all units in one all_reduce; `neighbours`, it joins ranks side by side.
    """
    unit_bytes = WIRE_BYTES * model["num_params"] / model["num_units"]
    shard, replicate = range(dp_shard), range(0, world_size, dp_shard)
    if neighbours:
        replicate = range(world_size // dp_shard)
    gather_s = collective_time_s(cluster, "all_gather", shard, unit_bytes)
    scatter_s = collective_time_s(cluster, "reduce_scatter", shard, unit_bytes)
    parts = 1 if together else model["num_units"]
    across_s = collective_time_s(
        cluster, "all_reduce", replicate, model["num_units"] * unit_bytes / dp_shard / parts
    )
    return float(model["num_units"] * (2 * gather_s + scatter_s) + parts * across_s)


def sizes_that_fit(model: Plain, cluster: Cluster, world_size: int) -> list[int]:
    """The divisors of the world size that are large enough as dp_shard."""
    divisors = [k for k in range(1, world_size + 1) if world_size % k == 0]
    return [k for k in divisors if memory_bytes(model, k) <= cluster.accelerator.memory_bytes]
