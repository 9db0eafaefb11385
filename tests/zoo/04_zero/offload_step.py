# Answers to offload_step.

# %% setup
import torch


# %% right: a generator one gradient ahead
def offload_step(params, store, update):
    def gradients():
        ahead = None
        for param in params:
            now, ahead = ahead, store.down(param.grad)
            if now is not None:
                yield now.wait()
        yield ahead.wait()

    sent = []
    for state, param, grad in zip(store.state, params, gradients()):
        update(state, grad)
        sent.append(store.up(state["weight"], param))
    for transfer in sent:
        transfer.wait()


# %% right: from the last parameter to the first
def offload_step(params, store, update):
    jobs = list(zip(params, store.state))[::-1]
    queue, up = [store.down(jobs[0][0].grad)], []
    for i, (param, state) in enumerate(jobs):
        queue += [store.down(p.grad) for p, _ in jobs[i + 1 : i + 2]]
        update(state, queue.pop(0).wait())
        up += [store.up(state["weight"], param)]
    _ = [u.wait() for u in up]


# %% right: gradients freed on the device as they leave
def offload_step(params, store, update):
    def fetch(i):
        return store.down(params[i].grad) if i < len(params) else None

    coming, sent = fetch(0), []
    for i, param in enumerate(params):
        here, coming = coming, fetch(i + 1)
        grad = here.wait()
        param.grad = None
        update(store.state[i], grad)
        sent.append(store.up(store.state[i]["weight"], param))
    for transfer in sent:
        transfer.wait()


# %% wrong values: does nothing
# says: nothing came up
def offload_step(params, store, update):
    return


# %% wrong values: never waits for the parameters
# says: never waited for
def offload_step(params, store, update):
    for param, state in zip(params, store.state):
        update(state, store.down(param.grad).wait())
        store.up(state["weight"], param)


# %% wrong values: uses gradients before they arrived
# says: NaN
def offload_step(params, store, update):
    for param, state in zip(params, store.state):
        transfer = store.down(param.grad)
        update(state, transfer._target)
        transfer.wait()
        store.up(state["weight"], param).wait()


# %% wrong values: sends the weights up before the update
# says: must equal
def offload_step(params, store, update):
    for param, state in zip(params, store.state):
        store.up(state["weight"], param).wait()
        update(state, store.down(param.grad).wait())


# %% wrong values: forgets the last parameter
# says: must equal
def offload_step(params, store, update):
    coming, sent = store.down(params[0].grad), []
    for i in range(len(params) - 1):
        now, coming = coming, store.down(params[i + 1].grad)
        update(store.state[i], now.wait())
        sent.append(store.up(store.state[i]["weight"], params[i]))
    for transfer in sent:
        transfer.wait()


# %% wrong values: updates every parameter twice
# says: must equal
def offload_step(params, store, update):
    for param, state in zip(params, store.state):
        grad = store.down(param.grad).wait()
        update(state, grad)
        update(state, grad)
        store.up(state["weight"], param).wait()


# %% wrong order: one parameter after the other
# says: on its way
def offload_step(params, store, update):
    for param, state in zip(params, store.state):
        update(state, store.down(param.grad).wait())
        store.up(state["weight"], param).wait()


# %% wrong order: waits for each parameter at once
# says: no parameter may be waited for
def offload_step(params, store, update):
    coming = store.down(params[0].grad)
    for i, (param, state) in enumerate(zip(params, store.state)):
        now = coming
        if i + 1 < len(params):
            coming = store.down(params[i + 1].grad)
        update(state, now.wait())
        store.up(state["weight"], param).wait()


# %% wrong memory: fetches all gradients at once
# says: Fetch one gradient ahead
def offload_step(params, store, update):
    coming = [store.down(param.grad) for param in params]
    sent = []
    for param, state, transfer in zip(params, store.state, coming):
        update(state, transfer.wait())
        sent.append(store.up(state["weight"], param))
    for transfer in sent:
        transfer.wait()


# %% wrong bytes, order: the state travels too, and is waited for
# says: must send each gradient down once
def offload_step(params, store, update):
    coming, sent = store.down(params[0].grad), []
    for i, (param, state) in enumerate(zip(params, store.state)):
        now = coming
        store.down(param).wait()
        if i + 1 < len(params):
            coming = store.down(params[i + 1].grad)
        update(state, now.wait())
        sent.append(store.up(state["weight"], param))
    for transfer in sent:
        transfer.wait()


# %% wrong bytes, order: gradients are read over there without a transfer
# says: sent 0 of 0 bytes
def offload_step(params, store, update):
    sent = []
    for param, state in zip(params, store.state):
        update(state, param.grad)
        sent.append(store.up(state["weight"], param))
    for transfer in sent:
        transfer.wait()


# %% wrong values: the library's own
# says: closed here
from course_lib.parallel.offload import OffloadedOptimizer as Helper


def offload_step(params, store, update):
    Helper(params, torch.optim.Adam, lr=0.05).step()


# %% right: two lists of transfers, indices
def offload_step(params, store, update):
    downs, ups = [store.down(params[0].grad)], []
    for i in range(len(params)):
        if i + 1 < len(params):
            downs.append(store.down(params[i + 1].grad))
        grad = downs[i].wait()
        downs[i] = None
        update(store.state[i], grad)
        ups.append(store.up(store.state[i]["weight"], params[i].data))
    while ups:
        ups.pop().wait()


# %% right: recursive, waits on the way back
def offload_step(params, store, update):
    def go(i, coming):
        transfers = [store.down(params[i + 1].grad)] if i + 1 < len(params) else []
        update(store.state[i], coming.pop().wait())
        sent = store.up(store.state[i]["weight"], params[i])
        if transfers:
            go(i + 1, transfers)
        sent.wait()

    go(0, [store.down(params[0].grad)])


# %% wrong memory: recursive, each call keeps the gradient it fetched
def offload_step(params, store, update):
    def go(i, coming):
        following = store.down(params[i + 1].grad) if i + 1 < len(params) else None
        update(store.state[i], coming.wait())
        del coming
        sent = store.up(store.state[i]["weight"], params[i])
        if following is not None:
            go(i + 1, following)
        sent.wait()

    go(0, store.down(params[0].grad))


# %% wrong values: begins to send a parameter before it is updated
# says: NaN
def offload_step(params, store, update):
    coming, sent = store.down(params[0].grad), []
    for i, (param, state) in enumerate(zip(params, store.state)):
        now = coming
        if i + 1 < len(params):
            coming = store.down(params[i + 1].grad)
        sent.append(store.up(state["weight"], param))
        update(state, now.wait())
    for transfer in sent:
        transfer.wait()


# %% wrong values: clears a gradient while it travels
# says: NaN
def offload_step(params, store, update):
    coming, sent = store.down(params[0].grad), []
    for i, (param, state) in enumerate(zip(params, store.state)):
        now = coming
        if i + 1 < len(params):
            coming = store.down(params[i + 1].grad)
            params[i + 1].grad.zero_()
        update(state, now.wait())
        sent.append(store.up(state["weight"], param))
    for transfer in sent:
        transfer.wait()


# %% wrong values: gives each gradient to the next parameter's state
# says: RuntimeError
def offload_step(params, store, update):
    coming, sent = store.down(params[0].grad), []
    for i, param in enumerate(params):
        now = coming
        if i + 1 < len(params):
            coming = store.down(params[i + 1].grad)
        update(store.state[i - 1], now.wait())
        sent.append(store.up(store.state[i]["weight"], param))
    for transfer in sent:
        transfer.wait()


# %% wrong values: sends a moment up instead of the weight
# says: must equal
def offload_step(params, store, update):
    coming, sent = store.down(params[0].grad), []
    for i, (param, state) in enumerate(zip(params, store.state)):
        now = coming
        if i + 1 < len(params):
            coming = store.down(params[i + 1].grad)
        update(state, now.wait())
        sent.append(store.up(state["exp_avg"], param))
    for transfer in sent:
        transfer.wait()


# %% wrong values: Adam stays on the device
# says: the host's state is as it was
def offload_step(params, store, update):
    if not hasattr(params[0], "adam"):
        params[0].adam = torch.optim.Adam(params, lr=0.05, betas=(0.9, 0.99), eps=0.1)
    params[0].adam.step()


# %% wrong bytes: sends the gradients down and updates with those of the device
# says: tensor of the device
def offload_step(params, store, update):
    coming, sent = store.down(params[0].grad), []
    for i, (param, state) in enumerate(zip(params, store.state)):
        now = coming
        if i + 1 < len(params):
            coming = store.down(params[i + 1].grad)
        now.wait()
        update(state, param.grad)
        sent.append(store.up(state["weight"], param))
    for transfer in sent:
        transfer.wait()


# %% wrong bytes: the host's weights are the device's
# says: tensor of the device
def offload_step(params, store, update):
    coming, sent = store.down(params[0].grad), []
    for i, (param, state) in enumerate(zip(params, store.state)):
        now = coming
        if i + 1 < len(params):
            coming = store.down(params[i + 1].grad)
        state["weight"] = param.detach()
        update(state, now.wait())
        sent.append(store.up(state["weight"], param))
    for transfer in sent:
        transfer.wait()


# %% wrong order: waits for the parameter sent before
# says: no parameter may be waited for
def offload_step(params, store, update):
    coming, last = store.down(params[0].grad), None
    for i, (param, state) in enumerate(zip(params, store.state)):
        now = coming
        if i + 1 < len(params):
            coming = store.down(params[i + 1].grad)
        update(state, now.wait())
        if last is not None:
            last.wait()
        last = store.up(state["weight"], param)
    last.wait()


# %% wrong memory: all gradients wait as numbers of numpy
# says: a call may hold at most
def offload_step(params, store, update):
    coming, arrived = store.down(params[0].grad), []
    for i in range(len(params)):
        now = coming
        if i + 1 < len(params):
            coming = store.down(params[i + 1].grad)
        arrived.append(now.wait().numpy().copy())
    sent = []
    for param, state, grad in zip(params, store.state, arrived):
        update(state, torch.from_numpy(grad))
        sent.append(store.up(state["weight"], param))
    for transfer in sent:
        transfer.wait()


# %% wrong values: moves for show, Adam's numbers are on the device
# says: store.state[0]['exp_avg'] after step 0
def offload_step(params, store, update):
    if not hasattr(offload_step, "adam"):
        offload_step.adam = torch.optim.Adam(params, lr=0.05, betas=(0.9, 0.99), eps=0.1)
    coming = store.down(params[0].grad)
    for i in range(len(params)):
        now = coming
        if i + 1 < len(params):
            coming = store.down(params[i + 1].grad)
        now.wait()
    offload_step.adam.step()
    for state, param in zip(store.state, params):
        state["weight"].copy_(param.detach())
        store.up(state["weight"], param).wait()
