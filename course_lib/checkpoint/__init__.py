"""Save and load what is sharded: by parameter, so that any number of ranks can read what any other saved.

`fsdp` for models and their optimizers, `zero` for ZeroOptimizer: each has `save` and `load_`, whose files
`files` checks. `pieces` and `state` are what both are made of. Production code:
torch.distributed.checkpoint, which plans who writes which file, and writes beside the training.
"""
