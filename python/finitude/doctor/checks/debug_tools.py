"""Tools for looking that were left on, or that look past the place."""

import ast

from ..registry import check, note, warn

NAMES = (
    "torch.autograd.set_detect_anomaly",
    "torch.autograd.detect_anomaly",
    "torch.autograd.anomaly_mode.set_detect_anomaly",
    "torch.autograd.anomaly_mode.detect_anomaly",
)
PREDICATES = ("isnan", "isfinite", "isinf")
OFTEN = 2  # steps in a row: a loop that looks once has switched it off by then
UNSEEN = {
    "backward": "in backward, where forward hooks are not called",
    "optimizer": "in the optimizer",
    "data": "in the data",
    "state": "in loaded state",
    "communication": "on another rank",
    "memory": "in memory that nothing had written",
}


@check("P9", "debug-tools", "source")
def left_on(source):
    """Anomaly mode switched on without a condition; a forward hook that tests for NaN, which sees outputs of modules
    only."""
    for call in source.calls(*NAMES):
        mode = call.argument("mode", 0) if call.name.endswith("set_detect_anomaly") else None
        off_or_choice = mode is not None and not (isinstance(mode, ast.Constant) and mode.value)
        if not off_or_choice and not call.is_conditional():
            yield warn(
                "anomaly mode is on in every step, which makes each several times slower, and sees "
                "NaN in backward only",
                "remove it: finitude run looks when there is something to look at",
                call.at,
            )
    for call in source.methods("register_forward_hook"):
        hook = call.argument("hook", 0)
        if isinstance(hook, ast.Name):
            hook = next(
                (n for n in ast.walk(call.file.tree) if isinstance(n, ast.FunctionDef) and n.name == hook.id), None
            )
        if hook is not None and any(isinstance(n, ast.Attribute) and n.attr in PREDICATES for n in ast.walk(hook)):
            yield note(
                "a forward hook tests for NaN: it sees what modules return, neither functional "
                "calls between them nor backward, "
                "and waits for the device each time",
                "finitude run sees every operation of a bad step",
                call.at,
            )


@check("P9", "debug-tools", "steps")
def on_at_the_step(steps):
    """Anomaly mode is on in two steps or more; a dispatch or function mode left on; in a bad step, what a look at the
    outputs of modules would have named."""
    on = [s for s in steps.steps if s["anomaly"]]
    if len(on) >= OFTEN:
        what = (
            ""
            if on[0]["anomaly_checks"]
            else " (it looks for no NaN, and records a trace of each operation all the same)"
        )
        yield warn(
            f"anomaly mode is on in {len(on)} of {len(steps.steps)} steps{what}",
            "remove it for the real run; finitude run finds the operation when a step is bad",
            steps.at(on[0]),
            steps=len(on),
            check_nan=on[0]["anomaly_checks"],
        )
    moded = [s for s in steps.steps if s["modes"]]
    if len(moded) >= OFTEN:
        yield note(
            f"{', '.join(sorted(set(moded[0]['modes'])))} is on in {len(moded)} of "
            f"{len(steps.steps)} steps: each operation goes "
            "through Python",
            "leave it for the real run",
            steps.at(moded[0]),
            modes=moded[0]["modes"],
        )
    if steps.is_ruined():
        bad_step = steps.bad_step()
        # What was not finite only later is a consequence.
        suspect = (
            steps.suspect
            if not (bad_step and steps.suspect and steps.suspect["steps_before"] > steps.steps.index(bad_step))
            else None
        )
        text = (
            f"the first module with a non-finite output is {suspect['name']}, after {suspect['steps_before']} steps"
            if suspect
            else "no module gave a non-finite output: a forward hook sees nothing of it"
        )
        yield note(
            f"{text}; the operation may be another, between modules or in backward",
            "finitude run names the operation and its line",
            steps.at(suspect) if suspect else None,
            module=suspect["name"] if suspect else None,
        )


@check("P9", "debug-tools", "run")
def beside_the_birth(run):
    """Anomaly mode was on when a bad step was kept; a bad step born where hooks on modules do not look, and where that
    was."""
    for capsule in run.capsules:
        if run.part(capsule, "flags").get("anomaly_mode") is True:
            yield warn(
                f"step {capsule.get('step')}: anomaly mode was on",
                "remove it for the real run: finitude finds the operation without it",
            )
            break
    for alarm in run.findings:
        birth = run.birth(alarm)
        where = UNSEEN.get(birth.get("phase"))
        if birth.get("phase") == "forward" and not birth.get("module"):
            where = "outside of any module, in a functional call"
        if where and birth.get("op"):
            yield note(
                f"{run.step(alarm)}: born in {birth['op']} {where}: hooks on modules cannot name it",
                "finitude replay CAPSULE --step-through shows the step operation by operation",
                run.at(alarm),
                op=birth["op"],
                module=birth.get("module") or "",
            )
            break
