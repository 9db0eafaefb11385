"""`course plan`: the best layouts of a training run, why, and settings to take away."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

import typer


def plan(
    model: Annotated[
        str,
        typer.Option(help="a name, a config.json of Hugging Face, a .toml file; list: names"),
    ] = "llama3-405b",
    cluster: Annotated[
        str, typer.Option(help="a name or a .toml file with [cluster]; list: all names")
    ] = "meta",
    gpu: Annotated[
        str, typer.Option(help='servers of a GPU instead of a cluster: b200, with --network "400 Gb/s"')
    ] = "",
    gpus: Annotated[str, typer.Option(help="number of GPUs")] = "16384",
    seq: Annotated[str, typer.Option(help="tokens of a sequence: 8192 or 8K")] = "8192",
    tokens: Annotated[
        str, typer.Option(help="tokens of a step, all GPUs together: 16M is 16,777,216")
    ] = "16M",
    memory: Annotated[str, typer.Option(help='what if a GPU had "192 GB"; empty: what it has')] = "",
    network: Annotated[
        str, typer.Option(help='what if the network gave a GPU "25 GB/s" or "200 Gb/s"; empty: what it gives')
    ] = "",
    precision: Annotated[str, typer.Option(help="what a block's matrices multiply in: bf16 or fp8")] = "bf16",
    grads: Annotated[str, typer.Option(help="what gradients are kept and reduced in: fp32 or bf16")] = "fp32",
    tp_overlap: Annotated[
        str,
        typer.Option(help="tensor-parallel collectives beside matmuls: none, ring or pipe (NVIDIA: ring)"),
    ] = "none",
    schedule: Annotated[str, typer.Option(help="1f1b (interleaved or not) or zb-h1")] = "1f1b",
    top: Annotated[int, typer.Option(help="how many layouts to print", min=1)] = 10,
    explain: Annotated[
        str, typer.Option(metavar="LAYOUT", help='price a layout of your own: "tp=8,pp=16,v=7"')
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print plain data")] = False,
    list_names: Annotated[bool, typer.Option("--list", help="print the models and clusters known")] = False,
    emit: Annotated[
        str,
        typer.Option(
            help="print the best layout as settings of torchtitan, megatron, megatron-bridge, nanotron, ..."
        ),
    ] = "",
) -> None:
    """Rank the layouts of a model on a cluster.

    By predicted tokens/s: tp, cp, pp, ep, data parallel, recomputation.
    """
    from course_lib.planner import Request, report
    from course_lib.planner import plan as search
    from course_lib.planner.emit import emit as settings
    from course_lib.planner.named import cluster_named, gpus_named, known, model_named, notes_on
    from course_lib.planner.request import count_of, memory_of, with_network

    if list_names or "list" in (model, cluster, gpu):
        typer.echo(known())
        return
    name, config = model_named(model)
    num_gpus = count_of(gpus, "--gpus")
    on = gpus_named(gpu, num_gpus) if gpu else cluster_named(cluster, num_gpus)
    if memory:
        on = replace(on, accelerator=on.accelerator.replace(memory_bytes=memory_of(memory)))
    if network:
        on = with_network(on, network)
    request = Request(
        config=config,
        cluster=on,
        num_gpus=num_gpus,
        seq_len=count_of(seq, "--seq"),
        tokens_per_step=count_of(tokens, "--tokens"),
        name=name,
        precision=precision,
        schedule=schedule,
        grads=grads,
        notes=notes_on(model),
        tp_overlap=tp_overlap,
    )
    found = report.priced(explain, request) if explain else search(request)
    if emit:
        row = report.row_of(found, 0)
        for said in [*report.too_large(found, 0), *row["warnings"]]:
            typer.echo(f"warning: {said}", err=True)
        typer.echo(settings(row["layout"], request, emit))
    elif as_json:
        rows = [report.row_of(found, i) for i in range(min(top, len(found.table)))]
        typer.echo(json.dumps({"layouts": rows, "left_out": found.left_out}, indent=1))
    elif explain:
        typer.echo(f"{report.explain(found, 0)}\n{report.against_best(found)}")
    else:
        typer.echo(report.summary(found, top))
