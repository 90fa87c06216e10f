"""Can a step be computed again?"""

from __future__ import annotations

import ast

from ..registry import check, note, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts import Steps

SEEDS = (
    "*manual_seed",
    "*manual_seed_all",
    "*seed_everything",
    "*set_seed",
    "*fix_seed*",
    "*set_random_seed",
    "*seed_all*",
)
# Generators other than torch's: what draws from them, what seeds them.
OTHERS = {
    "numpy": (
        ("numpy.random.*",),
        (
            "numpy.random.seed",
            "numpy.random.default_rng",
            "numpy.random.RandomState",
            "numpy.random.Generator",
            "numpy.random.SeedSequence",
            "numpy.random.set_state",
        ),
    ),
    "random": (("random.*",), ("random.seed", "random.Random", "random.setstate", "random.SystemRandom")),
}
SETTINGS = (
    "deterministic",
    "deterministic_warn_only",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "fill_uninitialized_memory",
)


@check("P19", "determinism", "source")
def settings(source):
    """cuDNN's autotuning beside settings that ask for determinism; deterministic algorithms for CUDA without
    `CUBLAS_WORKSPACE_CONFIG`; training that is never seeded, or that draws from numpy's or Python's generator and seeds
    only torch's."""

    def constant(*names):
        return {v.value: at for v, at in source.assignments(*names) if isinstance(v, ast.Constant)}

    asked = [
        c
        for c in source.calls("torch.use_deterministic_algorithms")
        if not isinstance(a := c.argument("mode", 0), ast.Constant) or a.value
    ]
    benchmark = constant("torch.backends.cudnn.benchmark")
    wanted = constant("torch.backends.cudnn.deterministic").get(True) or (asked and asked[0].at)
    if wanted and benchmark.get(True) and False not in benchmark:
        yield warn(
            "cudnn.benchmark chooses kernels by timing them, although a setting asks for the same result each time",
            "torch.backends.cudnn.benchmark = False",
            benchmark[True],
        )
    if asked and source.says("cuda") and not source.says("CUBLAS_WORKSPACE_CONFIG"):
        yield note(
            "deterministic algorithms on CUDA take CUBLAS_WORKSPACE_CONFIG=:4096:8 in the "
            "environment, or cuBLAS raises",
            "set it before the first use of CUDA",
            asked[0].at,
        )
    everything = source.calls("*seed_everything", "*set_seed", "*fix_seed*", "*seed_all*")
    if source.trains() and not source.calls(*SEEDS) and not source.methods("manual_seed"):
        yield note(
            "no seed is set: no two runs are the same",
            "torch.manual_seed(...) before the model is made",
            source.methods("backward")[0].at,
        )
    elif source.trains() and not [c for c in everything if not c.name.startswith("torch.")]:
        for name, (drawn, seeded) in OTHERS.items():
            used = [c for c in source.calls(*drawn) if name == "numpy" or name in c.file.names]
            if used and not [c for c in used if c.name in seeded]:
                yield note(
                    f"{used[0].name} draws from a generator that nothing seeds; torch.manual_seed does not",
                    f"{name}.{'random.' if name == 'numpy' else ''}seed(...) as well, also in the workers of loaders",
                    used[0].at,
                )


@check("P19", "determinism", "steps")
def twice(steps):
    """Deterministic mode that fills uninitialised memory with NaN; with `--twice` and `--repeat N`, whether batches,
    outputs of layers, loss and gradients of the runs of a seeded script have the same bits, and if not, which of them
    and which operation is the first to differ."""
    if steps.get("deterministic") and steps.get("fill_uninitialized"):
        yield note(
            "deterministic mode fills uninitialised memory with NaN: one that shows may be of its making",
            "torch.utils.deterministic.fill_uninitialized_memory = False to distinguish them",
        )
    if steps.again is None or not steps.get("seeded"):
        return
    flags = steps.get("flags") or {}
    evidence = {**{k: flags.get(k) for k in SETTINGS}, "cublas_workspace": steps.get("cublas_workspace")}
    begins, parts = _begins_to_differ(steps), _first_step(steps)
    if parts is None and begins is None:
        if steps.steps and len(steps.steps) == len(steps.again.steps):
            yield note(
                f"{_runs(steps)} of {len(steps.steps)} steps have the same bits: batches, outputs of "
                f"{len(steps.layers)} layers, losses and "
                "gradients",
                "",
                None,
                reproducible=True,
                **evidence,
            )
        return
    operation = _first_operation(steps)
    where = f"; the first to differ is {begins}" if begins else ""
    where += f"; the first operation: {operation['op']}{operation['of']}, {operation['how']}" if operation else ""
    step, what, names = parts or (None, "outputs of layers, not the losses", [])
    of = f" at step {step['step']} of {step['optimizer']}" if step else ""
    yield warn(
        f"{_runs(steps)} differ{of}: {what}{where}",
        "seed every generator (torch, numpy, random, loaders), then "
        "torch.use_deterministic_algorithms(True), which names the operations that have no deterministic kernel",
        steps.at(operation) if operation and operation["at"][0] else steps.at(step) if step else None,
        reproducible=False,
        parameters=names[:20],
        first=begins,
        operation=operation and operation["op"],
        how=operation and operation["how"],
        **evidence,
    )


def _runs(steps):
    return "two runs" if steps.runs == 2 else f"{steps.runs} runs"


def is_repeated(steps: Steps) -> bool:
    """Do both runs have the same bits, as far as they are compared?"""
    return _begins_to_differ(steps) is None and _first_step(steps) is None


def _begins_to_differ(steps):
    """In the order of the forward pass: a batch, else a layer whose inputs' batches agree. None: neither."""
    for one, other in zip(steps.inputs, steps.again.inputs):
        if one["fingerprint"] != other["fingerprint"]:
            return f"a batch ({one['name']}): the data is drawn differently"
    for one, other in zip(steps.layers, steps.again.layers):
        if any(repr(one[k]) != repr(other[k]) for k in ("bits", "rms")):
            return f"the output of {one['name'] or one['class']} ({one['class']})"
    return None


def _first_operation(steps):
    """The first whose result differs, in the order of execution, and why. None: all that were compared agree."""
    for one, other in zip(steps.operations, steps.again.operations):
        facts = {**one, "of": " in backward" if one["backward"] else ""}
        if one["op"] != other["op"]:
            return {**facts, "how": f"where the other run calls {other['op']}"}
        if one["made"] == other["made"]:
            continue  # what it is given may differ where it overwrites it
        return {**facts, "how": _why_differs(one, other)}
    return None


def _why_differs(one, other):
    if one["random"]:
        return "which draws random numbers"
    if one["given"] != other["given"]:
        return "which is given other values that no operation made: of a batch, or memory that nothing had written"
    changed = [f"{a} and {b}" for a, b in zip(one["numbers"], other["numbers"]) if a != b]
    if changed or len(one["numbers"]) != len(other["numbers"]):
        return f"which is given another number of the script{': ' + changed[0] if changed else ''}"
    return "whose result differs for equal operands: it has no fixed order"


def _first_step(steps):
    for one, other in zip(steps.steps, steps.again.steps):
        losses = repr(one["loss"]) != repr(other["loss"])
        differ = [
            a["name"]
            for a, b in zip(one["parameters"], other["parameters"])
            if a["grad"] and b["grad"] and any(repr(a["grad"][k]) != repr(b["grad"][k]) for k in ("bits", "norm"))
        ]
        if losses or differ:
            return (
                one,
                f"losses {one['loss']} and {other['loss']}"
                if losses
                else f"equal losses, but gradients of {differ[0]} differ",
                differ,
            )
    return None


@check("P19", "determinism", "run")
def rerun(run):
    """A bad step that did not come again, or not in the same way, when it was run a second time; of a capsule, whether
    two replays and one with deterministic kernels come to the bits that were recorded; deterministic mode beside memory
    that nothing had written."""
    for alarm in run.findings:
        again = alarm.get("rerun")
        if again in ("transient", "order-dependent"):
            yield warn(
                f"step {alarm['step']} was {again} when it was run again: {alarm.get('rerun_text', '')}",
                "torch.use_deterministic_algorithms(True); if it stays so, a race or the hardware",
                run.at(alarm),
            )
        elif (outcome := run.experiment(alarm, "whole step, again as it was")).startswith("other bits"):
            yield warn(
                f"step {alarm['step']} computed again 3 times from its tape: {outcome}",
                "torch.use_deterministic_algorithms(True) names the operations that have no deterministic kernel",
                run.at(alarm),
            )
        if run.cause(alarm) == "uninitialised-memory" and any(_fills(run, c) for c in run.capsules):
            yield note(
                f"step {alarm['step']}: deterministic mode was on, which fills uninitialised memory "
                "with NaN: without it the same "
                "read may go unnoticed",
                "torch.utils.deterministic.fill_uninitialized_memory = False to distinguish them",
                run.at(alarm),
            )
    yield from _replays(run)


def _fills(run, capsule):
    flags = run.part(capsule, "flags")
    return flags.get("deterministic") is True and flags.get("fill_uninitialized_memory") is True


def _replays(run):
    recorded, deterministic = run.replays.get("as recorded"), run.replays.get("deterministic")
    if recorded is None:
        return
    settings = {k: run.part(run.capsules[0], "flags").get(k) for k in SETTINGS}
    other = f" With deterministic kernels: {deterministic.says}" if deterministic else ""
    if recorded.says.startswith("identical"):
        if deterministic and not deterministic.says.startswith("identical"):
            yield note(
                f"replayed twice: {recorded.says}.{other}: the kernels are not deterministic",
                "torch.use_deterministic_algorithms(True)",
                None,
                reproducible=True,
                **settings,
            )
        else:
            yield note(f"replayed twice: {recorded.says}", "", None, reproducible=True, **settings)
    else:
        make = note if recorded.code == 0 else warn
        yield make(
            f"replayed here: {recorded.says}.{other}",
            "the same torch, machine and number of threads; finitude replay CAPSULE "
            "--step-through shows the operations",
            None,
            reproducible=False,
            **settings,
        )
