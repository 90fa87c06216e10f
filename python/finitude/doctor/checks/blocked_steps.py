"""Is a bad step kept from the weights?"""

from ..facts import number
from ..registry import bad, check, warn

SHARE, FEW = 0.05, 20  # of skipped steps: stray samples are fewer, and a GradScaler finds its scale in fewer
ADVICE = (
    "skip a step whose loss or gradients are not finite (finitude run --on-alarm skip "
    "does); start from a checkpoint that is whole"
)


@check("P14", "bad-step-blocked", "steps")
def applied(steps):
    """A gradient that was not finite and was applied: the weights before and after the step; a parameter that is not
    finite, before the first step or after one of them."""
    for step in steps.steps:
        ruined = [p["name"] for p in step["parameters"] if p["bad"]]
        update = step["update"] or {}
        if ruined:
            when = "before the first step" if step["step"] == 0 else f"after step {step['step'] - 1}"
            yield bad(
                f"{len(ruined)} parameters are not finite {when}, {ruined[0]} among them",
                ADVICE,
                steps.at(step),
                parameters=ruined[:20],
            )
            return
        given = [p["name"] for p in step["parameters"] if p["grad"] and p["grad"]["nan"] + p["grad"]["inf"]]
        if (
            given and update.get("changed") and (update["gradients_bad"] or update["bad"])
        ):  # a hook of the script may have mended them
            made = f", and {update['bad'][0]} is not finite since" if update["bad"] else ""
            yield bad(
                f"step {step['step']} of {step['optimizer']} was applied though {len(given)} of "
                f"{len(step['parameters'])} gradients are "
                f"not finite: {update['changed']} parameters changed{made}",
                ADVICE,
                steps.at(step),
                gradients=given[:20],
                changed=update["changed"],
                written=update["written"],
                parameters=update["bad"],
            )
            return
        if update.get("bad"):
            yield bad(
                f"{len(update['bad'])} parameters are not finite after step {step['step']} of "
                f"{step['optimizer']}, {update['bad'][0]} "
                "among them, though every gradient is finite",
                "the optimizer made it: its state, epsilon and learning rate",
                steps.at(step),
                parameters=update["bad"],
                lr=step["lr"],
            )
            return


@check("P14", "bad-step-blocked", "run")
def reached_the_weights(run):
    """Weights that a bad step damaged; more than 5 % of the steps skipped, or ever more of them, by process; a scaler
    that is not updated while steps are skipped."""
    for alarm in run.alarms:
        if alarm.get("weights") == "damaged":
            yield bad(
                f"step {alarm['step']} (rank {alarm.get('rank', 0)}): the weights are damaged",
                "go back to a checkpoint of before; --undo-mb undoes what an optimizer ruins",
                run.at(alarm),
                rank=alarm.get("rank", 0),
            )
            break
    handled, steps = run.watched("handled_by_script"), run.watched("steps")
    if handled > 5 and handled > SHARE * steps:
        yield warn(
            f"the script dropped the gradients of {handled} of {steps} steps: no stray sample, a cause that stays",
            "finitude report shows where the first one was born",
            None,
            handled=handled,
        )
    for ring in run.optimizers().values():
        left_out = [not s["applied"] for s in ring]
        half, total = len(ring) // 2, sum(left_out)
        early, late = sum(left_out[:half]), sum(left_out[half:])
        if late > 5 and late > SHARE * (len(ring) - half) and late > 2 * early:
            yield warn(
                f"{run.who}{late} of the last {len(ring) - half} steps were skipped, {early} of "
                f"the {half} before: it gets worse",
                "stop, and look for the cause",
                None,
                early=early,
                late=late,
            )
        elif total > FEW and total > SHARE * len(ring) and late > FEW / 2:
            yield warn(
                f"{run.who}{total} of {len(ring)} steps were skipped: no stray samples, a cause that stays",
                "finitude report shows where the first one was born",
                None,
                left_out=total,
                steps=len(ring),
            )
    for capsule in run.capsules:
        yield from _scaler_stuck(run, capsule)


def _scaler_stuck(run, capsule):
    """Steps of one optimizer skipped in a row at the very scale that the first had: update() was not called."""
    scale = number(run.part(capsule, "start", "scaler").get("scale"))
    earlier = [
        c
        for c in run.capsules
        if c is not capsule
        and isinstance(c.get("step"), int)
        and isinstance(capsule.get("step"), int)
        and c["step"] == capsule["step"] - 1
        and c.get("optimizer") == capsule.get("optimizer")
    ]
    if scale > 0 and any(number(run.part(c, "start", "scaler").get("scale")) == scale for c in earlier):
        yield warn(
            f"steps {capsule['step'] - 1} and {capsule['step']} were both bad at the loss scale "
            f"{scale:g}: update() did not lower it",
            "scaler.update() in every iteration, also where the step is skipped",
            None,
            scale=scale,
        )
