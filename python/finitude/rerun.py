"""Runs the bad step a second time under full trace: as it was traced, by rewinding, or in a second process."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import torch

from . import _native, discover, intake
from .report import number, safe


def fingerprint(optimizer):
    """What must come out again, bit for bit: the losses of the window and the gradients as scanned."""
    window = _native.window(optimizer)
    return {
        "losses": [l["sum"] for l in window["losses"]],
        # Where all values are NaN the bits prove little; a run on other data draws other numbers.
        "generator": _native.checksum(torch.get_rng_state()),
        "gradients": [_native.checksum(p.grad) if p.grad is not None else 0 for p in discover.parameters(optimizer)],
    }


def _facts(session, optimizer):
    points = [{"loss": number(l), "grad": number(g), "lr": number(r)} for l, g, r in _native.history()]
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    lr, eps = group.get("lr", 0.0), group.get("eps", 0.0)
    scaler = session.scaler
    start = session.started_with.get(id(optimizer), 0.0)
    return json.dumps(safe({
        "points": points, "param_absmax": [start, discover.largest_parameter(optimizer)] if start > 0 else [],
        "lr_now": float(lr), "optimizer": type(optimizer).__name__,
        "optimizer_eps": float(eps) if isinstance(eps, (int, float)) else 0.0,
        "half_parameters": any(p.dtype in (torch.float16, torch.bfloat16) for p in discover.parameters(optimizer)),
        "scaler_active": scaler is not None, "scale": float(scaler.get_scale()) if scaler is not None else 0.0,
        "scaler_skips_in_row": session.scaler_skips_in_row.get(id(optimizer), (0, 0))[0],
    }))


def _name_values(session, optimizer):
    """Tells the trace what the storages are that it saw."""
    names = discover.names(optimizer)
    for name, p in zip(names, discover.parameters(optimizer)):
        _native.trace_name(p, "parameter", name)
        state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
        for key, value in (state or {}).items():
            if isinstance(value, torch.Tensor):
                _native.trace_name(value, "state", f"{name}.{key}")
    for name, b in discover.buffers(optimizer):
        _native.trace_name(b, "buffer", name)
    for tensor in session.allowed_tensors:
        _native.trace_name(tensor, "constant", "allowed")


MAX_OPS = 100_000


def analyse(session, optimizer, sinks, want_ops=0):
    """The findings of the trace that was just taken."""
    _native.trace_stop()
    for kind, name, tensor in sinks or ():
        if tensor is not None and not _native.is_finite(tensor):
            _native.trace_sink(kind, name, tensor)
    _name_values(session, optimizer)
    findings = json.loads(_native.analyse(_facts(session, optimizer), want_ops))
    _native.trace_clear()
    return findings


def apply_findings(alarm, findings):
    if findings.get("births"):
        intake.name_loop_line(findings["births"][0])
        alarm["births"] = findings["births"]
        alarm["cause"] = findings["cause"]
        alarm["fix"] = findings["fix"]
        alarm["path"] = findings["path"]


def as_loaded_state(alarm):
    """What a parameter or state held before the first step is state, whatever wrote it there."""
    for birth in alarm["births"][:1]:
        if birth["phase"] != "memory":
            birth["phase"] = "state"
            if alarm["cause"]["class"] != "uninitialised-memory":
                held = alarm["sink"]["name"]
                alarm["cause"] = {**alarm["cause"], "class": "corrupted-state", "experiments": [], "confidence": "likely",
                                  "text": f"{held} was not finite before any step was taken: a bad checkpoint or initial value"}
                alarm["fix"] = None


def last_ops():
    findings = json.loads(_native.analyse("{}", MAX_OPS))
    _native.trace_clear()
    return findings.get("ops", [])


# -- --level trace ----------------------------------------------------------------------------------


def try_trace(session, optimizer, alarm, sinks):
    """The step was traced while it ran the first time."""
    if session.config.level != "trace" or not _native.trace_on():
        return False
    findings = analyse(session, optimizer, sinks, MAX_OPS if session.config.report else 0)
    session.report.trace_ops = findings.pop("ops", None)
    apply_findings(alarm, findings)
    alarm["rerun_by"], alarm["rerun_text"] = "trace", "every op was recorded as the step ran (--level trace)"
    _native.trace_start()
    return True


# -- rewind -----------------------------------------------------------------------------------------


class _Quiet:
    """Holds what the second run writes to stdout and stderr back, and drops it."""

    def __init__(self):
        self._saved = []
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass
        try:
            sink = os.open(os.devnull, os.O_WRONLY)
            for fd in (1, 2):
                self._saved.append((fd, os.dup(fd)))
                os.dup2(sink, fd)
            os.close(sink)
        except OSError:
            self.end()

    def end(self):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass
        while self._saved:
            fd, copy = self._saved.pop()
            os.dup2(copy, fd)
            os.close(copy)


def begin_rewind(session, optimizer, alarm, sinks):
    """Puts the window's start back. True: returning from the vetoed call runs it again."""
    why = _native.rewind_check(optimizer)
    if why is None and (own := discover.unwatched_generators(session.generators)):
        why = f"the program draws from a generator of its own ({', '.join(own[:3])})"
    if why is not None:
        alarm["rerun_text"] = f"rewind: {why}"
        return False
    expected = fingerprint(optimizer)
    held = [(kind, name, tensor.clone() if tensor is not None else None) for kind, name, tensor in sinks]
    why = _native.rewind_begin()
    if why is not None:
        alarm["rerun_text"] = f"rewind: {why}"
        return False
    session.holds.hold(optimizer)
    session.holds.hold_scaler(session.scaler)
    for p in discover.parameters(optimizer):
        if p.grad is not None:
            p.grad = torch.zeros_like(p.grad)
    session.pending = {"alarm": alarm, "sinks": held, "expected": expected, "optimizer": optimizer, "quiet": _Quiet()}
    _native.trace_clear()
    _native.trace_start()
    return True


def end_rewind(session, optimizer, pending):
    """The second run reached `step` again. True if it did what the first did, and the alarm now tells why."""
    _native.trace_stop()
    pending["quiet"].end()
    alarm = pending["alarm"]
    why = _native.rewind_end()
    same = fingerprint(optimizer)
    if why is None and same != pending["expected"]:
        why = "loss or gradients came out with other bits"
    if pending["optimizer"] is not optimizer:
        why = "another optimizer stepped first"
    if why is not None:
        alarm["rerun_text"] = f"rewind did not reproduce the step: {why}"
        _native.trace_clear()
        return False
    sinks = _sinks_now(optimizer)
    apply_findings(alarm, analyse(session, optimizer, sinks))
    alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"] = "persistent", "rewind", True
    alarm["rerun_text"] = "rewound and run again in place; loss and gradients came out with the same bits"
    return True


def abandon_rewind(session):
    """The second run did not come back to `step` (the script raised or ended in it)."""
    pending, session.pending = session.pending, None
    _native.trace_stop()
    _native.trace_clear()
    _native.rewind_end()
    pending["quiet"].end()
    pending["alarm"]["rerun_text"] = "rewind: the second run did not come back to this step"
    return pending


def _sinks_now(optimizer):
    names, params = discover.names(optimizer), discover.parameters(optimizer)
    sinks = [("gradient", n, p.grad) for n, p in zip(names, params) if p.grad is not None and not _native.is_finite(p.grad)]
    if not sinks:
        sinks = [("buffer", n, b) for n, b in discover.persistent_buffers(optimizer)
                 if (found := _native.statistics(b)) and found["nan"]]
    return sinks


def watched_optimizers():
    import gc

    found = [o for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer)]
    return [o for o in found if _native.is_registered(o)]


def pending_window(session):
    """The optimizer, alarm and sinks of a window that holds a non-finite loss or gradient, or None."""
    for optimizer in watched_optimizers():
        window = _native.window(optimizer)
        losses = [l for l in window["losses"] if l["bad"] and l["owned"]]
        sinks = _sinks_now(optimizer)
        if not losses and not sinks:
            continue
        kind, name = ("loss", "loss") if losses else sinks[0][:2]
        alarm = session._new_alarm(optimizer, kind, name)
        alarm["loss"] = number(float(losses[0]["value"])) if losses else None
        alarm["text"] = "loss is not finite" if losses else f"{kind} {name} is not finite"
        alarm["optimizer_ordinal"] = window["ordinal"]
        return optimizer, alarm, sinks
    return None


def loss_in_frames(session, error):
    """A script that checks its loss before backward and gives up: the loss is a variable of the frames that raised."""
    optimizers = watched_optimizers()
    traceback = getattr(error, "__traceback__", None)
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    for frame in reversed(frames):
        if discover.is_library(frame.f_code.co_filename):
            continue
        for name, value in list(frame.f_locals.items()):
            if isinstance(value, torch.Tensor) and value.grad_fn is not None and value.numel() == 1 and \
                    not _native.is_finite(value) and optimizers:
                alarm = session._new_alarm(optimizers[0], "loss", name)
                alarm["loss"] = number(float(value.detach()))
                alarm["text"] = f"{name} is not finite and was not given to backward"
                alarm["optimizer_ordinal"] = _native.window(optimizers[0])["ordinal"]
                return optimizers[0], alarm, [("loss", name, value)]
    return None


# -- restart ----------------------------------------------------------------------------------------

ENVIRONMENT = "FINITUDE_RESTART"


def by_restart(session, optimizer, alarm, expected, written):
    """Starts the same program again in a second process, armed at this step, and takes over what it found."""
    start = session.start
    if start is None:
        alarm["rerun_text"] = (alarm["rerun_text"] + "; " if alarm["rerun_text"] else "") + \
            "the program cannot be started again from here; run it under `finitude run`, or with --level trace"
        return False
    with tempfile.TemporaryDirectory(prefix="finitude-") as directory:
        order = os.path.join(directory, "order.json")
        result = os.path.join(directory, "result.json")
        with open(order, "w", encoding="utf-8") as f:
            json.dump({
                "ordinal": alarm["optimizer_ordinal"], "step": alarm["step"], "written": written, "result": result,
                "expected": expected, "seeds": start.seeds, "threads": torch.get_num_threads(),
            }, f)
        environment = {**os.environ, ENVIRONMENT: order}
        if start.hash_seed is not None:
            environment["PYTHONHASHSEED"] = start.hash_seed
        began = time.monotonic()
        took_first = began - start.monotonic
        limit = max(120.0, 6 * took_first)
        try:
            process = subprocess.Popen(start.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, env=environment, cwd=start.cwd)
        except OSError as e:
            alarm["rerun_text"] = f"the second process could not be started: {e.strerror}"
            return False
        said = False
        try:
            while process.poll() is None:
                waited = time.monotonic() - began
                if waited > limit:
                    process.kill()
                    process.wait()
                    alarm["rerun_text"] = f"the second process did not reach step {alarm['step']} within {limit:.0f} s"
                    return False
                if waited > 3 and not said:
                    said = True
                    sys.stderr.write(f"finitude: running the program again up to step {alarm['step']} in a second process "
                                     f"(the first took {took_first:.0f} s) ...\n")
                time.sleep(0.02)
        except BaseException:
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise
        try:
            with open(result, encoding="utf-8") as f:
                found = json.load(f)
        except (OSError, ValueError):
            alarm["rerun_text"] = f"the second process ended (exit code {process.returncode}) before step {alarm['step']}"
            return False
    apply_findings(alarm, found["findings"])
    alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"] = found["rerun"], "restart", found["verified"]
    alarm["rerun_text"] = found["text"] + (f" ({alarm['rerun_text']})" if alarm["rerun_text"] else "")
    return True


class Target:
    """In the second process: what it was sent to explain."""

    def __init__(self, order):
        self.order = order
        self.finished = False

    @classmethod
    def from_environment(cls):
        path = os.environ.pop(ENVIRONMENT, None)
        if not path:
            return None
        with open(path, encoding="utf-8") as f:
            return cls(json.load(f))

    def arm(self):
        """From the start for the first step, else when the step before is applied."""
        if self.order["step"] == 0:
            _native.trace_start()
        _native.arm_at(self.order["ordinal"], self.order["step"], self.order["written"])

    def _is_mine(self, optimizer, after=0):
        window = _native.window(optimizer)
        return window["ordinal"] == self.order["ordinal"] and window["step"] - after == self.order["step"]

    def is_start(self, optimizer):
        return self._is_mine(optimizer)

    def on_window(self, session, optimizer):
        if not self._is_mine(optimizer) or self.order["written"]:
            if self._is_mine(optimizer, after=1) and self.order["written"]:
                self.finish(session, optimizer, [])
            return None
        self.finish(session, optimizer, _sinks_now(optimizer))

    def on_written(self, session, optimizer, sinks):
        if self.order["written"] and self._is_mine(optimizer, after=1):
            self.finish(session, optimizer, sinks)

    def program_ended(self, session, error):
        found = (pending_window(session) or loss_in_frames(session, error)) if not self.finished else None
        if found is not None:
            self.finish(session, found[0], found[2])
        os._exit(3)

    def finish(self, session, optimizer, sinks):
        """Analyses, writes the result and ends this process without running any more of the user's code."""
        self.finished = True
        now = fingerprint(optimizer)
        verified = now == self.order["expected"] or self.order["written"] and bool(sinks)
        findings = analyse(session, optimizer, sinks)
        if verified:
            verdict, text = "persistent", "the program was run again from its start in a second process, armed at this step; " \
                "loss and gradients came out with the same bits"
        elif findings["births"]:
            verdict, text = "order-dependent", "run again from its start in a second process; it failed again, with other bits"
        else:
            verdict, text = "transient", "run again from its start in a second process; the step came out finite"
        temporary = self.order["result"] + ".tmp"
        with open(temporary, "w", encoding="utf-8") as f:
            json.dump({"findings": findings, "rerun": verdict, "verified": verified, "text": text}, f)
        os.replace(temporary, self.order["result"])
        os._exit(0)
