"""The word `selftest` of the command line."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile

from ..base import config
from . import verdict
from .options import HELP, UsageError, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

OK, BAD, USAGE, CANNOT = 0, 1, 2, 4


class Cannot(Exception):
    pass


def _settings(folder):
    """What the recorder is set to: what the user's own configuration says, but for where things go."""
    settings = config.load({})
    settings.on_alarm, settings.level, settings.capsules = "stop", "gate", 0
    settings.report, settings.runs = os.path.join(folder, "report.json"), os.path.join(folder, "runs")
    values = vars(settings).copy()
    values.pop("selftest")
    return values


def run_child(arguments, folder, seconds):
    """One run of the program in a process group of its own. Its output goes to a file of the folder."""
    paths = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    environment = {**os.environ, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}
    with open(os.path.join(folder, "output.txt"), "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "finitude.selftest", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            process.wait()


def _load(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


class Program:
    """The user's program, run from its beginning to one step as often as is asked for."""

    def __init__(self, options, folder, run=run_child):
        self.options, self.folder, self.run, self.runs = options, folder, run, 0

    def _start(self, **more):
        folder = os.path.join(self.folder, f"{self.runs:03d}")
        self.runs += 1
        os.makedirs(folder)
        order = os.path.join(folder, "order.json")
        with open(order, "w", encoding="utf-8") as f:
            json.dump(
                {
                    "folder": folder,
                    "step": self.options.at_step,
                    "rank": self.options.rank,
                    "settings": _settings(folder),
                    **more,
                },
                f,
            )
        try:
            self.run([order, *self.options.target], folder, self.options.seconds)
        finally:
            os.unlink(order)
        return folder

    def places(self) -> Any:
        folder = self._start()
        places = _load(os.path.join(folder, "places.json"))
        if not places:
            raise Cannot(
                f"the program offers no place in step {self.options.at_step}: it ended before, or does not train "
                f"(its last words: {_last_words(folder)})"
            )
        return places

    def inject(self, place, value, element):
        """{"place", "verdict", "differences", "report", ...} of one run."""
        folder = self._start(place=place, value=value, element=element)
        injections = [
            t
            for name in sorted(os.listdir(folder))
            if name.startswith("injected-") and (t := _load(os.path.join(folder, name)))
        ]
        first = min(injections, key=lambda t: len(t["injected"]) == 0, default=None)
        put = first["injected"][0] if first else None
        report = _load(os.path.join(folder, "report.json"))
        word, different = verdict.judge(put, first["bad"] if first else [], report)
        alarm = report["alarms"][0] if report and report["alarms"] else None
        return {
            "place": place,
            "value": value,
            "verdict": word,
            "element": put and put["element"],
            "bad": first["bad"] if first else [],
            "differences": {what: list(pair) for what, pair in different.items()},
            "alarm": alarm,
            "words": _last_words(folder) if word == verdict.NOT_REACHED else "",
        }


def _last_words(folder):
    with open(os.path.join(folder, "output.txt"), encoding="utf-8", errors="replace") as f:
        lines = f.read().strip().splitlines()
    return lines[-1][:200] if lines else "none"


def fits(place, options):
    """Is it one of those that the options ask for?"""
    if place["phase"] not in options.phases():
        return False
    if options.op and options.op not in (place["op"], place["op"].partition("::")[2]):
        return False
    if options.module:
        path = place["module"].partition(".")[2]
        if (
            options.module not in (place["module"], path)
            and not path.startswith(options.module + ".")
            and not place["module"].startswith(options.module + ".")
        ):
            return False
    if options.tensor and place["name"] != options.tensor:
        return False
    if options.line:
        file, _, line = options.line.rpartition(":")
        if not line.isdigit() or int(line) != place["line"] or not place["file"].endswith(file):
            return False
    return True


def choose(places, options):
    """Single places, each with the how many-th time it is: all that fit, or so many of them at random."""
    single = [
        {**{k: v for k, v in p.items() if k != "count"}, "number": n}
        for p in places
        if fits(p, options)
        for n in range(1, p["count"] + 1)
    ]
    if options.places and options.places < len(single):
        chosen = random.Random(options.seed).sample(range(len(single)), options.places)
        single = [single[i] for i in sorted(chosen)]
    return single


def in_words(place):
    """ "forward aten::log at train.py:12 in Classifier.head"."""
    words = [place["phase"], place["op"] or place["name"] or "-"]
    if place["node"]:
        words.append(f"({place['node']})")
    if place["line"]:
        words.append(f"at {os.path.basename(place['file'])}:{place['line']}")
    if place["module"]:
        words.append(f"in {place['module']}")
    return " ".join(words)


def _list(places, options):
    shown = [p for p in places if fits(p, options)]
    if options.json:
        sys.stdout.write(json.dumps({"step": options.at_step, "places": shown}, indent=1) + "\n")
    else:
        for place in shown:
            sys.stdout.write(in_words(place) + (f"  x{place['count']}" if place["count"] > 1 else "") + "\n")
    if not options.json and not options.quiet:
        sys.stderr.write(f"finitude selftest: {sum(p['count'] for p in shown)} places in step {options.at_step}\n")
    return OK if shown else CANNOT


_SAYS = {
    verdict.FOUND: "found there",
    verdict.ELSEWHERE: "NOT FOUND THERE",
    verdict.MISSED: "MISSED",
    verdict.HARMLESS: "no alarm: the value reached no loss, gradient or weight",
    verdict.NOT_REACHED: "not reached",
}


def _print_result(number, count, result):
    text = (
        f"{number}/{count} {result['value']} at step {result['step']}, "
        f"{in_words(result['place'])}: {_SAYS[result['verdict']]}"
    )
    for what, (put, found) in result["differences"].items():
        text += f"\n      {what}: put in at {put}, found at {found}"
    if result["words"]:
        text += f" ({result['words']})"
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def summary(results):
    counts = {word: sum(1 for r in results if r["verdict"] == word) for word in _SAYS}
    return {"tried": len(results), **{word.replace("-", "_"): count for word, count in counts.items()}}


def _test(program, options):
    places = program.places()
    if options.list:
        return _list(places, options)
    chosen = choose(places, options)
    if not chosen:
        raise Cannot(f"no place of step {options.at_step} fits; --list shows them")
    random_element = random.Random(options.seed + 1)
    results = []
    for number, place in enumerate(chosen, 1):
        result = {**program.inject(place, options.value, random_element.random()), "step": options.at_step}
        results.append(result)
        if not options.json and not options.quiet:
            _print_result(number, len(chosen), result)
    counts = summary(results)
    if options.json:
        for result in results:
            result.pop("words")
        sys.stdout.write(
            json.dumps({"step": options.at_step, "seed": options.seed, **counts, "results": results}, indent=1) + "\n"
        )
    elif not options.quiet:
        harmless = f", {counts['harmless']} harmless" if counts["harmless"] else ""
        sys.stdout.write(
            f"{counts['found']} of {len(results) - counts['harmless']} found where they were put in{harmless}\n"
        )
    if counts["elsewhere"] or counts["missed"] or counts["not_reached"]:
        return BAD
    if not counts["found"]:
        raise Cannot("none of these places matters to a loss, gradient or weight; try others (--seed, --places)")
    return OK


def command(rest: Sequence[str]) -> int:
    """Returns the exit code."""
    if rest and rest[0] in ("-h", "--help"):
        sys.stdout.write(HELP)
        return OK
    try:
        options = parse(rest)
    except UsageError as e:
        sys.stderr.write(f"finitude selftest: {e}\n(finitude selftest --help shows the options)\n")
        return USAGE
    if options.target[0] != "-m" and not (os.path.exists(options.target[0]) or shutil.which(options.target[0])):
        sys.stderr.write(f"finitude selftest: cannot read {options.target[0]}: No such file or directory\n")
        return CANNOT
    folder = tempfile.mkdtemp(prefix="finitude-selftest-")
    try:
        return _test(Program(options, folder), options)
    except config.UsageError as e:
        sys.stderr.write(f"finitude selftest: {e}\n")
        return USAGE
    except Cannot as e:
        sys.stderr.write(f"finitude selftest: {e}\n")
        return CANNOT
    except OSError as e:  # the program cannot be started, or there is no room
        sys.stderr.write(f"finitude selftest: {e.filename or 'the program'}: {e.strerror or e}\n")
        return CANNOT
    finally:
        if options.keep:
            shutil.copytree(folder, options.keep, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
