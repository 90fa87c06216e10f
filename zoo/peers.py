"""What others say of the same cases: python -m zoo.peers [--filter P05] [--only PEER] [--json OUT]

Anomaly mode is PyTorch's own: it raises where a backward node returns NaN, and shows the forward call of that node. The
tracer is what TensorFlow, JAX and most home-made tools do: it stops at the first op whose inputs are finite and whose
output is not. sherlorch, where it is installed, walks back from a bad tensor to the calls whose inputs were finite; it
watches nothing itself, so it is asked of the loss at each backward, as its README does, and, which is more than it does
alone, of the gradients before each step. All run in a fork of this process, as `zoo.plain` does, and are judged on
alarm, step and line; none names a cause.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import argparse
import importlib.util
import json
import multiprocessing
import re
import runpy
import sys
import tempfile
import warnings
from pathlib import Path

from . import cases
from .plain import bad

PLACE = re.compile(r'File "(.+?)", line (\d+)')
RETURNED_NAN = re.compile(r"Function '\w+' returned nan values")


class Steps:
    """Counts the finished steps of every optimizer of this process."""

    def __init__(self):
        self.done = {}
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(self.begin)
        optimizer.register_optimizer_step_post_hook(self.count)

    def begin(self, own, *_):  # returns nothing: what a hook returns would replace the arguments of step
        self.done.setdefault(id(own), 0)

    def count(self, own, *_):
        self.done[id(own)] = self.done.get(id(own), 0) + 1

    def now(self):
        return sorted(set(self.done.values())) or [0]


def line_in(script):
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename != str(script):
        frame = frame.f_back
    return frame.f_lineno if frame else None


def anomaly(script, report, steps):
    """Anomaly mode: the line is the innermost one of the script in the traceback of the forward call."""
    import torch

    with warnings.catch_warnings(record=True) as said, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        try:
            runpy.run_path(str(script), run_name="__main__")
        except RuntimeError as problem:
            if not RETURNED_NAN.search(str(problem)):
                raise
            places = [place for one in said for place in PLACE.findall(str(one.message))]
            lines = [int(line) for file, line in places if file == str(script)]
            report({"steps": steps.now(), "line": lines[-1] if lines else None, "op": str(problem).split("'")[1]})
    report(None)


def tracer(script, report, steps):
    """The first op with finite inputs and a non-finite output, whatever becomes of it."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    def any_bad(values):
        return any(bad(value) for value in tree_leaves(values) if isinstance(value, torch.Tensor))

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            clean = not any_bad((args, kwargs))
            out = func(*args, **(kwargs or {}))
            if clean and any_bad(out):
                report({"steps": steps.now(), "line": line_in(script), "op": func.overloadpacket._qualified_op_name})
                os._exit(0)
            return out

    with Mode():
        runpy.run_path(str(script), run_name="__main__")
    report(None)


def sherlorch(script, report, steps):
    """Its first culprit, once the loss or a gradient is not finite."""
    import sherlorch as peer
    import torch
    from torch.optim import optimizer

    backward = torch.autograd.backward

    def ask(tensor):
        if tensor is None or not tracker.has_issue(tensor):
            return
        with torch._C.DisableTorchFunction():
            culprits = tracker.diagnose(tensor).culprits if tracker._get_node(tensor) else []
        file, _, line = (culprits[0].location or "").rpartition(":") if culprits else ("", "", "")
        found = int(line) if file == str(script) else None
        report({"steps": steps.now(), "line": found, "op": culprits[0].op_name if culprits else ""})
        os._exit(0)

    def asked(tensors, *args, **kwargs):
        for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
            ask(tensor)
        backward(tensors, *args, **kwargs)
        tracker.reset()

    def gradients(own, *_):
        for group in own.param_groups:
            for parameter in group["params"]:
                with torch._C.DisableTorchFunction():
                    gradient = parameter.grad
                ask(gradient)

    torch.autograd.backward = asked
    optimizer.register_optimizer_step_pre_hook(gradients)
    with peer.trace(capture_stack=True) as tracker:
        runpy.run_path(str(script), run_name="__main__")
    report(None)


PEERS = {"anomaly mode": anomaly, "first bad op": tracer}
if importlib.util.find_spec("sherlorch"):
    PEERS["sherlorch"] = sherlorch


def child(name, script, pipe):
    os.chdir(tempfile.mkdtemp())
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    warnings.simplefilter("ignore")
    try:
        PEERS[name](script, pipe.send, Steps())
    except BaseException:
        pipe.send(None)  # the script's own error: the peer said nothing


def observe(name, script, limit=60):
    """What the peer says of a script: steps, line and op, or None where it is silent."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(name, script, theirs))
    process.start()
    reported = ours.recv() if ours.poll(limit) else None
    process.kill()
    process.join()
    return reported


def judge(reported, case):
    """Marks as those of zoo.judge: alarm, step and line; of a silent case only whether it stayed silent."""
    if not case.positive:
        return {"verdict": reported is None}
    return {
        "verdict": reported is not None,
        "step": reported is not None and case.expected["step"] in reported["steps"],
        "line": reported is not None and reported["line"] in case.lines,
    }


def main(argv=None):
    p = argparse.ArgumentParser(prog="python -m zoo.peers", description=__doc__.splitlines()[0])
    p.add_argument("--filter", default="", metavar="SUBSTR")
    p.add_argument("--set", default="", metavar="SETS")
    p.add_argument("--only", default="", metavar="PEER", help="one of them: " + ", ".join(PEERS))
    p.add_argument("--json", metavar="OUT")
    options = p.parse_args(argv)
    import torch
    import torch._dynamo  # noqa: F401

    torch.set_num_threads(1)
    rows = []
    for case in cases.choose(options.filter, options.set):
        said = {name: observe(name, case.script) for name in PEERS if options.only in ("", name)}
        row = {
            "id": case.id,
            "slug": case.slug,
            "set": case.set,
            "expect": case.expected["expect"],
            "said": said,
            "marks": {name: judge(reported, case) for name, reported in said.items()},
        }
        rows.append(row)
        print(
            case.slug,
            *(
                f"{name}: {reported and (reported['steps'], reported['op'], reported['line'])} {row['marks'][name]}"
                for name, reported in said.items()
            ),
            sep="   ",
            flush=True,
        )
    if options.json:
        Path(options.json).write_text(json.dumps({"schema": 1, "cases": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
