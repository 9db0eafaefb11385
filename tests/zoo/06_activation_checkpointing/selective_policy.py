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


# %% wrong choice: every product
# says: heads * S * S
def selective_policy(operation):
    return "mm" in operation


# %% wrong choice: everything
def selective_policy(operation):
    return True


# %% wrong choice: nothing
# says: backward may repeat
def selective_policy(operation):
    return False


# %% wrong choice: the wrong way round
def selective_policy(operation):
    return operation not in ("mm", "addmm")


# %% wrong choice: only what is elementwise
def selective_policy(operation):
    return operation in ("add",)


# %% wrong choice: the scores, too
def selective_policy(operation):
    return operation in ("mm", "addmm", "_softmax", "bmm")


# %% wrong choice: gelu's result, too
# says: Beside these products the policy keeps gelu.
def selective_policy(operation):
    return operation in ("mm", "addmm", "gelu")


# %% wrong values: does nothing
def selective_policy(operation):
    return None


# %% wrong values: an error
def selective_policy(operation):
    raise KeyError(operation)
