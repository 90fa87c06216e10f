"""Turns the JSON of finitude_bench_sense into docs/kernels.md.

    python3 bench/sense/report.py kernels.json [docs/kernels.md]

Each figure is the median of the repetitions, which ran in random order; behind it stands half the range between the
quartiles. One thread is timed by its own CPU clock, two by the wall clock. A share is that of plain-read bandwidth:
time of the fastest plain read over time of the scan. Only the standard library is used.
"""

import collections
import json
import os
import platform
import statistics
import sys

DTYPES = ("float32", "bfloat16", "float16", "float64")
TORCH = (
    ("isfinite_all", "`isfinite().all()`"),
    ("foreach_norm", "`_foreach_norm`"),
    ("amp_unscale", "`_amp_foreach_non_finite_check_and_unscale_`"),
)
LARGE = 16 << 20  # from here on it is memory bandwidth that counts
REACH = {"quick, 16 MB and more": 0.95, "full, 16 MB and more": 0.75, "quick, below 16 MB": 0.75}


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

    def plain_read(self, threads, size):
        """(variant, timing) of the fastest."""
        reads = {
            key[0].split(":")[1]: timing
            for key, timing in self.timings.items()
            if key[0].startswith("plain_read") and key[2:] == (threads, size)
        }
        return min(reads.items(), key=lambda item: item[1].median)

    def share(self, what, dtype, threads, size):
        timing = self.timings.get((what, dtype, threads, size))
        return timing and self.plain_read(threads, size)[1].median / timing.median

    def has(self, what):
        return any(key[0] == what for key in self.timings)


def rate(timing, size):
    return f"{size / timing.median:.3g}"


def percent(share, timing):
    return f"{100 * share:.0f} ({100 * timing.spread:.1f})"


def scan_table(results, threads):
    head = "| bytes | plain read GB/s | " + " | ".join(f"{what} {dtype}" for dtype in DTYPES for what in ("quick", "full")) + " |"
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


def reach(results):
    """Each aim, in how many cells of the tables it holds, and the cells where it does not."""
    yield "| aim, share of plain read | cells that reach it | those that do not |"
    yield "|---|---|---|"
    for aim, least in REACH.items():
        what = aim.split(",")[0]
        large = "more" in aim
        cells, missed = 0, []
        for threads in (1, 2):
            for dtype in DTYPES:
                for size in results.sizes:
                    if (size >= LARGE) != large:
                        continue
                    cells += 1
                    share = results.share(what, dtype, threads, size)
                    if share < least:
                        plural = "s" if threads > 1 else ""
                        missed.append(f"{dtype} {size_name(size)} {threads} thread{plural}: {100 * share:.0f} %")
        yield f"| {aim}: {100 * least:.0f} % | {cells - len(missed)} of {cells} | {'; '.join(missed) or 'none'} |"
    small = results.timings["quick_small", "float32", 1, 0].median / 1024
    yield f"| a small tensor, quick: 20 ns | {'reached' if small <= 20 else 'not reached'} | {small:.1f} ns |"


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
    yield "Generated by `bench/sense/report.py`; to make it anew on your machine: `make bench-sense`."
    yield ""
    yield (
        f"{context['date'][:10]}, {machine()}, {context['num_cpus']} CPUs, {caches(context)}. "
        f"Kernels: {context['isa']}. g++ {context['compiler']}"
        + (f", torch {context['torch']}" if "torch" in context else "")
        + f". Load average when it began: {context['load_avg'][0]:.1f}."
    )
    yield ""
    yield (
        f"Medians of {results.repetitions} repetitions in random order, all in one process on the same memory (one thread by its "
        "own CPU clock, two threads by the wall clock); in brackets half "
        "the range between the quartiles in per cent of the median. Plain read: the fastest of several ways to read the memory "
        "and do nothing with it, chosen for each size (4 or 8 vectors at a time, `ahead`: with prefetches, `narrow`: 32-byte "
        "vectors, `shared`: by two threads). A table cell is plain-read time over scan time, in per cent."
    )
    yield ""
    yield "`quick`: is anything NaN or Inf, and the largest magnitude. `full`: all counts, extremes, sum of squares in float64."
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
