"""TF32: said in one way, and the same way everywhere."""

from __future__ import annotations

import ast

from ..registry import check, note, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OLD = ("torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32")
NEW = (
    "torch.backends.fp32_precision",
    "torch.backends.cuda.matmul.fp32_precision",
    "torch.backends.cudnn.fp32_precision",
    "torch.backends.cudnn.conv.fp32_precision",
    "torch.backends.cudnn.rnn.fp32_precision",
    "torch.backends.mkldnn.matmul.fp32_precision",
    "torch.backends.mkldnn.conv.fp32_precision",
)
# In the header of a capsule.
OLD_NAMES = ("matmul_precision", "tf32_matmul", "tf32_cudnn")
NEW_NAMES = ("fp32_precision_all", "fp32_precision_cuda_matmul", "fp32_precision_mkldnn_matmul")
SETTINGS = OLD_NAMES + NEW_NAMES
LEAST = 0.1  # of the multiplications


@check("P2", "tf32-explicit", "source")
def mixed_settings(source):
    """`allow_tf32` or `set_float32_matmul_precision` beside the `fp32_precision` of torch 2.9, or two that
    contradict."""
    old = [at for _, at in source.assignments(*OLD)]
    old += [c.at for c in source.calls("torch.set_float32_matmul_precision")]
    new = source.assignments(*NEW)
    if old and new:
        yield warn(
            "TF32 is set by its old names and by fp32_precision: torch 2.9 and newer refuse to report which holds",
            "one way only: fp32_precision from torch 2.9 on, set_float32_matmul_precision before",
            new[0][1],
        )
    flags: list[Any] = [v.value for v, _ in source.assignments(OLD[0]) if isinstance(v, ast.Constant)]
    words = [(c.argument("precision", 0), c.at) for c in source.calls("torch.set_float32_matmul_precision")]
    words = [(w.value, at) for w, at in words if isinstance(w, ast.Constant)]
    if len(set(flags)) == 1 and len({w == "highest" for w, _ in words}) == 1 and flags[0] == (words[0][0] == "highest"):
        yield warn(
            f"matmul.allow_tf32 = {flags[0]} and set_float32_matmul_precision({words[0][0]!r}) "
            "contradict; the last one holds",
            "set_float32_matmul_precision alone",
            words[0][1],
        )


@check("P2", "tf32-explicit", "steps")
def unreadable_settings(steps):
    """Settings by old and new names together, so that torch itself cannot report whether TF32 is on; on a GPU that has
    it, a tenth and more of the multiplications in matrix products in float32 at full precision."""
    set_by = {age: [e for e in steps.of("precision") if e["age"] == age] for age in ("old", "new")}
    if (
        steps.get("precision_error") and set_by["old"] and set_by["new"]
    ):  # torch also raises where only the new names are used
        old, new = set_by["old"][-1], set_by["new"][-1]
        yield warn(
            f"torch cannot report whether TF32 is on: it is set by its old names (line {old['line']}) "
            "and by fp32_precision (line "
            f"{new['line']})",
            "one way only: fp32_precision from torch 2.9 on",
            steps.at(new),
            error=steps.precision_error,
            settings=[[e["name"], e["value"], *steps.at(e)] for e in (*set_by["old"], *set_by["new"])][:20],
        )
    elif (steps.get("capability") or [0])[0] >= 8 and steps.get("matmul_precision") == "highest":
        products = steps.get("products") or {}
        share = products.get("float32", 0) / max(1, sum(products.values()))
        if share >= LEAST:
            yield note(
                f"{100 * share:.0f} % of the multiplications in matrix products are float32, at "
                "full precision on a GPU with TF32",
                "torch.set_float32_matmul_precision('high') if 10 bits of mantissa are enough for this model",
                None,
                float32_share=share,
                tf32=steps.get("tf32"),
                matmul_precision=steps.matmul_precision,
            )


@check("P2", "tf32-explicit", "run")
def in_capsules(run):
    """Capsules of one run whose processes or steps had other TF32 settings; a capsule made where torch could not report
    them."""
    seen = {}
    for capsule in run.capsules:
        flags = run.part(capsule, "flags")
        # torch does not report the old names where only the new ones are used.
        if flags and not all(name in flags for name in OLD_NAMES) and not any(name in flags for name in NEW_NAMES):
            yield warn(
                f"step {capsule.get('step')}: torch could not report whether TF32 was on, so this "
                "step cannot be compared with another",
                "one way only to set it",
                None,
                lacking=[n for n in OLD_NAMES if n not in flags],
            )
            return
        if flags:
            seen.setdefault(tuple(str(flags.get(n)) for n in SETTINGS), capsule)
    if len(seen) > 1:
        (one, a), (other, b) = list(seen.items())[:2]
        named, was, became = next((n, x, y) for n, x, y in zip(SETTINGS, one, other) if x != y)
        yield warn(
            f"{named} was {was} in step {a.get('step')} of rank {a.get('rank', 0)} and {became} in "
            f"step {b.get('step')} of rank "
            f"{b.get('rank', 0)}",
            "the same setting in every process, made once at the start",
            None,
            settings=[dict(zip(SETTINGS, s)) for s in seen][:8],
        )
