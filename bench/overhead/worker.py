"""One cell: a training in a process of its own, in which tools are switched on and off in random order.

    python bench/overhead/worker.py '{"kind": "mlp", ...}'      prints one line of JSON, the last on stdout

The loop below is an ordinary one, with a DataLoader, in a function that a main calls: what a rewind keeps of a real run
(generators, frames, batches, buffers) is kept here too, and is part of what is measured.
"""

import gc
import json
import pathlib
import random
import resource
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import torch  # noqa: E402
from bench.overhead import (  # noqa: E402
    arms as arms_of,  # noqa: E402
    contenders,
    models,
)

STRETCH_NS = 30e6  # steps of one arm before another has its turn
MOST_STEPS = 200
TAPE_EVERY = 10  # steps, of which one is recorded; more of them cost less


def train(job, turns):
    """An ordinary training loop, but for the calls that a contender asks for in its description."""
    if job.second is not None:
        return train_two(job, turns)
    model, optimizer, batches, loss_of = job.model, job.optimizer, job.batches, job.loss_of
    parameters, clips = job.parameters, job.clips
    total, left = 0.0, 1
    while True:
        for index, (x, y) in enumerate(batches):
            left -= 1
            if left == 0:
                left, begin, check_loss, check_gradients, end = turns.next()
                if left == 0:
                    return total
            if begin is not None:
                begin(x, y)
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model, x, y)
            if check_loss is not None:
                check_loss(loss)
            loss.backward()
            if check_gradients is not None:
                check_gradients()
            if clips:
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            if end is not None:
                end()
            total += loss.item()


def train_two(job, turns):
    """Two optimizers in one iteration. joint: both losses, then both backwards, then both steps; else one after the
    other."""
    model, of_g, of_d, batches = job.model, job.optimizer, job.second, job.batches
    total, left = 0.0, 1
    while True:
        for index, (x, z) in enumerate(batches):
            left -= 1
            if left == 0:
                left, begin, check_loss, check_gradients, end = turns.next()
                if left == 0:
                    return total
            loss_of_d, loss_of_g = model.losses(x, z)
            if job.joint:
                loss_g = loss_of_g()
                of_g.zero_grad(set_to_none=True)
                loss_g.backward()
                of_d.zero_grad(set_to_none=True)
                loss_d = loss_of_d()
                loss_d.backward()
                of_d.step()
                of_g.step()
            else:
                of_d.zero_grad(set_to_none=True)
                loss_d = loss_of_d()
                loss_d.backward()
                of_d.step()
                of_g.zero_grad(set_to_none=True)
                loss_g = loss_of_g()
                loss_g.backward()
                of_g.step()
            if end is not None:
                end()
            total += loss_d.item() + loss_g.item()


class Turns:
    """Which arm is on, and what its steps took. A round is one stretch of each arm, in random order.

    arms: name -> Arm. seconds: no round begins later than that, but `least` are made always.
    """

    def __init__(self, arms, seconds, least, seed, in_order=False):
        self.arms, self.seconds, self.least, self.in_order = arms, seconds, least, in_order
        self.random = random.Random(seed)
        self.cpu, self.wall = {name: [] for name in arms}, {name: [] for name in arms}
        self.round, self.queue, self.current, self.timing = 0, [], None, False
        self.steps = self.warm = None
        self.begun = None

    def plan(self, ns_per_step):
        """How many steps a stretch has, from what one takes."""
        self.steps = int(min(MOST_STEPS, max(1, STRETCH_NS // ns_per_step)))
        for arm in self.arms.values():
            arm.planned(self.steps)
        self.warm = 0 if ns_per_step > 100e6 else 1 if ns_per_step > 10e6 else 200 if ns_per_step < 1e6 else 3

    def next(self):
        if self.current is not None and self.timing:
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            name, arm = self.current
            arm.stopped()
            steps = arm.steps or self.steps
            self.cpu[name].append((cpu - self.at_cpu) / steps)
            self.wall[name].append((wall - self.at_wall) / steps)
            arm.leave()
            self.timing = False
            self.current = None
        if self.current is None:
            if not self._choose():
                return 0, None, None, None, None
            arm = self.current[1]
            arm.enter()
            if self.warm:
                return (self.warm, *self._hooks(arm))
        arm = self.current[1]
        self.timing = True
        arm.timed()
        self.at_wall, self.at_cpu = time.perf_counter_ns(), time.thread_time_ns()
        return (arm.steps or self.steps, *self._hooks(arm))

    @staticmethod
    def _hooks(arm):
        return arm.begin, arm.check_loss, arm.check_gradients, arm.end

    def _choose(self):
        if self.begun is None:
            self.begun = time.monotonic()
        if not self.queue:
            if self.round >= self.least and time.monotonic() - self.begun > self.seconds:
                return False
            self.round += 1
            self.queue = list(self.arms.items())
            if not self.in_order:
                self.random.shuffle(self.queue)
            gc.collect()
        self.current = self.queue.pop()
        return True


class WarmUp:
    """The same loop, nothing on: state is made, memory is fetched, and one learns how long a step takes."""

    def __init__(self, least=3, most=40, seconds=2.0):
        self.left, self.least, self.most, self.seconds = None, least, most, seconds
        self.took, self.at, self.begun = [], None, time.monotonic()

    def next(self):
        now = time.thread_time_ns()
        if self.at is not None:
            self.took.append(now - self.at)
        enough = len(self.took) >= self.least and time.monotonic() - self.begun > self.seconds
        if enough or len(self.took) >= self.most:
            return 0, None, None, None, None
        self.at = time.thread_time_ns()
        return 1, None, None, None, None


def warm_up(job, **options):
    turns = WarmUp(**options)
    train(job, turns)
    return sorted(turns.took)[len(turns.took) // 2]


def overhead(spec, job, folder):
    """off, off again (the noise), finitude, and finitude without what a rewind needs."""
    ns = warm_up(job)
    finitude = arms_of.Finitude(job, folder)
    finitude.on()
    warm_up(job, seconds=0)  # the first steps under watch set things up
    if job.second is not None:  # enough steps for the recorder to decide whether it takes copies
        finitude.off()
        finitude.on(copies=True)
        warm_up(job, least=24, seconds=0)
        finitude.decide_on_copies()
    finitude.off()
    extra = {"undo_mb": spec["undo_mb"]} if spec.get("undo_mb") else {}
    # The meter reads a clock some twenty times a step: part of the paired runs only where nobody could notice.
    has_meter = finitude.has_meter() and spec.get("meter", True)
    in_pairs = has_meter and ns > 5e6
    extra["long"] = ns > 20e6
    arms = {"off": arms_of.Off(), "control": arms_of.Off(), "on": arms_of.On(finitude, metered=in_pairs, **extra)}
    metered = arms["on"] if in_pairs else None
    if job.second is not None:
        arms["copies"] = arms_of.On(finitude, metered=has_meter, copies=True, **extra)
    if has_meter and not in_pairs:
        arms["metered"] = metered = arms_of.On(finitude, metered=True, **extra)
    if has_meter and ns < 50e6:
        arms["gate"] = arms_of.On(finitude, gate_only=True, **extra)
    result = _measured(spec, job, finitude, arms, ns, metered)
    if job.second is not None:
        result |= {"refused": finitude.refused, "copy_pieces": arms["copies"].pieces}
    return result


def compare(spec, job, folder):
    """finitude at its levels and what others use, in one process."""
    ns = warm_up(job)
    finitude = arms_of.Finitude(job, folder)
    finitude.on()
    warm_up(job, seconds=0)
    finitude.off()
    arms = {
        "off": arms_of.Off(),
        "control": arms_of.Off(),
        "on": arms_of.On(finitude),
        "tape": arms_of.On(finitude, tape=True),
        "tape-every": arms_of.TapeEvery(finitude, TAPE_EVERY),
        "trace": arms_of.Traced(finitude, trace=True),
        "armed": arms_of.Armed(finitude),
    }
    missing = {}
    for name, (_, make) in contenders.IN_PROCESS.items():
        missing[name] = contenders.why_not(name)
        if not missing[name]:
            try:
                arms[name] = make(job)
                _tried(job, arms[name])
            except Exception as e:  # one that does not run is said, with why
                missing[name] = f"{type(e).__name__}: {e}"
                arms.pop(name, None)
    result = _measured(spec, job, finitude, arms, ns, None)
    result["missing"] = {name: why for name, why in missing.items() if why}
    result["effort"] = {
        name: [statistics.median(column) / (arms[name].steps or result["steps"]) for column in zip(*arms[name].effort)]
        for name in ("trace", "armed")
    }
    return result


def _tried(job, arm):
    """Two steps with it on, so that what it does once is not measured."""

    class Two(WarmUp):
        def next(self):
            left, *_ = super().next()
            return (left, arm.begin, arm.check_loss, arm.check_gradients, arm.end)

    arm.enter()
    try:
        train(job, Two(least=2, most=2))
    finally:
        arm.leave()


def alone(spec, job, folder):
    """A contender that cannot be taken out of the process again: many steps off, then many on."""
    ns = warm_up(job)
    text, make = contenders.ALONE[spec["contender"]]
    why = contenders.why_not(spec["contender"])
    result = {"missing": {spec["contender"]: why} if why else {}, "step_ns": ns, "cpu": {}, "wall": {}}
    if why:
        return result
    try:
        for name, arm in (("off", arms_of.Off()), (spec["contender"], None)):
            if arm is None:
                arm = make(job, folder)
                _tried(job, arm)
            turns = Turns({name: arm}, spec["seconds"] / 2, 3, 0)
            turns.plan(ns)
            train(job, turns)
            result["cpu"] |= turns.cpu
            result["wall"] |= turns.wall
    except Exception as e:
        result["missing"][spec["contender"]] = f"{type(e).__name__}: {e}"
    return result


def memory(spec, job, folder):
    """The most memory that the process held, after some steps, watched or not from their start."""
    watch = None
    if spec["watched"]:
        import finitude

        watch = finitude.watch(job.model, job.optimizer, runs=str(folder))
    warm_up(job, least=4, most=30, seconds=3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if watch is not None:
        assert watch.report()["watched"]["steps"] > 3
    return {"peak_mb": peak}


def cold_page():
    """Nanoseconds of one load from a page that a step's worth of other memory has pushed out of the caches; None in a
    finitude that has no such trial."""
    from finitude import _native

    try:
        return statistics.median(_native.time_piece("cold page", None, 1) for _ in range(9))
    except ValueError:
        return None


def _measured(spec, job, finitude, arms, ns, metered):
    turns = Turns(arms, spec["seconds"], spec.get("least", 3), spec.get("seed", 0))
    turns.plan(ns)
    train(job, turns)
    state = finitude.close()
    result = {"step_ns": ns, "steps": turns.steps, "cpu": turns.cpu, "wall": turns.wall, "watched": state}
    if metered is not None:
        result["pieces"] = metered.pieces
        result["call_through"] = arms_of.call_through(finitude.native)
    return result


def main(spec):
    torch.set_num_threads(spec["threads"])
    contenders.add_peers(spec.get("peers"))
    folder = pathlib.Path(spec["folder"])
    job = models.Job(spec["kind"], spec["optimizer"], loader=spec.get("loader", True), half=spec.get("half", False))
    job.joint = spec.get("joint", False)
    result = {"overhead": overhead, "compare": compare, "alone": alone, "memory": memory}[spec["measure"]](
        spec, job, folder
    )
    if spec["kind"] == "tiny":
        result["cold_page_ns"] = cold_page()
    result["spec"] = spec
    result["gradient_bytes"] = job.gradient_bytes()
    result["parameters"] = len(job.parameters)
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
