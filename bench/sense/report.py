"""Turns the JSON of finitude_bench_sense into docs/kernels.md.

    python3 bench/sense/report.py kernels.json [docs/kernels.md]

Each figure is the median of the repetitions, which ran in random order; after it half the range between the
quartiles. One thread is timed by its own CPU clock, two by the wall clock. A share is that of plain-read bandwidth:
time of the fastest plain read over time of the scan. Only the standard library is used.
"""

import collections
import json
import os
import platform
import random
import statistics
import sys

DTYPES = ("float32", "bfloat16", "float16", "float64")
TORCH = (
    ("isfinite_all", "`isfinite().all()`"),
    ("foreach_norm", "`_foreach_norm`"),
    ("amp_unscale", "`_amp_foreach_non_finite_check_and_unscale_`"),
)
LARGE = 16 << 20  # from here on it is memory bandwidth that counts
SHARED = 1 << 20  # below this, a scan stays on one thread
REACH = {"quick, 16 MB and more": 0.95, "full, 16 MB and more": 0.75, "quick, below 16 MB": 0.75}
QUICK_READS = "4-pages"  # the plain read that takes its vectors in the order in which the quick scan does
RESAMPLES = 400


def size_name(size):
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


class Timing:
    """Repetitions of one benchmark, in nanoseconds a call."""

    def __init__(self):
        self.times = []

    @property
    def median(self):
        return statistics.median(self.times)

    @property
    def spread(self):
        """Half the range between the quartiles, as a share of the median."""
        if len(self.times) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4)
        return (high - low) / 2 / self.median


class Results:
    def __init__(self, document):
        self.context = document["context"]
        self.timings = collections.defaultdict(Timing)  # (what, dtype, threads, bytes)
        for run in document["benchmarks"]:
            if run["run_type"] != "iteration":
                continue
            what, dtype, threads, size = run["run_name"].split("/")[:4]
            scale = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[run["time_unit"]]
            time = run["cpu_time" if threads == "1" else "real_time"]
            self.timings[what, dtype, int(threads), int(size)].times.append(time * scale)
        self.sizes = sorted({key[3] for key in self.timings if key[0].startswith("plain_read")})
        self.repetitions = max(len(timing.times) for timing in self.timings.values())

    def reads(self, threads, size):
        """{variant: timing} of all ways to read."""
        return {
            key[0].split(":")[1]: timing
            for key, timing in self.timings.items()
            if key[0].startswith("plain_read") and key[2:] == (threads, size)
        }

    def plain_read(self, threads, size):
        """(variant, timing) of the fastest."""
        return min(self.reads(threads, size).items(), key=lambda item: item[1].median)

    def share(self, what, dtype, threads, size):
        timing = self.timings.get((what, dtype, threads, size))
        return timing and self.plain_read(threads, size)[1].median / timing.median

    def interval(self, what, dtype, threads, size):
        """Between what shares this one lies (95 %): repetitions drawn again, the fastest plain read picked again."""
        source = random.Random(1)
        reads = [timing.times for timing in self.reads(threads, size).values()]
        times = self.timings[what, dtype, threads, size].times
        shares = []
        for _ in range(RESAMPLES):
            read = min(statistics.median(source.choices(one, k=len(one))) for one in reads)
            shares.append(read / statistics.median(source.choices(times, k=len(times))))
        shares.sort()
        return shares[RESAMPLES // 40], shares[-1 - RESAMPLES // 40]

    def has(self, what):
        return any(key[0] == what for key in self.timings)


def rate(timing, size):
    return f"{size / timing.median:.3g}"


def percent(share, timing):
    return f"{100 * share:.0f} ({100 * timing.spread:.1f})"


def scan_table(results, threads):
    head = (
        "| bytes | plain read GB/s | "
        + " | ".join(f"{what} {dtype}" for dtype in DTYPES for what in ("quick", "full"))
        + " |"
    )
    yield head
    yield "|" + "---|" * (head.count("|") - 1)
    for size in results.sizes:
        variant, read = results.plain_read(threads, size)
        cells = [size_name(size), f"{rate(read, size)} ({variant}, {100 * read.spread:.1f})"]
        for dtype in DTYPES:
            for what in ("quick", "full"):
                timing = results.timings[what, dtype, threads, size]
                cells.append(percent(results.share(what, dtype, threads, size), timing))
        yield "| " + " | ".join(cells) + " |"


def torch_table(results, dtype, threads):
    yield "| bytes | quick us | " + " | ".join(f"{title} us (times quick)" for _, title in TORCH) + " |"
    yield "|" + "---|" * (2 + len(TORCH))
    for size in results.sizes:
        quick = results.timings["quick", dtype, threads, size].median
        cells = [size_name(size), f"{quick / 1e3:.3g}"]
        for what, _ in TORCH:
            other = results.timings[what, dtype, threads, size].median
            cells.append(f"{other / 1e3:.3g} (x{other / quick:.3g})")
        yield "| " + " | ".join(cells) + " |"


def small_table(results):
    yield "| float32 elements | quick ns | full ns |"
    yield "|---|---|---|"
    for size in sorted({key[3] for key in results.timings if key[0] == "quick"} - set(results.sizes)):
        cells = [results.timings[what, "float32", 1, size] for what in ("quick", "full")]
        yield f"| {size // 4} | " + " | ".join(f"{cell.median:.1f}" for cell in cells) + " |"
    cells = [results.timings[what + "_small", "float32", 1, 0] for what in ("quick", "full")]
    yield "| 1 to 64, in random order | " + " | ".join(f"{cell.median / 1024:.1f}" for cell in cells) + " |"


def cell_name(dtype, threads, size):
    return f"{dtype} {size_name(size)} {threads} thread{'s' if threads > 1 else ''}"


def cells(results, aim):
    """(dtype, threads, size, share) of each cell of the tables that an aim is about."""
    what = aim.split(",")[0]
    for threads in (1, 2):
        for dtype in DTYPES:
            for size in results.sizes:
                if (size >= LARGE) == ("more" in aim):
                    yield dtype, threads, size, results.share(what, dtype, threads, size)


def reach(results):
    """Each aim, in how many cells of the tables it holds, and the cells where it does not."""
    yield "| aim, share of plain read | cells that reach it | those that do not |"
    yield "|---|---|---|"
    for aim, least in REACH.items():
        all_cells = list(cells(results, aim))
        missed = [f"{cell_name(*cell[:3])}: {100 * cell[3]:.0f} %" for cell in all_cells if cell[3] < least]
        reached = f"{len(all_cells) - len(missed)} of {len(all_cells)}"
        yield f"| {aim}: {100 * least:.0f} % | {reached} | {'; '.join(missed) or 'none'} |"
    small = results.timings["quick_small", "float32", 1, 0].median / 1024
    yield f"| a small tensor, quick: 20 ns | {'reached' if small <= 20 else 'not reached'} | {small:.1f} ns |"


def why_full(results, dtype, threads, size, least):
    """The same kernel without its sum of squares, and the quick scan, which looks at every value too."""
    bare, full = (results.timings.get((what, dtype, threads, size)) for what in ("full_unsquared", "full"))
    if bare is None:
        return "not measured on this instruction set"
    cost = (full.median - bare.median) / full.median
    bare_share = results.share("full_unsquared", dtype, threads, size)
    return f"without the sum of squares: {100 * bare_share:.0f} %; that sum is {100 * cost:.0f} % of its time" + (
        "" if bare_share >= least else ", and the counts and extremes alone miss the aim too"
    )


def why_quick_large(results, dtype, threads, size, least):
    """Whether the work or the way of reading it costs: a plain read in the order in which the quick scan reads."""
    own = next((timing for name, timing in results.reads(threads, size).items() if name.startswith(QUICK_READS)), None)
    best = results.plain_read(threads, size)[1]
    if own is None:
        return "not measured"
    own_share = best.median / own.median
    own_bytes = f"a plain read in the scan's own order: {100 * own_share:.0f} %"
    if own_share < least:
        return own_bytes + "; the order costs it, not the work"
    return (
        own_bytes
        + f"; spread of the scan's repetitions: {100 * results.timings['quick', dtype, threads, size].spread:.0f} %"
    )


def why_quick_cached(results, dtype, threads, size, least):
    """What a call costs before and after its loop; and that small scans are not shared."""
    scan = results.timings["quick", dtype, threads, size].median
    if threads > 1 and size < SHARED:
        alone = results.plain_read(1, size)[1].median / scan
        if alone >= least:
            return f"scans below {size_name(SHARED)} stay on one thread: {100 * alone:.0f} % of what one thread reads"
    one_vector = results.timings.get(("quick", "float32", 1, 64))
    if one_vector is None:
        return "not measured"
    read = results.plain_read(threads, size)[1].median
    rest = read / (scan - one_vector.median)
    return (
        f"a call on 64 bytes takes {one_vector.median:.1f} ns, where the whole plain read takes {read:.0f} ns; "
        f"without that: {100 * rest:.0f} %"
    )


WHY = dict(zip(REACH, (why_quick_large, why_full, why_quick_cached)))


def not_reached(results):
    """Each cell below its aim, with what an experiment of the same run says about the reason."""
    rows = []
    for aim, least in REACH.items():
        what = aim.split(",")[0]
        for dtype, threads, size, share in cells(results, aim):
            if share >= least:
                continue
            low, high = results.interval(what, dtype, threads, size)
            noise = "; not decided by this run" if high >= least else ""
            reason = WHY[aim](results, dtype, threads, size, least)
            found = f"{100 * share:.0f} % ({100 * low:.0f} to {100 * high:.0f}{noise})"
            rows.append(f"| {what} {cell_name(dtype, threads, size)} | {100 * least:.0f} % | {found} | {reason} |")
    if not rows:
        yield "Every aim is reached."
        return
    yield (
        "Each cell below its aim, the interval that its share lies in (95 %), and the reason, by "
        "an experiment of the same run."
    )
    yield ""
    yield "| cell | aim | share of plain read | why |"
    yield "|---|---|---|---|"
    yield from rows


def machine():
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            found = {line.split(":")[0].strip(): line.split(":", 1)[1].strip() for line in info if ":" in line}
        model = found.get("model name", model)
        if "cpu family" in found:
            model += f" (family {found['cpu family']}, model {found['model']})"
    except OSError:
        pass
    return model


def caches(context):
    return ", ".join(
        f"L{cache['level']}{cache['type'][0].lower() if cache['type'] != 'Unified' else ''} {size_name(cache['size'])}"
        for cache in context.get("caches", [])
    )


def page(results, notes):
    context = results.context
    yield "# How fast a scan is"
    yield ""
    yield "Generated by `bench/sense/report.py`; to make it again on your machine: `make bench-sense`."
    yield ""
    yield (
        f"{context['date'][:10]}, {machine()}, {context['num_cpus']} CPUs, {caches(context)}. "
        f"Kernels: {context['isa']}. g++ {context['compiler']}"
        + (f", torch {context['torch']}" if "torch" in context else "")
        + f". Load average when it began: {context['load_avg'][0]:.1f}."
    )
    yield ""
    yield (
        f"Medians of {results.repetitions} repetitions in random order, all in one process on the "
        "same memory (one thread by its "
        "own CPU clock, two threads by the wall clock); in brackets half "
        "the range between the quartiles in per cent of the median. Plain read: the fastest of "
        "several ways to read the memory "
        "and do nothing with it, chosen for each size (4 or 8 vectors at a time, `ahead`: with "
        "prefetches, `pages`: one "
        "at each step, of the page four pages ahead, `narrow`: 32-byte vectors, `shared`: by two "
        "threads). A table cell is plain-read time over scan time, in per cent."
    )
    yield ""
    yield (
        "`quick`: is anything NaN or Inf, and the largest magnitude. `full`: all counts, extremes, "
        "sum of squares (in float64; "
        "of 16-bit formats sixteen at a time in float32 first)."
    )
    for threads in (1, 2):
        yield ""
        yield f"## {threads} thread{'s' if threads > 1 else ''}"
        yield ""
        if threads > 1:
            yield "Scans of less than 1 MB stay on one thread."
            yield ""
        yield from scan_table(results, threads)
    yield ""
    yield "## Small tensors"
    yield ""
    yield "Nanoseconds a call."
    yield ""
    yield from small_table(results)
    yield ""
    yield "## Beside torch"
    if results.has("isfinite_all"):
        yield ""
        yield "Microseconds for one tensor, answer on the host included. Torch's unscale also writes the tensor back."
        for dtype in DTYPES:
            for threads in (1, 2):
                yield ""
                yield f"{dtype}, {threads} thread{'s' if threads > 1 else ''}:"
                yield ""
                yield from torch_table(results, dtype, threads)
    else:
        yield ""
        yield "Not measured: built without torch."
    yield ""
    yield "## Aims"
    yield ""
    yield from reach(results)
    yield ""
    yield "## Not reached, and why"
    yield ""
    yield from not_reached(results)
    if notes:
        yield ""
        yield notes.rstrip("\n")


def main(source, target=None):
    with open(source, encoding="utf-8") as file:
        results = Results(json.load(file))
    notes_path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "notes.md")
    notes = open(notes_path, encoding="utf-8").read() if os.path.exists(notes_path) else ""
    text = "\n".join(page(results, notes)) + "\n"
    if target is None:
        sys.stdout.write(text)
        return
    with open(target, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
