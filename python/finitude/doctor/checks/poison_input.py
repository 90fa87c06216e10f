"""Data that no model could train on."""

from ..registry import bad, check, note


@check("P11", "poison-input", "steps")
def in_the_batch(steps):
    """Labels outside the classes; every label of a batch ignored by a mean loss; NaN or Inf in a batch, an error where the loss or a
    gradient is not finite with it."""
    for loss in steps.losses:
        if loss["kind"] != "labels":
            continue
        if loss["labels"] and (loss["min"] < 0 or loss["max"] >= loss["classes"]):
            yield bad(f"labels from {loss['min']} to {loss['max']} for {loss['classes']} classes", "count labels from 0, or give the model "
                      "one output per class", steps.at(loss), **{k: loss[k] for k in ("min", "max", "classes")})
            break
        if not loss["labels"] and loss["numel"] and loss["mean"]:
            yield bad(f"all {loss['numel']} labels of a batch are the ignored {loss['ignore_index']}: the mean loss is 0/0",
                      "leave such a batch out, or divide the sum by max(count, 1)", steps.at(loss))
            break
    told = set()
    ruined = steps.bad_step() is not None or bool(steps.bad_losses())
    for given in steps.inputs:
        # A batch is seen where a loader made it and where a module takes it.
        what = given["nan"], given["inf"], given["numel"], tuple(given["rows"])
        if not given["nan"] + given["inf"] or what in told:
            continue
        told.add(what)
        rows = f", rows {', '.join(map(str, given['rows'][:8]))}" if given["rows"] else ""
        text = f"{given['name']} holds {given['nan']} NaN and {given['inf']} Inf among {given['numel']} values{rows}"
        if ruined:
            yield bad(text + "; loss or gradients are not finite", "test the data where it is made: torch.isfinite(x).all()",
                      steps.at(given), rows=given["rows"])
        else:
            yield note(text + "; loss and gradients are finite, so it is masked or not used", "", steps.at(given))


@check("P11", "poison-input", "run")
def from_the_data(run):
    """A bad step whose birth is in the data, or whose batch is the cause, with the rows."""
    for alarm in run.alarms:
        birth = run.birth(alarm)
        if birth.get("phase") == "data" or run.cause(alarm) == "bad-data":
            rows = birth.get("rows") or []
            yield bad(f"step {alarm['step']}: the batch was not finite" + (f", rows {', '.join(map(str, rows[:8]))}" if rows else ""),
                      "test the data where it is made, and name the sample", run.at(alarm), rows=rows[:64])
