"""finitude on and off in one process, many times over. Off has to be exactly as if it had never been there."""

import resource

import torch
from torch.utils.data import dataloader


def _patched_places():
    from torch.optim import optimizer

    clip = torch.nn.utils.clip_grad
    scaler = torch.amp.GradScaler
    return {
        "backward": torch.autograd._engine_run_backward,
        "clip_grad_value_": clip.clip_grad_value_,
        "nn.utils.clip_grad_value_": torch.nn.utils.clip_grad_value_,
        "clip hook": clip._clip_grads_with_norm_,
        "Optimizer.__init__": torch.optim.Optimizer.__dict__["__init__"],
        "GradScaler.scale": scaler.__dict__["scale"],
        "GradScaler.step": scaler.__dict__["step"],
        "DataLoader.__iter__": dataloader.DataLoader.__dict__["__iter__"],
        "DataLoader.__next__": dataloader._BaseDataLoaderIter.__dict__["__next__"],
        "pre-hooks": tuple(optimizer._global_optimizer_pre_hooks.values()),
        "post-hooks": tuple(optimizer._global_optimizer_post_hooks.values()),
    }


class NotOff(Exception):
    """A part of finitude is left after switching off: no comparison with it would be honest."""


class Finitude:
    """The recorder of this process, made once; `on` and `off` put its functions into torch and take them out."""

    def __init__(self, job, folder):
        self.before = _patched_places()
        import finitude  # noqa: F401  the engine's libraries after torch's
        from finitude import _native, api
        from finitude.session import install, native_callbacks

        self.native, self.install, self.cold, self.job = _native, install, native_callbacks, job
        self.watch = api.watch(job.model, job.optimizer, runs=str(folder), report="")
        self.session = native_callbacks.session
        self.refused = ""  # why no copies are taken of two optimizers in one iteration; "": they are
        self.off()

    def decide_on_copies(self):
        """After some steps that took them: does the recorder go on with it, by its rule for what they may cost?"""
        self.refused = self.native.jump_refused()

    def on(self, undo_mb=0, gate_only=False, trace=False, tape=False, tape_every=0, copies=False):
        """tape_every: one step in so many is recorded, 0 for each. copies: those for the jump are taken whatever was
        decided about them."""
        from finitude.rerun import budgets

        self.install.install()
        self.native.set_undo_budget(undo_mb << 20)
        if hasattr(self.native, "jump_refused"):  # each stretch of steps is too short for the rule to speak again
            takes = copies or not self.refused
            self.native.set_jump_budget(budgets.COPIES_MB << 20 if takes else 0, budgets.COPIES_SHARE)
        if hasattr(self.native, "set_keeps_window_start"):
            self.native.set_keeps_window_start(not gate_only)
        if trace:
            self.native.set_trace_level(True)
            self.native.trace_start()
        if tape:
            self.native.set_tape_level(2 << 30, tape_every)
            self.native.tape_window_begins()
        if hasattr(self.native, "time_piece"):
            self.native.time_piece("frames", None, 2)  # installing made the table of code objects again

    def off(self):
        self.install.uninstall()
        self.native.set_trace_level(False)
        self.native.trace_clear()
        self.check_off()

    def check_off(self):
        now = _patched_places()
        left = [name for name, value in self.before.items() if now[name] is not value and now[name] != value]
        for optimizer in filter(None, (self.job.optimizer, getattr(self.job, "second", None))):
            hooks = optimizer._optimizer_step_post_hooks
            if "finitude_check" in hooks:  # waits to be taken out at the next step that we see; does nothing until then
                del hooks["finitude_check"]
            left += [f"hook {name}" for name in hooks if str(name).startswith("finitude")]
        if left or self.native.is_on() or self.native.trace_on():
            raise NotOff(", ".join(left) or "the engine is still on")

    def has_meter(self):
        return hasattr(self.native, "meter_start")

    def close(self):
        """The counters of everything that was watched, and the failure that switched us off, if one did."""
        counters, failure = self.native.counters(), self.session.report.failure
        alarms = len(self.session.report.alarms)
        self.session.done = True  # no report, no closing line: this is no run of the user's
        self.watch.close()
        self.off()
        return {**counters, "failure": failure, "alarms": alarms}


class Arm:
    """What is on during a stretch of steps. The loop calls these where they are not None."""

    begin = check_loss = check_gradients = end = None  # with the batch, with the loss, after backward, after the step
    steps = None  # steps in a stretch; None: as many as the others

    def planned(self, steps):
        """How many steps the stretches of the others have."""

    def enter(self):
        """Before the steps of a stretch, those that only warm up included."""

    def timed(self):
        """Right before the clock is read."""

    def stopped(self):
        """Right after it was read again."""

    def leave(self):
        """After the stretch."""


class Off(Arm):
    pass


class On(Arm):
    """finitude on. metered: its pieces are timed in place, step by step; a step in which the system gave the CPU to
    somebody else is left out of them, not of the step's own time. long: each step is long enough that this happens in
    nearly all of them, and seldom within a piece of ours: then none is left out, and the median takes no notice of the
    few."""

    def __init__(self, finitude, metered=False, long=False, **options):
        self.finitude, self.options, self.metered, self.long, self.pieces = finitude, options, metered, long, []
        if metered:
            self.end, self.lap, self.interrupted = self._end, finitude.native.meter_lap, 0

    def _end(self):
        interrupted = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        self.lap(interrupted != self.interrupted and not self.long)
        self.interrupted = interrupted

    def enter(self):
        self.finitude.on(**self.options)

    def timed(self):
        if self.metered:
            self.interrupted = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
            self.finitude.native.meter_start()

    def stopped(self):
        if self.metered:
            steps, pieces = self.finitude.native.meter_stop()
            if steps:
                self.pieces.append({name: [ns / steps, calls / steps] for name, (ns, calls) in pieces.items()})

    def leave(self):
        self.finitude.off()


class TapeEvery(On):
    """One step in `every` is recorded: a stretch has as many of both kinds as a run has."""

    def __init__(self, finitude, every):
        super().__init__(finitude, tape=True, tape_every=every)
        self.every = every

    def planned(self, steps):
        self.steps = max(1, round(steps / self.every)) * self.every


class Traced(On):
    """What a step's trace does, in ops and bytes, beside how long it takes."""

    def __init__(self, finitude, **options):
        super().__init__(finitude, **options)
        self.effort = []  # of each stretch, without the steps that warm up

    def timed(self):
        self.begun = self.finitude.native.trace_effort()

    def stopped(self):
        self.effort.append([now - then for then, now in zip(self.begun, self.finitude.native.trace_effort())])


class Armed(Traced):
    """One step under the full trace up to where the optimizer would step: there the second run of a bad step ends."""

    steps = 1

    def timed(self):
        super().timed()
        self.finitude.native.trace_start()

    def check_gradients(self):
        self.finitude.native.trace_stop()

    def stopped(self):
        super().stopped()
        self.finitude.native.trace_clear()


def call_through(native):
    """Nanoseconds that torch's Python spends on reaching our functions at all, with the recorder off: beside the meter,
    which starts inside them. The shortest of several trials, one thread."""
    import itertools
    import time

    def shortest(call, count=20000, trials=7):
        best = float("inf")
        for _ in range(trials):
            start = time.thread_time_ns()
            call(count)
            best = min(best, time.thread_time_ns() - start)
        return best / count

    def hooks(table):
        def run(count):
            for _ in range(count):
                for hook in itertools.chain(table.values(), {}.values()):
                    result = hook(1, 2, 3)
                    if result is not None:
                        break

        return run

    def backward(function):
        def run(count):
            for _ in range(count):
                function((), (), False, False, (), allow_unreachable=True, accumulate_grad=True)

        return run

    def clip(function):
        def run(count):
            for _ in range(count):
                function([], 1.0, None, False)

        return run

    class Plain:
        def __iter__(self):
            return self

        def __next__(self):
            return None

    def drawing(source):
        def run(count):
            for _ in zip(range(count), source):
                pass

        return run

    loader_iter, loader_next = (
        dataloader.DataLoader.__dict__["__iter__"],
        dataloader._BaseDataLoaderIter.__dict__["__next__"],
    )
    native.configure(None, native.nothing, native.nothing)
    Ours = type("Ours", (Plain,), {"__next__": native.loader_methods(loader_iter, Plain.__dict__["__next__"])[1]})
    found = {
        "hook": shortest(hooks({0: native.nothing})) - shortest(hooks({})),
        "backward": shortest(backward(native.engine_run_backward)) - shortest(backward(native.nothing)),
        "clip": shortest(clip(native.clip_grads_with_norm)) - shortest(clip(native.nothing)),
        "loader": shortest(drawing(Ours())) - shortest(drawing(Plain())),
    }
    native.loader_methods(loader_iter, loader_next)
    return {name: max(0.0, ns) for name, ns in found.items()}
