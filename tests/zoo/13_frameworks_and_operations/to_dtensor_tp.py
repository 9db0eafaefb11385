# Answers to to_dtensor_tp.

# %% setup
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)


# %% right: one plan with names of all blocks
def to_dtensor_tp(model, mesh):
    styles = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
    numbers = range(len(model.blocks))
    return parallelize_module(model, mesh, {f"blocks.{i}.{k}": s for i in numbers for k, s in styles.items()})


# %% right: the shared input prepared once
def to_dtensor_tp(model, mesh):
    whole = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
    for block in model.blocks:
        plan = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
        parallelize_module(block, mesh, plan)
    del whole
    return model


# %% right: a pattern instead of names
def to_dtensor_tp(model, mesh):
    plan = {
        "blocks.*.gate_proj": ColwiseParallel(),
        "blocks.*.up_proj": ColwiseParallel(),
        "blocks.*.down_proj": RowwiseParallel(),
    }
    return parallelize_module(model, mesh, plan)


# %% wrong bytes: every output gathered
# says: A column layer leaves its output cut
# change: "gate_proj": ColwiseParallel() -> "gate_proj": ColwiseParallel(output_layouts=Replicate())
# change: "up_proj": ColwiseParallel() -> "up_proj": ColwiseParallel(output_layouts=Replicate())
# change: RowwiseParallel() -> RowwiseParallel(input_layouts=Replicate())
# %% wrong bytes: all columns
# says: only the sum at its end travels
# change: "gate_proj": ColwiseParallel() -> "gate_proj": ColwiseParallel(output_layouts=Replicate())
# change: "up_proj": ColwiseParallel() -> "up_proj": ColwiseParallel(output_layouts=Replicate())
# change: RowwiseParallel() -> ColwiseParallel(output_layouts=Replicate())
# %% wrong bytes: rows first
# change: "gate_proj": ColwiseParallel() -> "gate_proj": RowwiseParallel(input_layouts=Replicate())
# change: "up_proj": ColwiseParallel() -> "up_proj": RowwiseParallel(input_layouts=Replicate())
# change: RowwiseParallel()} -> ColwiseParallel(output_layouts=Replicate())}
# %% wrong memory: every rank computes all
# says: a rank may keep
# change: parallelize_module(block, mesh, plan) -> pass
# %% wrong memory: the last block stays whole
# says: a rank may keep
# change: for block in model.blocks: -> for block in model.blocks[:-1]:
# %% wrong memory: a whole copy in an attribute
# says: when the answer returns
# change: plan = { -> model.kept = [p.detach().clone() for p in model.parameters()]; plan = {
# %% wrong values: over the world, not over the mesh
# change: block, mesh, plan -> block, dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)), plan
# %% wrong values: nothing is returned for the head to use
# says: must return the model
# change: return model -> return model.blocks
# %% wrong values: asks the library
# says: closed
def to_dtensor_tp(model, mesh):
    from course_lib.parallel.tensor import ColumnParallelLinear

    return ColumnParallelLinear(model, mesh)
