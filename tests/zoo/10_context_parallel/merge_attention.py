# Answers to merge_attention: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
import torch


# %% right: logaddexp, and a quotient of nothing is nothing
def merge_attention(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    safe = torch.where(torch.isinf(lse), torch.zeros_like(lse), lse)
    a, b = (lse_a - safe).exp()[..., None], (lse_b - safe).exp()[..., None]
    return a * out_a + b * out_b, lse


# %% right: softmax over the two parts
def merge_attention(out_a, lse_a, out_b, lse_b):
    both = torch.stack((lse_a, lse_b))
    weights = both.softmax(0).nan_to_num(0.0)
    out = (weights[..., None] * torch.stack((out_a, out_b))).sum(0)
    return out, both.logsumexp(0)


# %% right: a sigmoid of the difference
def merge_attention(out_a, lse_a, out_b, lse_b):
    share = torch.sigmoid(lse_b - lse_a).nan_to_num(0.0)[..., None]
    return out_a - share * (out_a - out_b), torch.logaddexp(lse_a, lse_b)


# %% wrong values: does nothing
def merge_attention(out_a, lse_a, out_b, lse_b):
    return out_a, lse_a


# %% wrong values: averages
# says: averaged
# from: logaddexp, and a quotient of nothing is nothing
# change: return a * out_a + b * out_b, lse -> return (out_a + out_b) / 2, lse
# %% wrong values: adds
# says: outputs were added
# from: logaddexp, and a quotient of nothing is nothing
# change: return a * out_a + b * out_b, lse -> return out_a + out_b, lse
# %% wrong values: keeps the larger
# says: only the part with the larger lse was kept
def merge_attention(out_a, lse_a, out_b, lse_b):
    is_a = lse_a > lse_b
    return torch.where(is_a[..., None], out_a, out_b), torch.maximum(lse_a, lse_b)


# %% wrong values: each part with the other's share
# from: reference
# says: weighed with the other's lse
# change: weight_a[..., None] * out_a + weight_b[..., None] * out_b -> weight_b[..., None] * out_a + weight_a[..., None] * out_b
# %% wrong values: the new lse without what was subtracted
# from: reference
# says: was not added to the new one
# change: largest + torch.log(total) -> torch.log(total)


# %% wrong values: overflows for large logits
def merge_attention(out_a, lse_a, out_b, lse_b):
    weight_a, weight_b = lse_a.exp(), lse_b.exp()
    total = weight_a + weight_b
    out = weight_a[..., None] * out_a + weight_b[..., None] * out_b
    return out / total[..., None].clamp_min(1e-300), torch.log(total)


# %% wrong values: not a number where neither part has a key
def merge_attention(out_a, lse_a, out_b, lse_b):
    top = torch.maximum(lse_a, lse_b)
    weight_a, weight_b = (lse_a - top).exp(), (lse_b - top).exp()
    total = weight_a + weight_b
    return (weight_a[..., None] * out_a + weight_b[..., None] * out_b) / total[..., None], top + total.log()


# %% wrong values: asks of the whole part whether it saw a key, not of each row
# says: NaN
def merge_attention(out_a, lse_a, out_b, lse_b):
    if torch.isinf(lse_a).all():
        return out_b.clone(), lse_b.clone()
    if torch.isinf(lse_b).all():
        return out_a.clone(), lse_a.clone()
    top = torch.maximum(lse_a, lse_b)
    weight_a, weight_b = (lse_a - top).exp(), (lse_b - top).exp()
    total = weight_a + weight_b
    return (weight_a[..., None] * out_a + weight_b[..., None] * out_b) / total[..., None], top + total.log()


# %% wrong values: one scale for all rows
def merge_attention(out_a, lse_a, out_b, lse_b):
    top = max(lse_a.max(), lse_b.max()).clamp_min(0)
    weight_a, weight_b = (lse_a - top).exp(), (lse_b - top).exp()
    total = weight_a + weight_b
    out = weight_a[..., None] * out_a + weight_b[..., None] * out_b
    return out / total.clamp_min(1e-300)[..., None], top + torch.log(total)


# %% wrong values: forgets the larger one in the new lse
def merge_attention(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    safe = torch.where(torch.isinf(lse), torch.zeros_like(lse), lse)
    weight_a, weight_b = (lse_a - safe).exp(), (lse_b - safe).exp()
    return weight_a[..., None] * out_a + weight_b[..., None] * out_b, torch.log(weight_a + weight_b)


# %% wrong values: in place
def merge_attention(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    safe = torch.where(torch.isinf(lse), torch.zeros_like(lse), lse)
    out_a.mul_((lse_a - safe).exp()[..., None]).add_((lse_b - safe).exp()[..., None] * out_b)
    return out_a, lse


# %% wrong values: the library's
# says: closed here
def merge_attention(out_a, lse_a, out_b, lse_b):
    from course_lib.model.partial_attention import merge_attention as theirs

    return theirs(out_a, lse_a, out_b, lse_b)
