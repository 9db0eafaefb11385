# Answers to selective_policy.


# %% right: by how a name ends
def selective_policy(operation):
    return operation.endswith("mm") and not operation.startswith("b")


# %% right: numbers for truth
def selective_policy(operation):
    return int(operation in {"mm", "addmm", "_scaled_mm"})


# %% right: a match for yes, None for no
import re


def selective_policy(operation):
    return re.fullmatch("(add)?mm", operation)


# %% wrong memory: every product
# says: heads * S * S
def selective_policy(operation):
    return "mm" in operation


# %% wrong memory: everything
def selective_policy(operation):
    return True


# %% wrong compute: nothing
# says: backward may repeat
def selective_policy(operation):
    return False


# %% wrong memory, compute: the wrong way round
def selective_policy(operation):
    return operation not in ("mm", "addmm")


# %% wrong compute: only what is elementwise
def selective_policy(operation):
    return operation in ("add",)


# %% wrong memory: the scores, too
def selective_policy(operation):
    return operation in ("mm", "addmm", "_softmax", "bmm")


# %% wrong values: does nothing
def selective_policy(operation):
    return None


# %% wrong values: an error
def selective_policy(operation):
    raise KeyError(operation)
