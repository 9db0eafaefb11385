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


# %% wrong bytes: gradients are read over there without a transfer
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
