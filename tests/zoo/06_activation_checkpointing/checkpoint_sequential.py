# Answers to checkpoint_sequential.

# %% setup
from functools import partial


def chain(part, x):
    for layer in part:
        x = layer(x)
    return x


# %% right: the last segment unchecked
def checkpoint_sequential(layers, x, segments, checkpoint):
    bounds = [i * len(layers) // segments for i in range(segments + 1)]
    for start, stop in zip(bounds[:-2], bounds[1:-1]):
        x = checkpoint(partial(chain, list(layers)[start:stop]), x)
    return chain(list(layers)[bounds[-2] :], x)


# %% right: taken from a queue, the longer ones last
def checkpoint_sequential(layers, x, segments, checkpoint):
    queue = list(layers)
    for left in range(segments, 0, -1):
        size = len(queue) // left
        part, queue = queue[:size], queue[size:]
        x = checkpoint(lambda x, part=part: chain(part, x), x)
    return x


# %% wrong segments, memory: one segment
# says: must be cut into
def checkpoint_sequential(layers, x, segments, checkpoint):
    return checkpoint(partial(chain, layers), x)


# %% wrong segments: every layer
# says: must be cut into
def checkpoint_sequential(layers, x, segments, checkpoint):
    for layer in layers:
        x = checkpoint(layer, x)
    return x


# %% wrong segments, memory: nothing is checkpointed
# says: it was never called
def checkpoint_sequential(layers, x, segments, checkpoint):
    return chain(layers, x)


# %% wrong segments: the rest is a segment of its own
def checkpoint_sequential(layers, x, segments, checkpoint):
    size = len(layers) // segments
    for start in range(0, len(layers), size):
        x = checkpoint(partial(chain, layers[start : start + size]), x)
    return x


# %% wrong segments, memory: the last segment takes the rest
def checkpoint_sequential(layers, x, segments, checkpoint):
    size = len(layers) // segments
    for start in range(0, size * segments, size):
        stop = start + size if start < size * (segments - 1) else len(layers)
        x = checkpoint(partial(chain, layers[start:stop]), x)
    return x


# %% wrong memory: every layer's result is kept
kept = []


def checkpoint_sequential(layers, x, segments, checkpoint):
    def run(part, x):
        for layer in part:
            x = layer(x)
            kept.append(x.detach())
        return x

    bounds = [i * len(layers) // segments for i in range(segments + 1)]
    for start, stop in zip(bounds[:-1], bounds[1:]):
        x = checkpoint(partial(run, layers[start:stop]), x)
    return x


# %% wrong values: the loop's variable is looked up again
def checkpoint_sequential(layers, x, segments, checkpoint):
    for i in range(segments):
        part = list(layers)[i * len(layers) // segments : (i + 1) * len(layers) // segments]
        x = checkpoint(lambda x: chain(part, x), x)
    return x


# %% wrong values: does nothing
def checkpoint_sequential(layers, x, segments, checkpoint):
    return x


# %% wrong values: the remainder is left out
# change: (i < longer) -> 0
# %% wrong values: torch's own
def checkpoint_sequential(layers, x, segments, checkpoint):
    from torch.utils.checkpoint import checkpoint_sequential as borrowed

    return borrowed(layers, segments, x, use_reentrant=False)
