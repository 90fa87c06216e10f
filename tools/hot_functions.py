"""Writes cmake/hot_functions.ld: the functions of finitude that every healthy step runs. usage: hot_functions.py [--steps
N] [--check]

Linked one behind the other they lie on a few pages; strewn over the 4 MB of the extension they would lie on eighty, and
so many entries of the address translation are what the program then has to look up again. Counted by valgrind's
callgrind in real steps, so the list is made again where what a step runs has changed much; a name that is missing or
gone costs a page and nothing else. Needs valgrind and a build in build/, whose library has its symbols (the installed
one is stripped).

--check says how many pages of our code one step of the installed build touches, by the kernel's marks, and writes
nothing."""

import argparse
import bisect
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.lines import callgrind  # noqa: E402
from bench.overhead import machine  # noqa: E402

PAGE = ROOT / "cmake" / "hot_functions.ld"
RUNS = (("tiny", "list"), ("tiny", "loader"), ("mlp", "loader"))
HEAD = """/* What every healthy step runs, by mangled name; written by tools/hot_functions.py. One behind the other these functions lie on a few
   pages instead of eighty, and a step of the program looks up as many entries of its address translation less. Names that match nothing
   are skipped. */
SECTIONS
{
  .text.finitude_hot :
  {
"""
TAIL = """  }
}
INSERT BEFORE .text;
"""


def counted(kind, batches, steps, folder):
    """The calls of each address in our library, of so many steps."""
    out = pathlib.Path(folder, f"{kind}-{batches}.out")
    env = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONSAFEPATH": "1",
    }
    done = subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={out}",
            machine.python(),
            str(ROOT / "bench/lines/steps.py"),
            kind,
            "all",
            str(steps),
            batches,
        ],
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(
            f"hot_functions: {kind}: exit code {done.returncode}: "
            f"{(done.stderr.strip().splitlines() or ['nothing'])[-1]}"
        )
    return callgrind.calls_into(out.read_text(errors="replace"), "_native.")


def symbols():
    libraries = sorted((ROOT / "build").glob("cp3*/_engines/*/_native*.so"), key=lambda p: p.stat().st_mtime)
    if not libraries:
        raise SystemExit("hot_functions: there is no build/cp3*/_engines/*/_native*.so; run make build")
    listed = subprocess.run(
        ["nm", "--defined-only", str(libraries[-1])], capture_output=True, text=True, check=True
    ).stdout
    found = collections.defaultdict(list)
    for line in listed.splitlines():
        words = line.split(" ", 2)
        if len(words) == 3 and words[1] in "tTwW":
            found[int(words[0], 16)].append(words[2])
    return found


def pattern(name):
    """The section of a function, whichever instruction set and clone of it was counted."""
    name = re.sub(r"\d+N_(AVX2|AVX3|SSE4|SSE2|SSSE3)\w*?E", "*", name)  # a namespace of Highway
    return re.sub(r"\.(constprop|isra|part)\.\d+$", "", name) + "*"


def touched(steps=10):
    """Pages of our library's code that one step of a small model reads, the median of some steps: the kernel marks what
    is referenced (proc(5), clear_refs and smaps)."""
    import statistics

    import torch
    from bench.overhead import arms, models, worker

    def marked():
        pages, ours = 0, False
        for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
            words = line.split()
            if re.match(r"[0-9a-f]+-[0-9a-f]+$", words[0]):
                ours = "x" in words[1] and "/_native." in words[-1]
            elif words[0] == "Referenced:" and ours:
                pages += int(words[1]) // 4
        return pages

    class OneByOne:
        def __init__(self):
            self.at, self.found = 0, []

        def next(self):
            self.at += 1
            if self.at > 2:
                self.found.append(marked())
            pathlib.Path("/proc/self/clear_refs").write_text("1")
            return (200 if self.at == 1 else 0 if self.at == steps + 2 else 1), None, None, None, None

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        job = models.Job("tiny", "adamw", loader=False)
        job.joint = False
        arms.Finitude(job, pathlib.Path(folder)).on()
        turns = OneByOne()
        worker.train(job, turns)
    print(f"{statistics.median(turns.found):.0f} pages of our code in a step", flush=True)
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description="Writes cmake/hot_functions.ld.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--check", action="store_true", help="say how many pages of our code a step touches, and write nothing"
    )
    options = parser.parse_args()
    if options.check:
        touched()
    known, wanted = symbols(), set()
    places = sorted(known)
    with tempfile.TemporaryDirectory() as folder:
        for kind, batches in RUNS:
            for address, calls in counted(kind, batches, options.steps, folder).items():
                if calls < options.steps // 2:
                    continue
                at = places[bisect.bisect_right(places, address) - 1]
                wanted.update(pattern(name) for name in known[at])
            print(f"{kind}, {batches}: {len(wanted)} functions so far", flush=True)
    PAGE.write_text(HEAD + "".join(f"    *(.text.{name})\n" for name in sorted(wanted)) + TAIL)
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
