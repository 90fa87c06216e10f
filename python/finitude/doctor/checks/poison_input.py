"""Data that no model could train on."""

import re

from ..facts import samples
from ..registry import bad, check, note, warn

HERE = "test the data where it is made: torch.isfinite(x).all()"
FINITE = re.compile(r"(loss|gradients|loss and gradients|what (is born there is|was recorded of the step)) finite")
IN_THE_BATCH = re.compile(r"(samples? \d[\d, ]*) of \d+ replaced")


@check("P11", "poison-input", "steps")
def in_the_batch(steps):
    """Labels outside the classes, or outside 0 to 1 for a binary cross-entropy; every label of a batch ignored by a
    mean loss; a batch without elements, or with NaN or Inf: errors where the loss or a gradient is not finite with it;
    samples of one value only. With rows, fingerprints, and the indices of the samples where a loader's sampler
    reports them."""
    yield from _labels(steps)
    ruined = steps.is_ruined()
    reported, names = set(), {}
    for given in steps.inputs:
        # A batch is seen where a loader made it, which knows the samples, and where a module takes it, perhaps in
        # another dtype.
        kinds = {given["fingerprint"] or id(given), (given["nan"], given["inf"], given["numel"], tuple(given["rows"]))}
        if given["nan"] + given["inf"]:
            if not kinds & reported:
                names.setdefault(given["name"], []).append(given)
            reported |= kinds
    for batches in names.values():
        yield _not_finite(steps, batches, ruined)
    for given in steps.inputs:
        if not given["numel"]:
            make = bad if ruined else note
            more = "; loss or gradients are not finite" if ruined else ""
            yield make(
                f"{given['name']} of shape {given['shape']} has no elements{more}",
                "skip an empty batch: a mean over nothing is NaN",
                steps.at(given),
                shape=given["shape"],
            )
            break
    # Of what a loader made, a row is a sample; else only where every row is one: a mask or a graph has rows like that.
    constant = [
        g for g in steps.inputs if g["constant_rows"] and (g["indices"] or len(g["constant_rows"]) == g["shape"][0])
    ]
    if constant:
        yield _constant(steps, constant, ruined)


def _labels(steps):
    for loss in steps.losses:
        if loss["kind"] == "labels" and loss["labels"] and (loss["min"] < 0 or loss["max"] >= loss["classes"]):
            yield bad(
                f"labels from {loss['min']} to {loss['max']} for {loss['classes']} classes, at {_rows(loss['wrong'])}",
                "count labels from 0, or give the model one output per class",
                steps.at(loss),
                rows=loss["wrong"],
                **{k: loss[k] for k in ("min", "max", "classes")},
            )
            return
        if loss["kind"] == "labels" and not loss["labels"] and loss["numel"] and loss["mean"]:
            yield bad(
                f"all {loss['numel']} labels of a batch are the ignored {loss['ignore_index']}: the mean loss is 0/0",
                "skip such a batch, or divide the sum by max(count, 1)",
                steps.at(loss),
                ignore_index=loss["ignore_index"],
            )
            return
        if loss["kind"] == "probabilities" and loss["wrong"]:
            yield warn(
                f"targets from {loss['min']} to {loss['max']} in a binary cross-entropy, at "
                f"{_rows(loss['wrong'])}: it has no lower "
                "bound outside of 0 to 1",
                "scale the targets to 0 to 1",
                steps.at(loss),
                rows=loss["wrong"],
                min=loss["min"],
                max=loss["max"],
            )
            return


def _rows(rows):
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:8]))}"


def _who(given, rows):
    found = samples(given, rows)
    return (f", {_rows(rows)}" if rows else "") + (
        f" (samples {', '.join(map(str, found[:8]))} of the data set)" if found else ""
    )


def _evidence(given, rows):
    return {"rows": rows, "samples": samples(given, rows), "fingerprint": given["fingerprint"]}


def _not_finite(steps, batches, ruined):
    given = batches[0]
    more = f", and in {len(batches) - 1} more batches" if len(batches) > 1 else ""
    text = (
        f"{given['name']} holds {given['nan']} NaN and {given['inf']} Inf among {given['numel']} "
        f"values{_who(given, given['rows'])}{more}"
    )
    if ruined:
        return bad(
            text + "; loss or gradients are not finite", HERE, steps.at(given), **_evidence(given, given["rows"])
        )
    return note(
        text + "; loss and gradients are finite, so it is masked or not used",
        "",
        steps.at(given),
        **_evidence(given, given["rows"]),
    )


def _constant(steps, constant, ruined):
    given = constant[0]
    rows = given["constant_rows"]
    text = f"{len(rows)} of {given['shape'][0]} samples of {given['name']} have one value only{_who(given, rows)}"
    if ruined:
        return warn(
            text + "; loss or gradients are not finite: divided by its spread, such a sample is 0/0",
            "an epsilon in the denominator, or skip such samples",
            steps.at(given),
            **_evidence(given, rows),
        )
    more = f", and in {len(constant) - 1} more batches" if len(constant) > 1 else ""
    return note(
        text + more,
        "blank samples teach nothing; where they are divided by their spread, add an epsilon",
        steps.at(given),
        **_evidence(given, rows),
    )


@check("P11", "poison-input", "run")
def from_the_data(run):
    """A bad step whose birth is in the data, or whose batch is the cause, with rows and samples; samples that failed in
    several steps; samples without which a bad step is finite, as its experiments showed, or in which its bad values
    were born."""
    failed = {}
    for alarm in run.findings:
        birth = run.birth(alarm)
        found = [s for s in birth.get("samples") or [] if isinstance(s, int)]
        for sample in set(found):
            failed.setdefault(sample, []).append(alarm)
        named = f", sample{'s' * (len(found) > 1)} {', '.join(map(str, found[:8]))} of the data set" if found else ""
        experiment, outcome = run.experiment_of(alarm, "whole step, sample", "step up to the birth, sample")
        if birth.get("phase") == "data" or run.cause(alarm) == "bad-data":
            rows = birth.get("rows") or []
            yield bad(
                f"{run.step(alarm)}: the batch was not finite" + (f", {_rows(rows)}" if rows else "") + named,
                "test the data where it is made, and name the sample",
                run.at(alarm),
                rows=rows[:64],
                samples=found[:64],
            )
        elif FINITE.match(outcome) and "none" not in outcome:
            if not named and (which := IN_THE_BATCH.search(experiment)):
                named = f", {which[1]} of the batch"
            yield note(
                f"{run.step(alarm)}: single samples make it fail{named}; without them: {outcome}",
                "look at these samples; other batches pass",
                run.at(alarm),
                samples=found[:64],
                rows=(birth.get("rows") or [])[:64],
            )
        elif found:
            yield note(
                f"{run.step(alarm)}: the bad values were born in{named[1:]}",
                "look at these samples first",
                run.at(alarm),
                samples=found[:64],
                rows=(birth.get("rows") or [])[:64],
            )
    again = {s: sorted({a["step"] for a in alarms}) for s, alarms in failed.items()}
    again = {s: steps for s, steps in again.items() if len(steps) > 1}
    if again:
        sample, steps = max(again.items(), key=lambda one: len(one[1]))
        yield bad(
            f"sample {sample} of the data set was in the births of steps "
            f"{', '.join(map(str, steps[:8]))}: it fails whatever the "
            "weights are, so it is the data",
            "check this sample, or skip it",
            run.at(failed[sample][0]),
            samples=sorted(again)[:64],
        )
