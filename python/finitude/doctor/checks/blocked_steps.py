"""Is a bad step kept from the weights?"""

from ..registry import bad, check, warn


@check("P14", "bad-step-blocked", "steps")
def applied(steps):
    """A parameter that is not finite, before the first step or after one of them."""
    for step in steps.steps:
        ruined = [p["name"] for p in step["parameters"] if p["bad"]]
        if ruined:
            when = "before the first step" if step["step"] == 0 else f"after step {step['step'] - 1}"
            yield bad(f"{len(ruined)} parameters are not finite {when}, {ruined[0]} among them",
                      "leave a step out whose loss or gradients are not finite; start from a checkpoint that is whole",
                      steps.at(step), parameters=ruined[:20])
            return


@check("P14", "bad-step-blocked", "run")
def reached_the_weights(run):
    """Weights that a bad step damaged; more than 5 % of the steps left out, or ever more of them."""
    for alarm in run.alarms:
        if alarm.get("weights") == "damaged":
            yield bad(f"step {alarm['step']}: the weights are damaged", "go back to a checkpoint of before; --undo-mb undoes what an "
                      "optimizer ruins", run.at(alarm))
            break
    handled, steps = run.watched("handled_by_script"), run.watched("steps")
    if handled > 5 and handled > 0.05 * steps:
        yield warn(f"the script dropped the gradients of {handled} of {steps} steps: no stray sample, a cause that stays",
                   "finitude report shows where the first one was born", None, handled=handled)
    for ring in run.optimizers().values():
        left_out = [not s["applied"] for s in ring]
        half = len(ring) // 2
        early, late = sum(left_out[:half]), sum(left_out[half:])
        if late > 5 and late > 0.05 * (len(ring) - half) and late > 2 * early:
            yield warn(f"{late} of the last {len(ring) - half} steps were left out, {early} of the {half} before: it gets worse",
                       "stop, and look for the cause", None, early=early, late=late)
