"""Attention logits."""

from ..facts import number
from ..registry import bad, check, note, warn

LARGE = 100.0


@check("P16", "attention-logits", "steps")
def saturated(steps):
    """Attention logits beyond 100 in the first steps, by head, also inside fused attention (of the largest query and
    key): there all weights but one are 0; rows whose keys are all masked, an error where the loss or a gradient is not
    finite."""
    found = [a for a in steps.attention if number(a["logits"]) > LARGE]
    if found:
        worst = max(found, key=lambda a: number(a["logits"]))
        head = f" in head {worst['head']}" if worst["head"] is not None else ""
        yield warn(
            f"attention logits reach {number(worst['logits']):.4g}{head} ({worst['dtype']})",
            "normalise queries and keys per head (QK-norm); divide by the root of the head size once",
            steps.at(worst),
            logits=number(worst["logits"]),
            heads=worst["heads"],
        )
    closed = [a for a in steps.attention if a["masked_rows"]]
    if closed:
        ruined = steps.is_ruined()
        make = bad if ruined else note
        yield make(
            f"{closed[0]['masked_rows']} rows of an attention have all of their keys masked: its softmax is 0/0"
            + (
                "; loss or gradients are not finite"
                if ruined
                else "; loss and gradients are finite, so those rows are cut off"
            ),
            "leave one key open in every row, or such rows out of the loss" if ruined else "",
            steps.at(closed[0]),
            rows=closed[0]["masked_rows"],
        )


@check("P16", "attention-logits", "run")
def in_attention(run):
    """A bad step born in attention: a row whose keys are all masked, or logits out of range."""
    for alarm in run.findings:
        birth = run.birth(alarm)
        forward = birth.get("forward") or birth
        if run.cause(alarm) == "fully-masked-softmax":
            yield bad(
                f"{run.step(alarm)}: all keys of a row are masked"
                + (f", rows {birth['rows'][:8]}" if birth.get("rows") else ""),
                "leave one key open in every row, or such rows out of the loss",
                run.at(alarm),
            )
        elif "attention" in str(forward.get("op", "")) and run.cause(alarm) in (
            "overflow",
            "half-precision-overflow",
            "exp-overflow",
        ):
            yield bad(
                f"{run.step(alarm)}: {forward['op']} overflowed",
                "normalise queries and keys; bfloat16",
                run.at(alarm),
            )
