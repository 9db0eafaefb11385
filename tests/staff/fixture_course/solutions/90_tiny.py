# %% [markdown]
# # A tiny lab
#
# One exercise, no ranks: enough to see every step from source to gradebook.

# %%
import math


# %% exercise="add_one"
def add_one(number: float) -> float:
    """Return `number` plus one."""
    ### BEGIN SOLUTION
    return number + 1
    ### END SOLUTION


# %% [markdown]
# The end: two plus one is three.

# %%
print(math.ceil(add_one(2)))
