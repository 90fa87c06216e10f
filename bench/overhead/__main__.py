"""python -m bench.overhead [--quick] [--only REGEX] [--fresh] [--page-only] [--minutes N] [--out FILE]

Measures every cell in a process of its own, in random order, and writes docs/overhead.md. Started again after an
interruption it continues where it stopped; results of other sources or another torch are measured again.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

from . import cells as cells_of, machine, page

ROOT = machine.ROOT
# Memory that was freed is kept by the process: else every step fetches it from the system again, is slower for it, and
# any ratio looks better.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 26),
}


def package_files():
    """The files of the finitude that the workers will import."""
    import importlib.util

    folder = pathlib.Path(importlib.util.find_spec("finitude").origin).parent
    return sorted(p for p in folder.iterdir() if p.suffix in (".py", ".so"))


def key():
    """Of everything that a result depends on, the machine but for its load included."""
    digest = hashlib.sha256(json.dumps([machine.versions(), os.cpu_count()]).encode())
    files = sorted(pathlib.Path(__file__).parent.glob("*.py"))
    own = [p for p in files if not p.name.startswith("page") and p.name != "regress.py"]
    for path in package_files() + own:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def environment(threads):
    """Of a worker, which runs in another directory."""
    paths = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {
        **os.environ,
        **MALLOC,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def run_cell(spec, timeout, env=None):
    """(result, "") or (None, what went wrong)."""
    folder = tempfile.mkdtemp(prefix="finitude-bench-")
    command = [machine.python(), str(ROOT / "bench/overhead/worker.py"), json.dumps({**spec, "folder": folder})]
    env = environment(spec["threads"]) if env is None else env
    if spec["measure"] == "memory":
        env = {k: v for k, v in env.items() if k not in MALLOC}
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, f"no result after {timeout:.0f} s"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = done.stdout.strip().splitlines()
    try:
        return json.loads(lines[-1]), ""
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return None, f"exit code {done.returncode}: {said[:300]}"


def fact_lines(folder, names, facts):
    """The lines about machine and versions; cells that were measured at another revision or day are named with
    theirs."""
    others = {}
    for name in names:
        path = folder / f"{name}.json"
        own = json.loads(path.read_text()).get("facts") if path.exists() else None
        if own and own != facts:
            others.setdefault("; ".join(line.lstrip("- ") for line in own if line not in facts), []).append(name)
    return facts + [f"- but {', '.join(sorted(cells))}: {said}" for said, cells in sorted(others.items())]


def measure(cells, folder, scale, fresh, say=print, facts=()):
    """Results by name of cell; those that are there already are taken. The second value is why cells failed."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted, results, failed = key(), {}, {}
    todo = []
    for cell in cells:
        path = folder / f"{cell.name}.json"
        kept = json.loads(path.read_text()) if path.exists() and not fresh else {}
        if kept.get("key") == wanted and kept.get("scale") == round(scale, 3):
            results[cell.name] = kept["result"]
        else:
            todo.append(cell)
    random.Random(wanted).shuffle(todo)
    if results:
        say(f"{len(results)} of {len(cells)} cells were measured before (--fresh measures them again)")
    left = sum(c.seconds * scale + cells_of.START_SECONDS for c in todo)
    for number, cell in enumerate(todo, 1):
        say(
            f"[{number} of {len(todo)}] {cell.name}, about {left / 60:.1f} min left, load {machine.load():.1f} ... ",
            end="",
            flush=True,
        )
        started = time.monotonic()
        peers = ROOT / "build/bench-peers"
        spec = cell.worker_spec(scale, peers=str(peers) if peers.exists() else "", seed=number)
        result, why = run_cell(spec, timeout=120 + 12 * cell.seconds)
        left -= cell.seconds * scale + cells_of.START_SECONDS
        if result is None:
            failed[cell.name] = why
            say(f"failed: {why}")
            continue
        results[cell.name] = result
        path = folder / f"{cell.name}.json"
        temporary = path.with_suffix(".new")
        temporary.write_text(
            json.dumps({"key": wanted, "scale": round(scale, 3), "result": result, "facts": list(facts)})
        )
        temporary.replace(path)
        say(f"{time.monotonic() - started:.0f} s")
    return results, failed


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__.split("\n\n")[1])
    parser.add_argument("--quick", action="store_true", help="some cells, at most 3 minutes")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="cells whose name matches; writes no page unless --out is given"
    )
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument(
        "--page-only", action="store_true", help="measure nothing; the page of what was measured before"
    )
    parser.add_argument("--minutes", type=float, default=None, help="how long it may take")
    parser.add_argument("--out", default=None, metavar="FILE", help="docs/overhead.md")
    options = parser.parse_args(argv)

    mode = "quick" if options.quick else "full"
    cells = cells_of.quick() if options.quick else cells_of.full()
    seconds = (
        60 * options.minutes if options.minutes else cells_of.QUICK_SECONDS if options.quick else cells_of.FULL_SECONDS
    )
    scale = cells_of.scale_for(cells, seconds)
    if options.only:
        cells = [c for c in cells if re.search(options.only, c.name)]
    folder = ROOT / "build/overhead" / mode
    command = "make bench-overhead" + (" ARGS=--quick" if options.quick else "")
    facts_file = folder / "measured-on.json"  # no cell's name
    if options.page_only:
        facts = json.loads(facts_file.read_text())
        results = {
            c.name: json.loads((folder / f"{c.name}.json").read_text())["result"]
            for c in cells
            if (folder / f"{c.name}.json").exists()
        }
        failed = {}
    else:
        started, facts = time.monotonic(), machine.lines(command)
        folder.mkdir(parents=True, exist_ok=True)
        if not options.only or not facts_file.exists():
            facts_file.write_text(json.dumps(facts))
        results, failed = measure(cells, folder, scale, options.fresh, facts=facts)
        print(f"{len(results)} cells in {(time.monotonic() - started) / 60:.1f} min")
    text, missed = page.write(
        results, failed, [c.name for c in cells], fact_lines(folder, [c.name for c in cells], facts), mode
    )
    out = pathlib.Path(options.out) if options.out else None if options.only else ROOT / "docs/overhead.md"
    if out is None:
        print(text)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
        print(f"wrote {out}")
    for line in missed:
        print("not reached:", line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
