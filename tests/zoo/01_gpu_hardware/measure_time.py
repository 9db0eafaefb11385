# Answers to measure_time: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: each wrong stopwatch is a loop of its own.

# %% setup
import statistics
import time


def samples_of(fn, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        fn()
    samples = []
    for _ in range(repeats):
        synchronize()
        start = clock()
        fn()
        synchronize()
        samples.append(clock() - start)
    return samples


# %% right: one loop, median by sorting
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    samples = []
    for i in range(warmup + repeats):
        synchronize()
        start = clock()
        fn()
        synchronize()
        end = clock()
        if i >= warmup:
            samples.append(end - start)
    samples.sort()
    return (samples[(repeats - 1) // 2] + samples[repeats // 2]) / 2


# %% right: synchronises once after the warm-up, numpy median
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    import numpy as np

    def timed():
        start = clock()
        fn()
        synchronize()
        return clock() - start

    for _ in range(warmup):
        fn()
    synchronize()
    return np.median([timed() for _ in range(repeats)])


# %% right: end of one repetition is the start of the next
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    [fn() for _ in range(warmup)]
    synchronize()
    times = [clock()]
    for _ in range(repeats):
        fn()
        synchronize()
        times.append(clock())
    return statistics.median(b - a for a, b in zip(times, times[1:]))


# %% wrong values: uses the library's stopwatch
# says: closed here
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    from course_lib import roof as r

    return r.best_time_s(fn)


# %% wrong values: the stub's arguments are gone
# says: must accept
def measure(fn, repeats=10):
    return statistics.median(samples_of(fn, time.perf_counter, lambda: None, 3, repeats))


# %% wrong seconds, calls: no warm-up
# says: there is no warm-up
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    return statistics.median(samples_of(fn, clock, synchronize, 0, repeats))


# %% wrong seconds: no synchronise at all
# says: only the launch is timed
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    return statistics.median(samples_of(fn, clock, lambda: None, warmup, repeats))


# %% wrong seconds: synchronises before, not after
# says: only the launch is timed
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    for _ in range(warmup):
        fn()
    samples = []
    for _ in range(repeats):
        synchronize()
        start = clock()
        fn()
        samples.append(clock() - start)
    return statistics.median(samples)


# %% wrong seconds: synchronises after, not before
# says: while the device still works off the warm-up
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    for _ in range(warmup):
        fn()
    samples = []
    for _ in range(repeats):
        start = clock()
        fn()
        synchronize()
        samples.append(clock() - start)
    return statistics.median(samples)


# %% wrong seconds: the mean
# says: the mean instead of the median
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    return sum(samples_of(fn, clock, synchronize, warmup, repeats)) / repeats


# %% wrong seconds: the best
# says: the minimum instead of the median
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    return min(samples_of(fn, clock, synchronize, warmup, repeats))


# %% wrong seconds: the upper middle
# says: the upper of the two middle values
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    return sorted(samples_of(fn, clock, synchronize, warmup, repeats))[repeats // 2]


# %% wrong seconds: the real clock
# says: `clock` must tell the time
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    return statistics.median(samples_of(fn, time.perf_counter, synchronize, warmup, repeats))


# %% wrong seconds, calls: warm-up of its own on top
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    for _ in range(10):
        fn()
    return statistics.median(samples_of(fn, clock, synchronize, warmup, repeats)) / 2


# %% wrong calls: one call more, to be sure
# says: On a real machine each call costs time
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    seconds = statistics.median(samples_of(fn, clock, synchronize, warmup, repeats))
    fn()
    return seconds


# %% wrong seconds: whole microseconds
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    samples = samples_of(fn, clock, synchronize, warmup, repeats)
    return statistics.median(int(1e6 * sample) for sample in samples) / 1e6


# %% wrong seconds, calls: a function that was measured before is warm and needs no warm-up
_WARM = []


def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    if not any(seen is fn for seen in _WARM):
        _WARM.append(fn)
        for _ in range(warmup):
            fn()
    return statistics.median(samples_of(fn, clock, synchronize, 0, repeats))


# %% wrong seconds: the median of the first measurement is remembered and returned again for the same fn
_first_median = {}


def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    for _ in range(warmup):
        fn()
    times = []
    for _ in range(repeats):
        synchronize()
        start = clock()
        fn()
        synchronize()
        times.append(clock() - start)
    return _first_median.setdefault(fn, statistics.median(times))


# %% wrong calls: stops as soon as three readings in a row agree to 1 percent
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    for _ in range(warmup):
        fn()
    times = []
    for _ in range(repeats):
        synchronize()
        start = clock()
        fn()
        synchronize()
        times.append(clock() - start)
        if len(times) >= 3 and max(times[-3:]) <= 1.01 * min(times[-3:]):
            break
    return statistics.median(times)


# %% wrong seconds: waits for an idle device only if it has warmed up
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    # Wrong: "for each repetition wait until the device is idle, start the watch". With warmup=0 the first
    # repetition also pays for what others had queued; with one repeat (or two) the median shows it.
    for _ in range(warmup):
        fn()
        synchronize()
    times = []
    for _ in range(repeats):
        start = clock()
        fn()
        synchronize()
        times.append(clock() - start)
    return statistics.median(times)


# %% wrong seconds: times all calls and drops the slowest instead of the first
# says: the time must be
def measure(fn, *, clock=time.perf_counter, synchronize=lambda: None, warmup=3, repeats=10):
    seconds = []
    for _ in range(warmup + repeats):
        synchronize()
        start = clock()
        fn()
        synchronize()
        seconds.append(clock() - start)
    return statistics.median(sorted(seconds)[:repeats])
