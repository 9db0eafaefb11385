"""The planner page's table: `course plan` asked once for each choice on the page."""

from __future__ import annotations

from typing import Any

from course_lib.planner import Request, plan, report
from course_lib.planner.named import cluster_named, model_named
from course_lib.planner.search import RESERVED_BYTES

MODELS = ("llama3-8b", "llama3-70b", "llama3-405b")
CLUSTERS = {"dgx-h100": "H100, 3.2 Tbit/s per server", "meta": "H100, Meta's 24,000-GPU network"}
GPUS = (64, 512, 4096, 16384)
TOKENS_OF_STEP = {64: 2**20, 512: 2**22, 4096: 2**24, 16384: 2**24}
SEQUENCES = (8192, 131072)
SHOWN = 5


def table() -> dict[str, Any]:
    """Return the choices, and for each combination its best layouts or why there is none."""
    plans = {
        f"{model}/{cluster}/{gpus}/{seq}": _of(model, cluster, gpus, seq)
        for model in MODELS
        for cluster in CLUSTERS
        for gpus in GPUS
        for seq in SEQUENCES
    }
    return {"models": MODELS, "clusters": CLUSTERS, "gpus": GPUS, "sequences": SEQUENCES, "plans": plans}


def _of(model: str, cluster: str, gpus: int, seq: int) -> dict[str, Any]:
    name, config = model_named(model)
    request = Request(
        config=config,
        cluster=cluster_named(cluster, gpus),
        num_gpus=gpus,
        seq_len=seq,
        tokens_per_step=TOKENS_OF_STEP[gpus],
        name=name,
    )
    tokens = TOKENS_OF_STEP[gpus] // 2**20
    command = f"course plan --model {model} --cluster {cluster} --gpus {gpus} --seq {seq} --tokens {tokens}M"
    try:
        found = plan(request)
    except ValueError as error:
        return {"command": command, "none": str(error)}
    rows = [report.row_of(found, i) for i in range(min(SHOWN, len(found.table)))]
    for row in rows:
        row["memory_bytes"]["CUDA and NCCL"] = RESERVED_BYTES
    return {
        "command": command,
        "layouts": rows,
        "memory_gb": request.cluster.accelerator.usable_memory_bytes / 1e9,
    }
