"""The truth about a case without finitude: python -m zoo.plain [--filter SUBSTR] [--variant-seeds 3]

Runs the script alone, and its variants, and looks at losses, gradients, parameters, optimizer state and buffers around
every optimizer step. Says the first bad step, what was bad there, and which ops of that step made it. Nothing of ours
is imported, so that what `expected.json` declares of a variant can be held against a second opinion."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import argparse
import gc
import multiprocessing
import runpy
import sys
import tempfile
import warnings
from pathlib import Path

from . import cases, variants
from .judge import plain_op

CLASSIC = {"loss", "gradient"}


class Witness:
    """Hooks around every backward and every optimizer step of one process; ends it at the first bad step."""

    def __init__(self, script, report):
        self.script, self.report = str(script), report
        self.losses, self.bad_losses, self.steps, self.phase, self.made = 0, [], {}, "forward", []
        self.bad_from_the_start = (
            None  # buffers that hold NaN before the first step, by intent or until they are filled
        )
        self.skips = 0  # steps in a row that a loss scaler skipped

    def install(self):
        import torch
        from torch.optim import optimizer

        plain_backward = torch.autograd.backward

        def backward(tensors, *rest, **named):
            roots = tensors if isinstance(tensors, (list, tuple)) else [tensors]
            if any(bad(root) for root in roots):
                self.bad_losses.append(self.losses)
            self.losses += 1
            self.phase = "backward"
            try:
                return plain_backward(tensors, *rest, **named)
            finally:
                self.phase = "forward"

        torch.autograd.backward = backward
        self.watch_scaler(torch.amp.GradScaler)
        optimizer.register_optimizer_step_pre_hook(self.before_step)
        optimizer.register_optimizer_step_post_hook(self.after_step)

    def watch_scaler(self, scaler):
        """A scaler leaves bad steps out before the optimizer hears of them: a bad loss shows here, and so does a
        streak."""
        plain_step, plain_update = scaler.step, scaler.update

        def step(own, optimizer, *rest, **named):
            if self.bad_losses:
                self.before_step(optimizer)
            done = self.steps.get(id(optimizer), 0)
            result = plain_step(own, optimizer, *rest, **named)
            self.skips = self.skips + 1 if self.steps.get(id(optimizer), 0) == done else 0
            return result

        def update(own, *rest, **named):
            plain_update(own, *rest, **named)
            if self.skips > 20 or self.skips and own.get_scale() < 1:
                self.report(
                    {
                        "step": max(self.steps.values(), default=0),
                        "kinds": {"gradient"},
                        "made": set(self.made),
                        "micro_batch": 0,
                    }
                )
                os._exit(0)

        scaler.step, scaler.update = step, update

    def before_step(self, optimizer, *_):
        owned = [p for group in optimizer.param_groups for p in group["params"]]
        kinds = {"loss"} if self.bad_losses else set()
        kinds |= {"gradient"} if any(bad(p.grad) for p in owned if p.grad is not None) else set()
        kinds |= {"parameter"} if any(bad(p) for p in owned) else set()
        poisoned = {id(b) for b in buffers() if b.isnan().any()}
        if self.bad_from_the_start is None:
            self.bad_from_the_start = poisoned
        kinds |= {"buffer"} if poisoned - self.bad_from_the_start else set()
        self.end_if(kinds, optimizer)
        self.phase = "optimizer"

    def after_step(self, optimizer, *_):
        owned = [p for group in optimizer.param_groups for p in group["params"]]
        kinds = {"parameter"} if any(bad(p) for p in owned) else set()
        kinds |= {"state"} if any(bad(v) for state in optimizer.state.values() for v in state.values()) else set()
        self.end_if(kinds, optimizer)
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        self.losses, self.bad_losses, self.phase, self.made = 0, [], "forward", []

    def end_if(self, kinds, optimizer):
        if kinds:
            self.report(
                {
                    "step": self.steps.get(id(optimizer), 0),
                    "kinds": kinds,
                    "made": set(self.made),
                    "micro_batch": self.bad_losses[0] if self.bad_losses else 0,
                }
            )
            os._exit(0)

    def line(self):
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_filename != self.script:
            frame = frame.f_back
        return frame.f_lineno if frame else None


def bad(value):
    import torch

    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return False
    value = value.detach().coalesce().values() if value.is_sparse else value.detach()
    return not (value.float() if value.element_size() == 1 else value).isfinite().all()  # float8 cannot be asked


def buffers():
    import torch

    modules = [o for o in gc.get_objects() if issubclass(type(o), torch.nn.Module)]  # isinstance asks dead proxies
    return [b for m in modules for b in m.buffers(recurse=False) if b.is_floating_point()]


def ops_that_made_it(witness):
    """A mode that notes every op with finite inputs and a bad output, or a NaN of its own making."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    def state(values):
        tensors = [v.detach() for v in tree_leaves(values) if isinstance(v, torch.Tensor) and bad(v)]
        dense = [t.coalesce().values() if t.is_sparse else t for t in tensors]
        return bool(dense), any((t.float() if t.element_size() == 1 else t).isnan().any() for t in dense)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            bad_in, nan_in = state((args, kwargs))
            out = func(*args, **(kwargs or {}))
            bad_out, nan_out = state(out)
            if bad_out and not bad_in or nan_out and not nan_in:
                phase = witness.phase
                witness.made.append((phase, func.overloadpacket._qualified_op_name, witness.line()))
            return out

    return Mode()


def child(script, compiled, pipe):
    os.chdir(tempfile.mkdtemp())
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    warnings.simplefilter("ignore")
    witness = Witness(script, pipe.send)
    witness.install()
    try:
        if compiled:  # a mode of ours would keep it from being compiled
            runpy.run_path(str(script), run_name="__main__")
        else:
            with ops_that_made_it(witness):
                runpy.run_path(str(script), run_name="__main__")
        pipe.send({"step": None, "kinds": set(), "made": set(), "micro_batch": 0})
    except BaseException as problem:
        pipe.send({"error": repr(problem)})


def observe(script, compiled=False, limit=60):
    """What a plain run of the script shows, in a fork of this process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(script, compiled, theirs))
    process.start()
    observed = ours.recv() if ours.poll(limit) else {"error": "said nothing"}
    process.kill()
    process.join()
    return observed


def objections(observed, expected):
    """Where a plain run contradicts the expectation; an empty list where it does not."""
    if "error" in observed:
        return [observed["error"]]
    if expected["expect"] == "silent" or "sink" not in expected:  # ruined by finite values: nothing is bad anywhere
        return [f"step {observed['step']} is bad: {sorted(observed['kinds'])}"] if observed["kinds"] else []
    out = []
    wanted, seen = set(expected["sink"]), observed["kinds"]
    if observed["step"] != expected["step"]:
        out.append(f"first bad step {observed['step']}, declared {expected['step']}")
    exact = wanted <= CLASSIC  # later sinks follow from these, so that parameters may be bad as well as state
    if not wanted & seen or exact and seen != wanted or bool(expected.get("harmless")) != (seen == {"loss"}):
        out.append(f"bad there: {sorted(seen)}, declared {sorted(wanted)}")
    if "micro_batch" in expected and observed["micro_batch"] != expected["micro_batch"]:
        out.append(f"micro batch {observed['micro_batch']}")
    return out


def births(observed, case):
    """The ops of a plain run that are the truth about the case: those of the declared statement, or of its backward."""
    ops = {plain_op(op) for op in case.expected.get("ops", [])}
    return {
        (phase, op, line)
        for phase, op, line in observed.get("made", ())
        if line in case.lines or phase == "backward" and plain_op(op) in ops
    }


def compare(case, observed, folder, seed):
    """What a variant contradicts of its declaration, and what else differs from the script as it is."""
    other = variants.plain_variant(case, folder, seed)
    varied = observe(other.script, case.expected.get("cold", False))
    wrong = objections(varied, other.expected)
    if births(observed, case) and not births(observed, case) & births(varied, other):
        wrong.append(f"born elsewhere: {sorted(varied.get('made', ()), key=str)}")
    differs = observed.get("made", set()) ^ varied.get("made", set())
    lines = [f"{'not ' * (made in observed.get('made', ()))}made here: {made}" for made in sorted(differs, key=str)]
    return wrong, lines


def main(argv=None):
    p = argparse.ArgumentParser(prog="python -m zoo.plain", description=__doc__.splitlines()[0])
    p.add_argument("--filter", default="", metavar="SUBSTR")
    p.add_argument("--set", default="", metavar="SETS")
    p.add_argument("--variant-seeds", type=int, default=1, metavar="N", help="how many variants of each case")
    options = p.parse_args(argv)
    import torch
    import torch._dynamo  # noqa: F401

    torch.set_num_threads(1)
    contradicted = 0
    for case in cases.choose(options.filter, options.set):
        observed = observe(case.script, case.expected.get("cold", False))
        wrong, notes = objections(observed, case.expected), []
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(options.variant_seeds):
                more_wrong, more_notes = compare(case, observed, Path(folder) / str(seed), seed)
                wrong += [f"variant {seed}: {text}" for text in more_wrong]
                notes += [f"    variant {seed}, not judged: {text}" for text in more_notes]
        contradicted += bool(wrong)
        wrong = [f"    WRONG {text}" for text in wrong]
        print(f"{case.slug}: first bad step {observed.get('step')}", *wrong, *notes, sep="\n", flush=True)
    print(f"{contradicted} cases contradict what they declare")
    return 1 if contradicted else 0


if __name__ == "__main__":
    sys.exit(main())
