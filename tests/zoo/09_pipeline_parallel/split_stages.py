# Answers to split_stages.


# %% right: dynamic programming over the place of the last cut
def split_stages(costs, num_stages):
    sums = [0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best = {(0, 0): (0, [])}
    for stages in range(1, num_stages + 1):
        for end in range(stages, len(costs) + 1):
            cuts = [cut for cut in range(end) if (stages - 1, cut) in best]
            tried = [
                (max(best[stages - 1, cut][0], sums[end] - sums[cut]), best[stages - 1, cut][1] + [end - cut])
                for cut in cuts
            ]
            best[stages, end] = min(tried)
    return best[num_stages, len(costs)][1]


# %% right: bisection over the time of the slowest stage, then cuts from the back
def split_stages(costs, num_stages):
    def filled(most):
        sizes, total = [], most + 1
        for cost in costs:
            if total + cost > most:
                sizes.append(0)
                total = 0
            sizes[-1] += 1
            total += cost
        return sizes

    low, high = max(costs), sum(costs)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if len(filled(middle)) <= num_stages else (middle, high)
    sizes = filled(high * (1 + 1e-12))
    while len(sizes) < num_stages:
        at = max(i for i, size in enumerate(sizes) if size > 1)
        sizes[at : at + 1] = [1, sizes[at] - 1]
    return sizes


# %% wrong balance: as many layers on each stage
# says: costs count
def split_stages(costs, num_stages):
    size, larger = divmod(len(costs), num_stages)
    return [size + (stage < larger) for stage in range(num_stages)]


# %% wrong balance: each stage is filled up to the average
# says: too much for the last
def split_stages(costs, num_stages):
    sizes, at = [], 0
    for stage in range(num_stages - 1):
        size, total = 1, costs[at]
        while total < sum(costs) / num_stages and at + size < len(costs) - (num_stages - 1 - stage):
            total += costs[at + size]
            size += 1
        sizes.append(size)
        at += size
    return [*sizes, len(costs) - at]


# %% wrong values: empty stages at the end
# says: positive integers that add up
def split_stages(costs, num_stages):
    return [len(costs)] + [0] * (num_stages - 1)


# %% wrong values: costs of the stages instead of their layers
# says: positive integers that add up
def split_stages(costs, num_stages):
    return [sum(costs) / num_stages] * num_stages


# %% wrong values: a layer is lost
# says: positive integers that add up
def split_stages(costs, num_stages):
    return [len(costs) // num_stages] * num_stages


# %% wrong values: fewer stages where fewer are as fast
# from: reference
# change: while len(sizes) < num_stages: -> while False:


# %% wrong values: changes the costs
# from: reference
# change: sums = sorted( -> costs.sort(); sums = sorted(
