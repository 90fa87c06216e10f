"""The second run of a program of several ranks: all of it starts once more, and each rank that stopped is armed at its
step.

Only after the first run has ended: where an alarm ended it, and for one that it continued from where that does not take
long."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import threading
import time

from ..base import family, pages, plain_json
from ..base.say import say
from ..program import ranks
from ..report import capsule_alarm
from .overlay_fs import Overlay, directories_of, scratch_outside, written_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ..base.types import Config, Family, Order
    from ..report.merge import Member

ORDER = "order.json"  # in the directory of a rank: what a second run of it is to explain
RERUNS = ("persistent", "transient", "order-dependent", "not-run")  # docs/format/report.md
TOGETHER = (
    "one rank alone cannot run a step again that exchanges values with others; with --level "
    "trace every step is recorded"
)
ELSEWHERE = (
    "not all ranks of the run were watched here, and those of other machines cannot be started again from this one; "
    "run with --level trace, it records every step"
)
LONGEST = 300  # seconds: where the first run took longer up to a step that did not end it, it is not run again for that
FILL = 0x3C  # of freed memory, where a second run asks for that; what is handed out holds its complement
_POLL = 0.1
_WITNESS_S = 20  # for the end of their step, where the ranks that are wanted have reported
_PR_SET_PDEATHSIG = 1
# What alarms of ranks that step together share.
_OF_THE_STEP = ("step", "micro_batch", "optimizer", "policy", "level", "weights", "harmless", "action")


def fresh_memory(orders: Iterable[Order]) -> dict[str, str]:
    """The environment of a second run of those orders: where a value was bad at the start, or memory is asked about, it
    is filled, see first_values.py."""
    asked = any(order.get("start") or order.get("memory") for order in orders)
    return {"MALLOC_PERTURB_": str(FILL)} if asked else {}


def _order(read):
    """An order as a process of the run left it, as far as it is read here; ValueError for what is none."""
    if (
        not isinstance(read, dict)
        or type(read.get("step")) is not int
        or not isinstance(read.get("decided", []), list)
        or not all(read.get(key) is None or isinstance(read[key], str) for key in ("capsule", "capsule_in_report"))
    ):
        raise ValueError("no order")
    return read


def _result(read):
    """Likewise what the second run found."""
    findings = read.get("findings") if isinstance(read, dict) else None
    if (
        not isinstance(findings, dict)
        or not all(isinstance(read.get(key), str) for key in ("rerun", "text"))
        or type(read.get("step")) is not int
        or type(read.get("verified")) is not bool
        or not (read.get("no_capsule") is None or isinstance(read["no_capsule"], str))
    ):
        raise ValueError("no result")
    if (
        findings.get("births")
        and not {"births", "cause", "fix", "path"} <= set(findings)
        or read["rerun"] not in RERUNS
    ):
        raise ValueError("no findings")
    return read


def _listed(document: Any, order: Any) -> Any:
    """The alarm of that order in the report of a rank. Ranks that step together report equally many."""
    alarms, number = document["alarms"], order.get("listed")
    if not _is_count(number) or number >= len(alarms) and not document.get("alarms_unlisted"):
        return None
    found = alarms[min(number, len(alarms) - 1)]  # in the place of the last where the report is full
    return found if found and found["step"] == order["step"] else None


def _without_advice(text):
    """What a rank said of ways to run its step again, less that all ranks would have to (TOGETHER)."""
    return "; ".join(t for t in text.split("; ") if t and t not in TOGETHER.split("; "))


class _Wanted:
    """An alarm that a second run is to explain, and the files of its order and result."""

    def __init__(self, member, order, directory):
        self.member, self.order = member, order
        alarm = _listed(member.document, order)
        is_open = alarm and alarm["rerun"] == "not-run" and not any(b.get("file") for b in alarm["births"])
        self.alarm: Any = alarm if is_open else None
        self.path = os.path.join(directory, f"rank-{member.rank}.json")
        self.result = order["result"] = os.path.join(directory, f"rank-{member.rank}.result.json")

    def done(self) -> bool:
        return os.path.exists(self.result)

    def take_over(self, files: str, redact: int) -> bool:
        """True if the second run came to that step. files: what has to be said of those that it wrote."""
        try:
            found = _result(plain_json.read(self.result))
        except (OSError, ValueError):
            return False
        explained = (
            {key: found["findings"][key] for key in ("births", "cause", "fix", "path")}
            if found["findings"].get("births")
            else {}
        )
        if not _is_alarm({**self.alarm, **explained, "step": found["step"]}):
            return False
        earlier = _without_advice(self.alarm["rerun_text"])
        self.alarm.update(explained)
        self.alarm.update(
            step=found["step"],
            rerun=found["rerun"],
            rerun_by="restart",
            rerun_verified=found["verified"],
            rerun_text="; ".join(t for t in (found["text"], files) if t) + (f" ({earlier})" if earlier else ""),
        )
        if (
            found.get("capsule")
            and self.order.get("capsule")
            and os.path.isfile(os.path.join(self.order["capsule"], "capsule.json"))
        ):
            self.alarm["capsule"] = self.order["capsule_in_report"]
            if redact:
                self.alarm["capsule_redacted"] = True
            capsule_alarm.complete(self.alarm, redact)
        elif found.get("no_capsule"):
            self.member.document["watched"].setdefault("not_watched", []).append(found["no_capsule"])
        _save(self.member)
        return True


class _Witness:
    """A rank of which nothing is to be explained, in a step in which another one received what was not finite. As it
    all runs again, it is looked at what this rank holds, and where that is finite, what it gave others: what it gave
    that was not finite becomes its alarm."""

    def __init__(self, member, other, directory):
        self.member, self._other = member, other
        self.path = os.path.join(directory, f"rank-{member.rank}.json")
        self.order = {key: value for key, value in other.order.items() if key not in ("alarm", "capsule", "memory")}
        self.order.update(witness=True, start=None, compiled=False, expected={}, named=[])
        self.order["result"] = os.path.join(directory, f"rank-{member.rank}.result.json")

    def done(self) -> bool:
        return os.path.exists(self.order["result"])

    def take_over(self, files: str) -> bool:
        """True if it made a value that was not finite and gave it away. files: as of _Wanted.take_over."""
        try:
            found = _result(plain_json.read(self.order["result"]))
        except (OSError, ValueError):
            return False
        births = found["findings"].get("births")
        if not births or not isinstance(births[0], dict) or births[0].get("phase") == "communication":
            return False
        document = self.member.document
        own = _listed(document, self.order)
        given = {
            **{key: self._other.alarm[key] for key in _OF_THE_STEP if key in self._other.alarm},
            "rank": self.member.rank,
            "sink": {"kind": "gradient", "name": "what another rank was given"},
            "text": "what this rank gave another one is not finite",
            "capsule": None,
        }
        alarm = {
            **(own if own and own["cause"]["class"] != "other-rank" else given),
            **{key: found["findings"][key] for key in ("births", "cause", "fix", "path")},
            "rerun": found["rerun"],
            "rerun_by": "restart",
            "rerun_verified": False,
            "rerun_text": "; ".join(t for t in (found["text"], files) if t),
        }
        if not _is_alarm(alarm):
            return False
        document["alarms"] = [a for a in document["alarms"] if a is not own] + [alarm]
        document.update(outcome="alarm", reason=alarm["text"])
        _save(self.member)
        return True


def _save(member):
    text = pages.as_json(member.document)
    pages.write(os.path.join(member.directory, "report.json"), text.encode())
    pages.write_html(os.path.join(member.directory, "report.html"), text)


def _is_count(value):
    return type(value) is int and 0 <= value < 1 << 63


def _has(value, **types):
    return isinstance(value, dict) and all(isinstance(value.get(key), of) for key, of in types.items())


def _is_alarm(alarm):
    """Has it what merging relies on? What a second run left may be anything."""
    return (
        _has(alarm, sink=dict, births=list, cause=dict)
        and _has(alarm["sink"], kind=str, name=str)
        and _has(alarm["cause"], **{"class": str})
        and _is_count(alarm.get("step"))
        and _is_count(alarm.get("rank", 0))
        and all(_has(birth, phase=str) for birth in alarm["births"])
    )


def _orders(members, directory):
    wanted = []
    for member in members:
        if member.rank is None or not member.document:
            continue
        try:
            one = _Wanted(member, _order(plain_json.read(os.path.join(member.directory, ORDER))), directory)
        except (OSError, ValueError):
            continue
        if one.alarm is not None:
            wanted.append(one)
    return wanted


def _witnesses(members, wanted, directory):
    """The ranks that have no order of their own: one of them may have given the others what is not finite."""
    other = wanted[0]
    if other.order.get("hand") is not None or other.order["written"] or other.order["first"] != other.order["step"]:
        return []  # such a value is one of the rank's own state
    have = {one.member.rank for one in wanted}
    return [_Witness(m, other, directory) for m in members if m.rank is not None and m.document and m.rank not in have]


def _moment(one):
    """The same on all ranks that are in one alarm; steps of several optimizers may have one number."""
    return one.order["step"], len(one.order.get("decided", ()))


def _worth_it(wanted, settings, seconds):
    """Of those alarms, the ones for which the program is run again: those that ended it, and what other ranks saw at
    the same step, which may be where it came from; else the last that it continued from, where its step was harmless or
    skipped and it does not take long."""
    ended = [
        one
        for one in wanted
        if not one.alarm.get("harmless") and (settings.on_alarm == "stop" or "stopped" in str(one.alarm.get("action")))
    ]
    if ended:
        at = {_moment(one) for one in ended}
        return [one for one in wanted if one in ended or _moment(one) in at]
    steps = max((one.member.document["watched"].get("steps", 0) for one in wanted), default=0)
    last = max((_moment(one) for one in wanted), default=(0, 0))
    is_short = seconds * (last[0] + 1) / max(1, steps) <= LONGEST
    return [one for one in wanted if is_short and _moment(one) == last]


def explain(
    members: list[Member],
    command: Sequence[str],
    environment: Mapping[str, str],
    settings: Config,
    seconds: float,
    cwd: str | None = None,
    again: str = "",
) -> bool:
    """Runs the whole program again for the alarms that ended it or are still to be explained, and puts what was found
    into the members' reports. seconds: how long the first run took. again: the user's command that watches it with
    --level trace, or "". True if an alarm was explained."""
    if settings.on_alarm in ("raise", "warn"):
        return False
    cwd = cwd or os.getcwd()
    directory = scratch_outside(*directories_of(cwd, command[1:]))
    try:
        wanted = _worth_it(_orders(members, directory), settings, seconds)
        if not wanted:
            return False
        size = max(m.document["watched"].get("ranks", 1) for m in members if m.document)
        if len({m.rank for m in members if m.rank is not None}) < size:
            for one in wanted:
                earlier = _without_advice(one.alarm["rerun_text"])
                one.alarm["rerun_text"] = "; ".join(t for t in (earlier, ELSEWHERE) if t)
                _save(one.member)
            say(f"finitude: {ELSEWHERE}" + (f". On each machine: {again}\n" if again else "\n"))
            return False
        witnesses = _witnesses(members, wanted, directory)
        if len(wanted) + len(witnesses) < size and any(one.order.get("decided") for one in wanted):
            return False  # a rank that has no order would apply what all of them skipped before
        for one in [*wanted, *witnesses]:
            with open(one.path, "w", encoding="utf-8") as f:
                json.dump(one.order, f)
        why, files = _run(wanted, witnesses, command, environment, settings, directory, seconds, cwd)
        explained = [one for one in wanted if one.take_over(files, settings.redact)]
        for one in witnesses if explained else ():
            one.take_over(files)
        for one in wanted:
            if one not in explained:
                one.alarm["rerun_text"] = why
        return bool(explained)
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # whatever is left of the second run sees that, and ends


def _run(wanted, witnesses, command, environment, settings, directory, seconds, cwd):
    """(why the program, run again, did not come to every step that was asked for, what has to be said of its files)."""
    environment = {**environment, **fresh_memory(one.order for one in wanted)}
    scratch, overlay = scratch_outside(*directories_of(cwd, command[1:])), None
    try:
        overlay = Overlay(
            scratch,
            cwd,
            command[1:],
            time.time() - seconds,
            [os.path.abspath(settings.runs), directory, scratch],
            stay=[directory, *sorted({one.member.directory for one in wanted})],
        )
    except OSError:
        pass  # its files are written a second time then, which is said
    try:
        why = _wait_for(wanted, witnesses, command, environment, settings, directory, seconds, cwd, overlay)
        said = overlay.ended() if overlay is not None else written_below([cwd])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return why, said


def _wait_for(wanted, witnesses, command, environment, settings, directory, seconds, cwd, overlay):
    """Runs it until all that are wanted have reported, and witnesses have or had some time. Why some have not."""
    family.announce(environment, "", settings, directory)
    step, limit = max(one.order["step"] for one in wanted), max(120.0, 6 * seconds)
    say(
        f"finitude: running the program again up to step {step}, all ranks "
        f"(the first run took {seconds:.0f} s; Ctrl-C skips this) ...\n"
    )
    with_us = ends_with_us(signal.SIGTERM)

    def before_exec():
        if overlay is not None:
            overlay.before_exec()
        with_us()

    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=cwd,
            preexec_fn=before_exec,
        )
    except (OSError, subprocess.SubprocessError) as e:
        return f"the program could not be started again: {getattr(e, 'strerror', None) or e}"
    if overlay is not None:
        overlay.began()
    began = time.monotonic()
    before = _on_sigterm(_interrupt)
    try:
        while process.poll() is None and not all(one.done() for one in wanted):
            if time.monotonic() - began > limit:
                return f"the program, run again, did not reach step {step} within {limit:.0f} s"
            time.sleep(_POLL)
        patience = time.monotonic() + _WITNESS_S
        while process.poll() is None and not all(one.done() for one in witnesses) and time.monotonic() < patience:
            time.sleep(_POLL)
        return f"the program, run again, ended before step {step}"
    except KeyboardInterrupt:
        return "the second run was interrupted"
    finally:
        _end(process)
        _on_sigterm(before)


def _interrupt(*_):
    raise KeyboardInterrupt


def _on_sigterm(handler):
    """Sets it; the one before, or None where this is not the main thread."""
    try:
        return signal.signal(signal.SIGTERM, handler) if handler is not None else None
    except ValueError:
        return None


def ends_with_us(number: int) -> Callable[[], Any]:
    """What a process calls before exec so that it gets that signal should we die."""
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, number)


def _end(process):
    """A launcher ends its processes when it is asked to; what does not answer is killed."""
    for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue


def order_for_me(home: Family) -> Order | None:
    """In the second run: what this process is to explain, or None."""
    rank, size = ranks.world()
    try:
        order = plain_json.read(os.path.join(home.orders, f"rank-{rank}.json"))
        return order if order["ranks"] == size else None
    except (OSError, ValueError):
        return None


def end_with(directory: str) -> None:
    """In the second run: this process ends when the one that wanted it is done with it."""

    def watch():
        while os.path.isdir(directory):
            time.sleep(5 * _POLL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
