"""Can a step be computed again?"""

import ast

from ..registry import check, note, warn

SEEDS = ("*manual_seed", "*manual_seed_all", "*seed_everything", "*set_seed", "*fix_seed*", "*set_random_seed", "*seed_all*")


@check("P19", "determinism", "source")
def settings(source):
    """cuDNN's autotuning beside settings that ask for determinism; deterministic algorithms for CUDA without
    `CUBLAS_WORKSPACE_CONFIG`; training that is never seeded."""
    def constant(*names):
        return {v.value: at for v, at in source.assignments(*names) if isinstance(v, ast.Constant)}

    asked = [c for c in source.calls("torch.use_deterministic_algorithms")
             if not isinstance(a := c.argument("mode", 0), ast.Constant) or a.value]
    benchmark = constant("torch.backends.cudnn.benchmark")
    wanted = constant("torch.backends.cudnn.deterministic").get(True) or (asked and asked[0].at)
    if wanted and benchmark.get(True) and False not in benchmark:
        yield warn("cudnn.benchmark chooses kernels by timing them, beside a setting that asks for the same result each time",
                   "torch.backends.cudnn.benchmark = False", benchmark[True])
    if asked and source.says("cuda") and not source.says("CUBLAS_WORKSPACE_CONFIG"):
        yield note("deterministic algorithms on CUDA take CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment, or cuBLAS raises",
                   "set it before the first use of CUDA", asked[0].at)
    if source.trains() and not source.calls(*SEEDS) and not source.methods("manual_seed"):
        yield note("no seed is set: no two runs are the same", "torch.manual_seed(...) before the model is made",
                   source.methods("backward")[0].at)


@check("P19", "determinism", "steps")
def twice(steps):
    """Deterministic mode that fills uninitialised memory with NaN; with `--twice`, loss and gradients of two runs of a seeded script
    that differ."""
    if steps.get("deterministic") and steps.get("fill_uninitialized"):
        yield note("deterministic mode fills uninitialised memory with NaN: one that shows may be of its making",
                   "torch.utils.deterministic.fill_uninitialized_memory = False to tell them apart")
    if steps.again is None or not steps.get("seeded"):
        return
    for one, other in zip(steps.steps, steps.again.steps):
        losses = repr(one["loss"]) != repr(other["loss"])
        differ = [a["name"] for a, b in zip(one["parameters"], other["parameters"])
                  if a["grad"] and b["grad"] and repr(a["grad"]["norm"]) != repr(b["grad"]["norm"])]
        if losses or differ:
            what = f"losses {one['loss']} and {other['loss']}" if losses else f"equal losses, but gradients of {differ[0]} differ"
            yield warn(f"two runs differ at step {one['step']} of {one['optimizer']}: {what}",
                       "seed every generator (torch, numpy, random, loaders), then torch.use_deterministic_algorithms(True)",
                       steps.at(one), parameters=differ[:20])
            return


@check("P19", "determinism", "run")
def rerun(run):
    """A bad step that did not come again, or not in the same way, when it was run a second time."""
    for alarm in run.alarms:
        again = alarm.get("rerun")
        if again in ("transient", "order-dependent"):
            yield warn(f"step {alarm['step']} was {again} when it was run again: {alarm.get('rerun_text', '')}",
                       "torch.use_deterministic_algorithms(True); if it stays so, a race or the hardware", run.at(alarm))
