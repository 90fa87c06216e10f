"""Runs every case under `finitude run` and scores the reports: python -m zoo.runner [--filter SUBSTR] [--jobs 2] ...

torch and finitude are imported once; each case is a fork of that process, so that a run of the zoo takes minutes and
not an hour. Nothing but imports happens before a fork: no op, no thread.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import argparse
import gc
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools import forked, warm_start

from . import cases, table, variants
from .judge import COLUMNS, agree, judge, passes, story, summarise

POLL_SECONDS = 0.02


class Run:
    """One case in a process group of its own, forked (warm) or started afresh (cold)."""

    starter = None  # forks second processes of forked cases

    def __init__(self, case, folder, cold, fill=0):
        """fill: what memory that nobody has written holds, in the process and those that it starts (see
        forked.fill_memory); 0: chance."""
        self.case, self.cold, self.fill = case, cold, fill
        self.folder = Path(folder) / f"{case.slug}.{'cold' if cold else 'warm'}"
        self.work = self.folder / "work"
        self.work.mkdir(parents=True)
        self.report_file = self.folder / "report.json"
        self.arguments = [
            "run",
            "--report",
            str(self.report_file),
            "--runs",
            str(self.folder / "runs"),
            str(case.script),
        ]
        self.started = time.monotonic()
        self.exit_code, self.seconds, self.timed_out = None, None, False
        self.pid = self.start_cold() if cold else self.start_warm()

    def start_cold(self):
        with open(self.folder / "stdout", "wb") as out, open(self.folder / "stderr", "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "finitude", *self.arguments],
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=child_environment(),
                start_new_session=True,
            )
        return self.process.pid

    def start_warm(self):
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os._exit(forked_child(self))
        return pid

    def poll(self, limit):
        """True once the run is over; past its limit the whole process group is killed."""
        if self.cold:
            code = self.process.poll()
        else:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if pid else None
        self.seconds = time.monotonic() - self.started
        if code is None and self.seconds > limit and not self.timed_out:
            self.timed_out = True
            self.kill()
        if code is None:
            return False
        self.exit_code = code
        self.kill()  # whatever the case left running
        return True

    def kill(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def report(self):
        try:
            return json.loads(self.report_file.read_text())
        except (OSError, ValueError):
            return None

    def last_words(self):
        text = (self.folder / "stderr").read_text(errors="replace").strip().splitlines()
        return text[-1] if text else ""


def child_environment():
    """The environment of a case: its working directory is another one, so relative import paths are made absolute."""
    paths = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def forked_child(run):
    """Body of a fork: becomes `finitude run ...` and ends as a process of its own would; returns the exit code."""
    if Run.starter is not None:
        warm_start.second_processes_from(Run.starter.name, run.arguments)
    environment = child_environment()
    os.setsid()
    os.chdir(run.work)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        opened = os.open(run.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.update(environment)
    forked.fill_memory(run.fill)
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    sys.argv = ["finitude", *run.arguments]
    sys.orig_argv = [sys.executable, "-m", "finitude", *run.arguments]

    def program():
        import finitude.cli.main

        return finitude.cli.main.main(list(run.arguments))

    return forked.end(forked.exit_code(program))


def execute(todo, jobs, limit, on_end):
    """Runs what Run is made of, (case, folder, cold) or with a fill, `jobs` at a time. What forked ones start to run a
    step again is forked too."""
    if Run.starter is None and "torch" in sys.modules:
        Run.starter = warm_start.Starter()
    waiting, running = list(reversed(todo)), []
    try:
        while waiting or running or (Run.starter is not None and Run.starter.running()):
            while waiting and len(running) < jobs:
                running.append(Run(*waiting.pop()))
            order = Run.starter.turn() if Run.starter is not None else None
            if order is not None:
                os._exit(second_process(order))
            for run in list(running):
                if run.poll(limit):
                    running.remove(run)
                    on_end(run)
            time.sleep(POLL_SECONDS)
    finally:
        for run in running:
            run.kill()


def second_process(order):
    """Body of the fork that a run has asked for; returns the exit code."""
    program = warm_start.second(order)
    forked.fill_memory(int(os.environ.get("MALLOC_PERTURB_", "0")))
    return forked.end(forked.exit_code(program))


def import_once():
    """What every case needs; imports only."""
    import torch
    import torch._dynamo  # noqa: F401

    import finitude
    import finitude.cli.main  # noqa: F401

    forked.import_what_runs_import()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page of what was imported here
    return torch.__version__, getattr(finitude, "__version__", "?")


def cold_sample(chosen, seed):
    """A seeded tenth of the cases, at least one, and those that compile: a fork may hide what that starts with. (A
    second process is a fresh interpreter here, and a fork in a forked run.)"""
    if seed == "off" or not chosen:
        return []
    sample = random.Random(f"cold/{seed}").sample(chosen, -(-len(chosen) // 10))
    return sample + [c for c in chosen if c not in sample and c.expected.get("cold", False)]


def as_json(summary, results, ok):
    rows = [
        {
            "id": r["case"].id,
            "slug": r["case"].slug,
            "set": r["case"].set,
            "expect": r["case"].expected["expect"],
            "marks": r["marks"],
            "got": r["got"],
            "cold_agrees": r["cold"],
            "seconds": round(r["seconds"], 2),
            "timed_out": r["timed_out"],
            "stories": r.get("stories"),
            "note": r["note"],
        }
        for r in results
    ]
    return {
        "schema": 1,
        "columns": list(COLUMNS),
        "pass": ok,
        "summary": summary,
        "sets": {
            name: summarise(some) for name in cases.SETS if (some := [r for r in results if r["case"].set == name])
        },
        "cases": rows,
    }


def parse(argv):
    p = argparse.ArgumentParser(prog="python -m zoo.runner", description=__doc__.splitlines()[0])
    p.add_argument("--filter", default="", metavar="SUBSTR", help="only cases whose folder name contains this")
    p.add_argument("--set", default="", metavar="SETS", help="only cases of these sets, e.g. own-first,own-second")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--limit", type=float, default=60, metavar="SECONDS", help="time limit of one case")
    p.add_argument("--cold", action="store_true", help="a fresh process for every case, no forks")
    p.add_argument(
        "--cold-sample",
        default="0",
        metavar="SEED",
        help="seed of the tenth that also runs in a fresh process, besides every case with compiled code; "
        "'off' for none",
    )
    p.add_argument(
        "--metamorphic", action="store_true", help="score variants: names renamed, lines moved, seeds and sizes changed"
    )
    p.add_argument("--variant-seed", type=int, default=0, help="another number, other names, lines and seeds")
    p.add_argument("--json", metavar="OUT")
    p.add_argument("--keep", metavar="DIR", help="leave reports and outputs of all cases here")
    return p.parse_args(argv)


def main(argv=None):
    options = parse(argv)
    chosen = cases.choose(options.filter, options.set)
    if not chosen:
        print(f"no case of {options.set or 'all sets'} matches {options.filter!r}", file=sys.stderr)
        return 2
    folder = Path(options.keep or tempfile.mkdtemp(prefix="finitude-zoo-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if options.metamorphic:
            chosen = [variants.variant(case, folder / "variants", options.variant_seed) for case in chosen]
        if not options.cold:
            import_once()
        ended = {}

        def on_end(run):
            ended[run.case.slug, run.cold] = run

        execute([(case, folder, options.cold) for case in chosen], options.jobs, options.limit, on_end)
        also_cold = [] if options.cold else cold_sample(chosen, options.cold_sample)
        execute([(case, folder, True) for case in also_cold], options.jobs, options.limit, on_end)
        results = []
        for case in chosen:
            run = ended[case.slug, options.cold]
            report = run.report()
            marks, got = judge(report, run.exit_code, case)
            note = "time limit" if run.timed_out else run.last_words() if report is None else ""
            twin = ended.get((case.slug, True)) if case in also_cold else None
            results.append(
                {
                    "case": case,
                    "marks": marks,
                    "got": got,
                    "seconds": run.seconds,
                    "note": note,
                    "timed_out": run.timed_out,
                    "cold": agree(report, twin.report()) if twin else None,
                    "stories": [story(report), story(twin.report()), twin.exit_code, twin.last_words()]
                    if twin
                    else None,
                }
            )
        summary = summarise(results)
        ok = passes(summary) and all(r["cold"] is not False for r in results)
        print(table.render(results, summary, ok))
        if options.json:
            Path(options.json).write_text(json.dumps(as_json(summary, results, ok), indent=1) + "\n")
        return 0 if ok else 1
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def with_fixed_hashes():
    """Starts this program again where the order of sets is left to chance: a fork cannot change it any more."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "zoo.runner", *sys.argv[1:]])


if __name__ == "__main__":
    with_fixed_hashes()
    sys.exit(main())
