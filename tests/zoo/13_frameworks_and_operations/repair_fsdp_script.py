# Answers to repair_fsdp_script.

# %% setup


# %% right: as one unit
# change: ("shuffle=True", "sampler=sampler"), -> ("shuffle=True", "sampler=sampler"), ("    fully_shard(model[0], mesh=mesh)\n", ""),
# %% right: float32
# change: ("shuffle=True", "sampler=sampler"), -> ("shuffle=True", "sampler=sampler"), ("torch.float64", "torch.float32"), ("x.to(kind)", "x.to(kind).float()"), ("y.to(kind)", "y.to(kind).float()"),
# %% right: the group first, no mesh
# change: ("(8,)", '(int(os.environ["WORLD_SIZE"]),)'), -> ("mesh = init_device_mesh(kind, (8,))", 'dist.init_process_group("nccl" if args.gpus else "gloo")'), (", mesh=mesh", ""),
# %% right: drawn again with one seed
# change: ("args.seed + rank", "args.seed"), -> ("    model.to(", "    torch.manual_seed(args.seed)\n    for layer in (model[0], model[2]):\n        layer.reset_parameters()\n    model.to("),
# %% wrong values: nothing is repaired
# change: return text -> return BROKEN_SCRIPT
# %% wrong values: each process draws its own weights
# says: fully_shard sends none
# change: ("args.seed + rank", "args.seed"), ->
# %% wrong values: the optimizer has the tensors from before
# says: nothing is learned
# change: (made, ""), -> ("x", "x"),
# change: mesh=mesh)\n" + made), -> mesh=mesh)\n"),
# %% wrong values: a layer belongs to no unit
# says: full_tensor
# change: \n    fully_shard(model, mesh=mesh)\n" + made), -> \n" + made),
# %% wrong values: that layer is reported all the same
# change: \n    fully_shard(model, mesh=mesh)\n" + made), -> \n" + made), ("p.full_tensor()", "getattr(p, 'full_tensor', lambda p=p: p)()"),
# %% wrong values: two processes, whatever torchrun says
# change: ("(8,)", '(int(os.environ["WORLD_SIZE"]),)') -> ("(8,)", "(2,)")
# %% wrong values: only rank 0 reports
# change: ("    if rank == 0:\n", "    if True:\n"), ->
# %% wrong values: shards are reported
# change: ("    if rank == 0:\n", "    if True:\n"), -> ("    if rank == 0:\n", "    if True:\n"), ("full_tensor", "to_local"),
# %% wrong values: gradients are averaged again
# says: once more
# change: ("shuffle=True", "sampler=sampler"), -> ("shuffle=True", "sampler=sampler"), ("loss.backward()", "(loss / dist.get_world_size()).backward()"),
# %% wrong values: nothing is sharded
# says: no gradient crosses
# change: ("shuffle=True", "sampler=sampler"), -> ("shuffle=True", "sampler=sampler"), ("    fully_shard(model[0], mesh=mesh)\n    fully_shard(model, mesh=mesh)\n", ""), (".full_tensor()", ""),
# %% wrong order: every epoch in the same order
# says: set_epoch
# change: ("        for index", "        sampler.set_epoch(epoch)\n        for index"), ->
# %% wrong order: the loader shuffles for itself
# change: ("shuffle=True", "sampler=sampler"), ->
# %% wrong values: no text
# says: text of the script
# change: return text -> return text.encode()
