# %% [markdown]
# # Lab 01: what one GPU can do, and what connects many
#
# | | |
# |---|---|
# | **time** | 3.5 hours, {{minutes}} minutes of them for the six exercises |
# | **ranks** | 2, in one cell; the rest is arithmetic, or measured in this process |
# | **needs** | PyTorch; lab 00 for how checks work |
# | **points** | {{points}} |
#
# A model trains on thousands of GPUs only if each is kept busy. Three numbers decide: how fast a GPU
# *computes*, how fast it *moves data inside*, and how fast it *talks to others*. Here you derive all three
# from data sheets, learn where data sheets mislead, and measure your own machine the same way.
#
# ## Objectives
#
# After this lab you can
#
# 1. find the number that a data sheet keeps silent about, and spot a sparse or two-way one;
# 2. say why 16-bit inputs need a 32-bit sum;
# 3. say whether memory or arithmetic limits a kernel, and what batch changes that;
# 4. time work that runs asynchronously;
# 5. tell which links join two GPUs of a cluster, and what a message on them costs.
#
# **Predict** for an H100: (a) How many FLOPs can it do in the time it reads one byte from its memory? (b) It
# reads from its own memory at 3.35 TB/s. How many times slower is it to fetch from another GPU of its server,
# and from another server? (c) NVIDIA's peaks grew "1,000 times in 12 years". How much of that does a program
# see that stays in FP32?
#
# <details><summary>Answers</summary>
#
# (a) About 295 in bf16. An operation that does less per byte leaves the arithmetic idle. (b) 7 times (450
# GB/s one way), 67 times (50 GB/s). (c) 16 times. The rest is new units, fewer bits, and a footnote.
#
# </details>

# %%
import math
import statistics
import time

import torch
import torch.distributed as dist

import course_grader as grading
from course_lib.ranks import RanksError, run_ranks
from course_lib.roofline import this_machine
from course_lib.viz.axes import draw_axes
from course_lib.viz.hardware import (
    draw_cluster_zoom,
    draw_memory_hierarchy,
    draw_roofline,
    draw_trend,
    h100_roof,
)
from course_lib.viz.interactive import interactive
from course_lib.viz.predictions import draw_predictions

draw_axes([])

# %% [markdown]
# ## A co-processor that learned to multiply matrices
#
# A GPU is a **co-processor**. The CPU runs your Python and *launches* work; the GPU does it later, on
# thousands of small cores that all run the same program. It was built for graphics. In the 2000s people
# disguised their arithmetic as pixels (GPGPU), in 2007 CUDA made the disguise unnecessary, and in 2012
# AlexNet won ImageNet on two gaming cards. Since 2017 GPUs have units for nothing but small matrix products:
# **tensor cores**.
#
# Inside an H100 (SXM part):
#
# - 144 **SMs** (streaming multiprocessors) are on the die, **132** are switched on. Nearly every die has
#   flaws, so the faulty SMs are switched off, and the die is still sold. This is *binning*.
# - An SM has 128 FP32 cores. Each does one fused multiply-add a clock, so **256 FLOP a clock**.
# - An SM has 4 tensor cores. Each multiplies (16×4)·(4×8) and adds a 16×8 tile every clock: 512
#   multiply-adds, **1,024 FLOP**; so 4,096 an SM.
# - An SM keeps 256 KB of registers and 256 KB of L1, most of it usable as *shared memory*. All share 50 MB of
#   L2, and 80 GB of HBM at about 3 TB/s (the SXM part: 3.35; the PCIe part: 2.0).
#
# The two units have **different clocks**: the data sheet's FP32 peak assumes 1.98 GHz, its tensor peak 1.83.
#
# ### Twelve years of peaks
#
# **Where common numbers are loose.** "1,000x in 12 years" divides a *sparse 16-bit* peak by an *FP32* one.
# Dense it is about 450x, and FP32 against FP32 16x. A *sparse* peak counts products with zeros that were
# never computed: it needs two of every four weights to be zero, which training does not have. The "5,000
# TFLOP/s" of the B200 generation are sparse; dense it is 2,250 (B200) or 2,500 (GB200). This course only uses
# dense peaks.
#
# Data sheets leave numbers out, but all hang together, so a hole can be filled. A **sheet** is a dict:

# %%
H100 = {
    "name": "H100",
    "sms_on_die": 144,
    "num_sms": 132,
    "tensor_cores_per_sm": 4,
    "fma_per_clock_per_tensor_core": 512,
    "clock_hz": None,  # of the tensor cores: missing here
    "fp32_clock_hz": 1.98e9,
    "peak_flops_per_s": 1979e12,  # of the tensor cores, as printed
    "with_sparsity": True,  # a footnote: the printed peak is twice the dense one
}
draw_trend()


# %% exercise="missing_number"
def missing_number(sheet):
    """Return the number of a data sheet that is None.

    sheet: a dict as above. Missing is one of num_sms, tensor_cores_per_sm, fma_per_clock_per_tensor_core
        (then return a whole number), clock_hz, or peak_flops_per_s (then return what this sheet would print).
    """
    ### BEGIN SOLUTION
    factors = ("num_sms", "tensor_cores_per_sm", "fma_per_clock_per_tensor_core", "clock_hz")
    missing = next((name for name in factors if sheet[name] is None), "peak_flops_per_s")
    known = 4 if sheet["with_sparsity"] else 2  # a multiply-add is two FLOPs
    for name in factors:
        known *= 1 if sheet[name] is None else sheet[name]
    if missing == "peak_flops_per_s":
        return known
    value = sheet["peak_flops_per_s"] / known
    return value if missing == "clock_hz" else round(value)  # printed peaks are rounded
    ### END SOLUTION


# %%
dense = {**H100, "clock_hz": 1.83e9, "peak_flops_per_s": None, "with_sparsity": False}
tensor, fp32 = missing_number(dense), 2 * 128 * 132 * 1.98e9
print(f"tensor cores {tensor / 1e12:.0f} TFLOP/s, FP32 cores {fp32 / 1e12:.0f} TFLOP/s: {tensor / fp32:.1f}x")

# %% [markdown]
# This factor is what a **forgotten cast** costs: leave a large matmul in FP32, and it may run on the FP32
# cores. "20x slower" is loose: it is 4,096 / 256 = 16x a clock, and about 15x by the data sheet, because the
# clocks differ. (With TF32 allowed, FP32 matmuls use tensor cores at half the 16-bit rate.)
#
# ## Mixed precision: 16 bits in, 32 bits to add
#
# Tensor cores take 16-bit inputs, but keep the **sum** in 32 bits. Why? bf16 has 8 significant bits. The
# next number after 256 is 258, so 256 + 1 rounds back to 256.
#
# **Predict** the sum of 4,096 ones, added one by one, in bf16, fp16 (11 bits) and fp32: replace None by your
# numbers.

# %%
PREDICTED = {"bfloat16": None, "float16": None, "float32": None}

sums = dict.fromkeys(PREDICTED, 0.0)
for name in sums:
    total = torch.zeros((), dtype=getattr(torch, name))
    for _ in range(4096):
        total += 1
    sums[name] = total.item()
draw_predictions(sums, PREDICTED, unit="sum of 4,096 ones", title="Small numbers vanish in a large sum")

# %% [markdown]
# The same happens to gradients, and to weights that get tiny updates.
#
# In PyTorch, `autocast` casts the inputs of a *matmul* and leaves parameters and norms in 32 bits:

# %%
layer, norm, x = torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.randn(8, 64)
with torch.autocast("cpu", torch.bfloat16):
    product = layer(x)
    parts = {"weight": layer.weight, "matmul": product, "norm": norm(x)}
print({name: str(tensor.dtype) for name, tensor in parts.items()})

# %% [markdown]
# Write a matmul as hardware does it: walk along K in tiles, and add each tile's product to an accumulator.
# The products *of one tile*, and their sum, are exact enough (fp32); then the accumulator is rounded to
# `accumulate_dtype` after every tile.


# %% exercise="matmul_mixed"
def matmul_mixed(a, b, accumulate_dtype, tile):
    """Multiply bf16 matrices tile by tile along K; the running sum has dtype `accumulate_dtype`.

    a: (M, K) bf16; b: (K, N) bf16; tile: columns of `a` taken at a time, the last tile may be smaller.
    Returns: (M, N) in accumulate_dtype (bfloat16, float16 or float32).
    """
    ### BEGIN SOLUTION
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
    for k in range(0, a.shape[1], tile):
        acc += a[:, k : k + tile].float() @ b[k : k + tile].float()
    return acc
    ### END SOLUTION


# %% [markdown]
# ### Verify
#
# The oracle is float64. **Predict:** does a larger tile help in bf16? And in fp32?
#
# <details><summary>Answer</summary>
#
# In both: fewer roundings, and an error of about eps · √(K / tile). eps is 2⁻⁷ in bf16 (`torch.finfo`): that
# decides; in fp32 nobody notices.
#
# </details>

# %%
torch.manual_seed(0)
a, b = torch.randn(64, 4096).bfloat16(), torch.randn(4096, 64).bfloat16()
exact = a.double() @ b.double()
for dtype in (torch.bfloat16, torch.float32):
    for tile in (16, 256):
        error = (matmul_mixed(a, b, dtype, tile).double() - exact).norm() / exact.norm()
        print(f"accumulator {dtype!s:15} tile {tile:3}: relative error {error:.0e}")

# %% [markdown]
# ## Memory: what surrounds the arithmetic

# %%
draw_memory_hierarchy()

# %% [markdown]
# Each level down is larger and slower. An operation is fast if it fetches a byte once from far away and uses
# it often nearby. How often is its **arithmetic intensity**:
#
# $$\text{intensity} = \frac{\text{FLOPs}}{\text{bytes to and from memory}}$$
#
# Count by these **rules**: every input crosses memory once, every output once. Per element, layer norm does 7
# FLOPs (sum, subtract, square, sum, scale, gain, bias), softmax 5 (max, subtract, exp, sum, divide); what
# happens once a row is left out.
#
# ## The roofline
#
# Two things go on at once: computing takes FLOPs / peak, moving takes bytes / bandwidth. If they overlap
# perfectly, the slower one is the time. They are equal at the **ridge point**, peak / bandwidth, in FLOPs per
# byte. Left of it an operation is *memory-bound*, right of it *compute-bound*.
#
# Where a kernel lies depends on the **batch**. Take two kernels of a model that generates text:
#
# - `linear`: a batch of b rows, (b, k), times one weight, (k, n).
# - `attention`: b sequences, each with **one** new token and a cache of its own: `context` keys and as many
#   values for each of `kv_heads`, `head_dim` numbers each. Each of the `heads` has a query of
#   `head_dim` numbers: q·Kᵀ, softmax, times V. It is *fused*: scores stay on the chip, only q, K, V and the
#   output cross memory. Several query heads share the keys and values of one kv head.
#
# **Predict:** does a larger batch make both compute-bound? And must b be at the ridge, 295 rows on an H100?


# %% exercise="smallest_batch"
def smallest_batch(kernel, sizes, element_bytes, spec):
    """Return the smallest batch (1, 2, ...) at which a kernel is compute-bound; 0 if no batch is.

    kernel: "linear" with sizes k, n; or "attention" with sizes heads, kv_heads, context, head_dim.
    element_bytes: bytes of one element, of all tensors.
    spec: a dict with flops_per_s (dense), sparse_flops_per_s and bytes_per_s.
    A kernel is compute-bound if computing takes at least as long as moving.
    """
    ### BEGIN SOLUTION
    ridge = spec["flops_per_s"] / spec["bytes_per_s"]
    if kernel == "linear":
        k, n = sizes["k"], sizes["n"]
        flops, moved_once, moved = 2 * k * n, k * n, k + n  # the last two in elements
    else:
        heads, head_dim, context = sizes["heads"], sizes["head_dim"], sizes["context"]
        flops = heads * context * (4 * head_dim + 5)
        moved_once, moved = 0, 2 * sizes["kv_heads"] * context * head_dim + 2 * heads * head_dim
    gain = flops - ridge * element_bytes * moved
    if gain <= 0:
        return 0
    return max(1, math.ceil(ridge * element_bytes * moved_once / gain))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Answer</summary>
#
# A batch shares the *weight*, so more rows mean more FLOPs per byte, up to a bound that the layer's own sides
# set: rows are moved, too. So it takes more than 295. Nothing shares a *cache*: twice the sequences move
# twice the bytes. Long contexts need fewer kv heads (*grouped queries*), not larger batches.
#
# </details>
#
# Six operations on an H100 by the same rules (attention here has all queries at once, as in training; as
# **three kernels** it writes and reads scores and probabilities):


# %%
def flops_and_bytes(op, sizes, element_bytes):
    """Return (FLOPs, bytes to and from memory) of an operation."""
    if op == "matmul":
        m, k, n = sizes["m"], sizes["k"], sizes["n"]
        return 2 * m * k * n, element_bytes * (m * k + k * n + m * n)
    if op in ("layer_norm", "softmax"):
        elements = sizes["rows"] * sizes["dim"]
        gain_bias = 2 * sizes["dim"] if op == "layer_norm" else 0
        return (7 if op == "layer_norm" else 5) * elements, element_bytes * (2 * elements + gain_bias)
    num_rows = sizes["batch"] * sizes["heads"] * sizes["sequence"]
    scores = num_rows * sizes["sequence"]
    elements = 4 * num_rows * sizes["head_dim"] + (4 * scores if op == "attention" else 0)
    return scores * (4 * sizes["head_dim"] + 5), element_bytes * elements


# %%
H100_ROOF = h100_roof()
HEADS = {"batch": 1, "heads": 32, "sequence": 8192, "head_dim": 128}
OPS = [
    ("matmul", {"m": 8192, "k": 4096, "n": 4096}),
    ("matmul", {"m": 1, "k": 4096, "n": 4096}),
    ("layer_norm", {"rows": 8192, "dim": 4096}),
    ("softmax", {"rows": 8192, "dim": 4096}),
    ("attention", HEADS),
    ("flash_attention", HEADS),
]
for op, sizes in OPS:
    flops, num_bytes = flops_and_bytes(op, sizes, 2)
    compute_s, memory_s = flops / H100_ROOF.flops_per_s, num_bytes / H100_ROOF.bytes_per_s
    bound = "compute" if compute_s >= memory_s else "memory"
    least_us = 1e6 * max(compute_s, memory_s)
    print(f"{op:16} {flops / num_bytes:7.1f} FLOP/byte {least_us:7.1f} us, {bound}-bound")

# %% [markdown]
# Read it again. A matmul with **one row** (generating one token) is as memory-bound as a softmax. Fusing
# attention changes no FLOP, but takes it from memory-bound to compute-bound: that is where
# *FlashAttention* gets its speed.
#
# Tensor cores only multiply matrices; the FP32 cores do all the rest: norms, softmax, optimizer.
#
# ## Measure: a stopwatch
#
# Timing a GPU goes wrong in three ways. `fn()` **returns before the work is done**: launches are queued. The
# **first calls are slow**: compilation, allocation, cold caches. And some calls are **disturbed** by others,
# which moves a mean, but not a median. So: warm up; then for each repetition wait until the device is idle,
# start the watch, call, wait again, stop; take the median.
#
# Clock and synchronise are arguments. On CUDA pass `torch.cuda.synchronize`; the check passes a pretended
# device whose clock it controls.


# %% exercise="measure_time"
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    """Return the median time of one call of `fn` in seconds.

    clock: returns seconds; synchronize: returns when the device has finished all that was launched.
    warmup: calls that are not timed; repeats: calls that are timed one by one.
    """
    ### BEGIN SOLUTION
    for _ in range(warmup):
        fn()
    samples = []
    for _ in range(repeats):
        synchronize()
        start_s = clock()
        fn()
        synchronize()
        samples.append(clock() - start_s)
    return statistics.median(samples)
    ### END SOLUTION


# %% [markdown]
# ### This machine's own roofline
#
# `this_machine` finds the roof: the best of numpy's and torch's FP32 matmuls, and the best large copy. Your
# `measure` places four operations under it. **Predict:** which come close to it?

# %%
torch.manual_seed(0)
square, wide = torch.randn(1024, 1024), torch.randn(4096, 4096)
gain, bias = torch.ones(4096), torch.zeros(4096)
runs = [
    ("matmul 1024", "matmul", {"m": 1024, "k": 1024, "n": 1024}, lambda: square @ square),
    ("one row", "matmul", {"m": 1, "k": 4096, "n": 4096}, lambda: wide[:1] @ wide),
    (
        "layer norm",
        "layer_norm",
        {"rows": 4096, "dim": 4096},
        lambda: torch.layer_norm(wide, (4096,), gain, bias),
    ),
    ("softmax", "softmax", {"rows": 4096, "dim": 4096}, lambda: torch.softmax(wide, -1)),
]
mine, points = this_machine(), []
for words, op, sizes, run in runs:
    flops, num_bytes = flops_and_bytes(op, sizes, 4)
    points.append((words, flops / num_bytes, flops / measure(run, warmup=2, repeats=5)))

draw_roofline([h100_roof(), mine], points)

# %% [markdown]
# Same shape, other numbers: the ridge of a CPU lies at 3 to 50 FLOP/byte, higher while other programs use
# its memory. The more arithmetic a chip has, the harder it is to feed. A point far below its roof has another
# limit: here each result gets fresh memory from the operating system, and `exp` is not one FLOP to a CPU.
#
# Move the sliders: your `smallest_batch` says from how many rows on a matmul feeds an H100, the dot follows.
# Why do fewer bits not ask for more rows? (They halve the bytes as they double the peak.) And what happens to
# a narrow weight?


# %%
def draw_batch(rows, columns, precision):
    gpu, bits = h100_roof(precision), {"tf32": 32, "bfloat16": 16, "float8": 8}[precision]
    spec = {"flops_per_s": gpu.flops_per_s, "sparse_flops_per_s": 2 * gpu.flops_per_s}
    spec["bytes_per_s"] = gpu.bytes_per_s
    enough = smallest_batch("linear", {"k": 4096, "n": columns}, bits // 8, spec)
    points = []
    for words, m in {"1 row": 1, f"{rows:,} rows": rows, f"{enough:,} rows: enough": enough}.items():
        if m:
            flops, num_bytes = flops_and_bytes("matmul", {"m": m, "k": 4096, "n": columns}, bits // 8)
            seconds = max(flops / gpu.flops_per_s, num_bytes / gpu.bytes_per_s)
            points.append((words, flops / num_bytes, flops / seconds))
    return draw_roofline([gpu], points)


interactive(
    draw_batch,
    first={"rows": 64, "columns": 4096},
    rows=[8, 64, 256, 512, 4096],
    columns=[128, 256, 512, 4096],
    precision=["bfloat16", "float8", "tf32"],
)

# %% [markdown]
# ## Break it
#
# Three slips that hide in working code. First, a stopwatch that stops too early; second, an accumulator that
# changes its dtype by itself (here to the wider one; the other way costs a training run).


# %%
def hasty_measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    for _ in range(warmup):
        fn()
    synchronize()
    start_s = clock()
    for _ in range(repeats):
        fn()
    return (clock() - start_s) / repeats


def promoted(a, b, accumulate_dtype, tile):
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
    for k in range(0, a.shape[1], tile):
        acc = acc + a[:, k : k + tile].float() @ b[k : k + tile].float()
    return acc.to(accumulate_dtype)


_ = grading.check("measure_time", hasty_measure)
_ = grading.check("matmul_mixed", promoted)

# %% [markdown]
# Third, a hang. To time a *collective*, `synchronize` is a barrier. Here rank 0 repeats once more:


# %%
def time_all_reduce():
    data = torch.ones(1000)
    repeats = 6 if dist.get_rank() == 0 else 5
    return measure(lambda: dist.all_reduce(data), synchronize=dist.barrier, warmup=1, repeats=repeats)


try:
    run_ranks(time_all_reduce, 2, quiet=True)
except RanksError as error:
    print(error)

# %% [markdown]
# ## Links: in the server, in the pod
#
# | | carries | loose | tight |
# |---|---|---|---|
# | HBM | GPU ↔ its memory | "3 TB/s" | 3.35 TB/s, reads and writes *together* |
# | NVLink | GPU ↔ GPU of a server | "900 GB/s" | counts **both ways**: 450 GB/s one way |
# | PCIe | GPU ↔ host | "4.0 x16 is 16 GB/s" | 32 GB/s each way (5.0: 64) |
# | network | server ↔ server | "50 GB/s" | **one way** already: a 400 Gbit/s card a GPU |
#
# So "900 against 50" compares two ways with one; it is 450 against 50, 9x. NVLink's generations, both ways:
# 1.0 (P100) 160 GB/s, 2.0 (V100) 300, **3.0 (A100) 600**, 4.0 (H100) 900, 5.0 (B200) 1,800. **NVSwitch**
# joins all GPUs of a server so that any pair has the full rate. Two beliefs to drop: NVLink does *not* pool
# the memory of GPUs by itself (software must move the data; each GPU still runs out alone), and it was not
# for servers only: it reached consumer cards, last the RTX 3090's generation. Others: the MI325X has
# 256 GB of memory and joins 8 in a mesh, where one *pair* has only 64 GB/s; TPU v5p needs no packet
# switches: cubes of 64, joined by optical circuit switches, form a 3-D torus of up to 8,960, rented in
# Google's cloud only; Trainium2 (AWS; Anthropic trains on it) joins 16 to 64.
#
# ## The cluster Llama 3 was trained on

# %%
draw_cluster_zoom()

# %% [markdown]
# Meta: 8 GPUs per server, **16 per rack**, **192 racks = 3,072 GPUs per pod**, **8 pods = 24,576 GPUs**;
# Llama 3 405B used up to 16,384 of them. Inside a pod every GPU may send at full rate; between pods the top
# layer is oversubscribed 1:7, so a GPU keeps a seventh of its rate if all talk at once. Larger clusters
# exist: xAI's started with 100,000 GPUs.
#
# Beside the GPU racks are network and storage racks (240 PB), and outside the cooling. In 54 days of the
# run 466 interruptions were counted: lab 13.
#
# GPUs are numbered so that those of a server are neighbours: with 8 per server, GPU 7 and GPU 8 are in
# *different* ones. Every GPU has a network card, and cards are wired in **rails**: card 3 of each server is
# on one switch with card 3 of all others. So NCCL (NVIDIA's library of collectives) sends from GPU 1 to GPU
# 11 over NVLink to GPU 3, whose card is on GPU 11's rail, then over the network.
#
# The rules for a message from GPU a to GPU b (never the same):
#
# - in one server: the link `inside`;
# - in two servers, same seat (number within the server): the link `network`;
# - else two links: `inside`, then `network`.
# - The message travels in **pieces** of `piece_bytes`, the last one smaller. A link carries one piece at a
#   time, piece after piece; a piece keeps it for bytes / bandwidth, and arrives its latency after that. It
#   may start on the second link once it has arrived, and while the next one travels on the first.
# - Bandwidths come as printed, with their `unit`: bytes or *bits*, one way or *both ways*.

# %%
META = {
    "name": "Meta's cluster: a server and its network",
    "gpus_per_server": 8,
    "inside": {"bandwidth": 900e9, "unit": "bytes/s both ways", "latency_s": 1.9e-6},
    "network": {"bandwidth": 400e9, "unit": "bits/s", "latency_s": 5e-6},
}


# %% exercise="path_time"
def path_time(size_bytes, piece_bytes, a, b, cluster):
    """Return the seconds in which a message gets from GPU a to GPU b, by the rules above.

    size_bytes, piece_bytes: whole numbers; cluster: a dict as META.
    """
    ### BEGIN SOLUTION
    n = cluster["gpus_per_server"]
    if a // n == b // n:
        links = [cluster["inside"]]
    else:
        links = [cluster["network"]] if a % n == b % n else [cluster["inside"], cluster["network"]]
    free_s = [0.0] * len(links)
    for start in range(0, size_bytes, piece_bytes):
        arrived_s = 0.0
        for i, link in enumerate(links):
            rate = (
                link["bandwidth"]
                / (8 if "bits" in link["unit"] else 1)
                / (2 if "both" in link["unit"] else 1)
            )
            free_s[i] = max(arrived_s, free_s[i]) + min(piece_bytes, size_bytes - start) / rate
            arrived_s = free_s[i] + link["latency_s"]
    return arrived_s
    ### END SOLUTION


# %%
for other in (1, 8, 9):
    small, whole, pieces = (
        path_time(size, piece, 0, other, META)
        for size, piece in ((1000, 1000), (10**9, 10**9), (10**9, 10**6))
    )
    print(
        f"GPU 0 to {other}: 1 kB in {1e6 * small:4.1f} us, 1 GB in {1e3 * whole:5.2f} ms whole, "
        f"{1e3 * pieces:5.2f} ms in pieces of 1 MB"
    )

# %% [markdown]
# Small messages pay latency, large ones bandwidth. GPU 7 and GPU 8 are nine times slower to each other than
# GPU 0 and GPU 7. In pieces the first link costs almost nothing: it works while the second one does. Rings
# (lab 02), buckets (lab 03) and pipelines (lab 09) do the same. Real pieces also cost a launch each.
#
# All of Meta's 24,576 GPUs hold 1.97 PB of memory (not "2 PB", and no program sees it as one) and compute 24
# EFLOP/s dense.
#
# ## Does it fit, and how long?
#
# An A100 has 40 or 80 GB. Serving needs the weights *and* the **KV cache**: for every token a key and a value
# of `model_dim` entries in each layer. GPT-3's sizes: 175 billion parameters, 96 layers, model dim 12,288.
# Serve 32 sequences of 2,048 tokens, cache in fp16.
#
# 1. **`gpus_40gb`**: the fewest 40 GB GPUs that hold fp16 weights and the cache.
# 2. **`gpus_80gb_int8`**: the same with int8 weights on 80 GB (the cache stays fp16).
# 3. **`params_8`**, **`params_16`**: parameters of the largest model an 80 GB GPU can train, if nothing but 8
#    or 16 bytes per parameter counts (lab 04 says where they go).
# 4. **`run_days`**: Llama 3 405B took 3.8·10²⁵ FLOPs. How many days on 16,384 H100, at 400 TFLOP/s each?
# 5. **`cluster_power_w`**: what all servers of Meta's 24,576 GPUs draw, in watts, before cooling. A GPU draws
#    700 W; a server with its 8 GPUs, CPUs, fans and cards 10.2 kW.
# 6. **`cross_pod_s`**: seconds in which *every* GPU of it sends 1 GB to another pod, all at once.


# %% exercise="numbers_01"
def numbers_01() -> dict[str, float]:
    """Return the seven numbers."""
    ### BEGIN SOLUTION
    cache_bytes = 2 * 96 * 12_288 * 2 * 32 * 2048  # key and value, layers, width, fp16, tokens
    fp16_bytes, int8_bytes = (size * 175e9 + cache_bytes for size in (2, 1))
    return {
        "gpus_40gb": -(-fp16_bytes // 40e9),  # rounded up
        "gpus_80gb_int8": -(-int8_bytes // 80e9),
        "params_8": 80e9 / 8,
        "params_16": 80e9 / 16,
        "run_days": 3.8e25 / (16_384 * 400e12) / 86_400,
        "cluster_power_w": 24_576 / 8 * 10_200,
        "cross_pod_s": 1e9 / (400e9 / 8 / 7),
    }
    ### END SOLUTION


# %% [markdown]
# And **GPT-4**? Its report keeps its size secret; people repeat 1.8 trillion parameters: 3.6 TB at 16 bits,
# 45 GPUs of 80 GB before any cache. Another estimate, 8 to 16 A100s, is 0.64 to 1.28 TB: both cannot be true.
#
# ## Takeaways
#
# - Peak = 2 × multiply-adds a clock × SMs × *that unit's* clock. Divide printed 16-bit peaks by 2 if a
#   footnote says "with sparsity".
# - FLOPs per byte decide: below peak / bandwidth, memory is the limit. Fusion raises them; larger batches do
#   where they share something.
# - 3.35 TB/s in a GPU, 450 GB/s in a server, 50 GB/s in a pod, all one way but the first. Parallelism that
#   talks much belongs inside the server.
#
# **What production code does**
#
# | code | file | the same, and more |
# |---|---|---|
# | PyTorch | `torch/utils/benchmark/utils/timer.py` | `blocked_autorange`: your stopwatch, in blocks |
# | torchtitan | `torchtitan/tools/utils.py` | `get_peak_flops`: dense peaks by device name, for MFU |
#
# ## Questions people ask
#
# <details><summary>Why racks, and not one pod-sized machine?</summary>
#
# Racks, 19 inches wide, are a standard of decades: what a lorry and a door can take; power and cooling come
# per rack. Copper carries NVLink a metre or two, beyond that costly optics are needed. A rack holds what
# copper reaches (NVIDIA's NVL72: 72 GPUs as *one* NVLink span), a pod what one layer of switches does.
#
# </details>
# <details><summary>How hot does it get?</summary>
#
# A B200 draws 1,000 W, a fan heater the size of a stamp. It is kept at 60 to 85 °C, and beyond that lowers
# its clock. Above some 40 kW a rack, air no longer suffices, and
# water comes to the chip.
#
# </details>
# <details><summary>How long do runs take?</summary>
#
# Weeks to months: 30.84 million H100 hours for Llama 3 405B, 78 days of 16,384. A common estimate is up to
# nearly a year: beyond that, waiting for the next GPU is quicker.
#
# </details>
# <details><summary>Do small units of a cluster keep a higher throughput?</summary>
#
# Yes: inside a server all traffic takes fast links. A larger unit falls back on slower ones, gracefully if
# only what talks little crosses them.
#
# </details>
# <details><summary>What do the NVLink parts cost?</summary>
#
# NVIDIA prints no prices. Servers of eight SXM parts with NVSwitch were reported at 250,000 to 400,000
# dollars, tens of thousands more than eight PCIe cards.
#
# </details>
#
# ## Reflect (not graded)
#
# 1. *A chip gets twice the FLOP/s and the same memory bandwidth. Which operations gain?*
#
# <details><summary>Rubric</summary>
#
# *Good:* only those right of the ridge, which moves right by 2x. *Better:* fusion or batch moves one across.
#
# </details>
#
# ## Words
#
# **SM**: a GPU's core cluster. **FMA**: fused multiply-add, 2 FLOPs. **HBM**: stacked memory on the package.
# **FLOPs**: an amount; **FLOP/s**: a rate. **Pod**: GPUs at full mutual bandwidth. **GB**: 10⁹ bytes;
# **GiB**: 2³⁰.
#
# ## References
#
# - NVIDIA, *H100 Tensor Core GPU Architecture*, 2022 (white paper)
# - Williams, Waterman, Patterson 2009, *Roofline: An Insightful Visual Performance Model*, CACM 52(4)
# - Micikevicius et al. 2018, *Mixed Precision Training*, [arXiv:1710.03740](https://arxiv.org/abs/1710.03740)
# - Dao et al. 2022, *FlashAttention*, [arXiv:2205.14135](https://arxiv.org/abs/2205.14135)
# - Llama Team 2024, *The Llama 3 Herd of Models*, section 3.3,
#   [arXiv:2407.21783](https://arxiv.org/abs/2407.21783)
# - Austin et al. 2025, *How to Scale Your Model*,
#   [jax-ml.github.io/scaling-book](https://jax-ml.github.io/scaling-book)
#
# **Next:** lab 02, how many GPUs become one: collectives.
