"""What is read off single operations of the first steps: losses, attention, matrix products."""

from __future__ import annotations

import torch

from .measure import dtype, fingerprint, place, tensors_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MASKED = -1e4  # masks are -Inf or close to the end of the range
SHOWN = 512  # queries of one head
MAX_FACTS = 200


def _readable(t):
    return t.layout == torch.strided and t.device.type != "meta" and t.numel() > 0


def labels(facts, name, args, kwargs):
    log_p, target = args[0], args[1]
    ignore = kwargs.get("ignore_index", args[4] if len(args) > 4 else -100)
    reduction = kwargs.get("reduction", args[3] if len(args) > 3 else 1)
    if len(facts["losses"]) >= MAX_FACTS or target.device.type == "meta":
        return
    classes = int(log_p.shape[1] if log_p.dim() > 1 else log_p.shape[0])
    kept = target[target != ignore]
    wrong = ((target != ignore) & ((target < 0) | (target >= classes))).flatten().nonzero().flatten().tolist()[:64]
    facts["losses"].append(
        {
            "kind": "labels",
            "classes": classes,
            "labels": kept.numel(),
            "numel": target.numel(),
            "ignore_index": int(ignore),
            "mean": int(reduction) == 1,
            "at": place(),
            "wrong": wrong,
            "min": int(kept.min()) if kept.numel() else None,
            "max": int(kept.max()) if kept.numel() else None,
        }
    )


def probabilities(facts, name, args, kwargs):
    target = args[1] if len(args) > 1 else kwargs["target"]
    if len(facts["losses"]) < MAX_FACTS and _readable(target):
        facts["losses"].append(
            {
                "kind": "probabilities",
                "at": place(),
                "min": float(target.min()),
                "max": float(target.max()),
                "numel": target.numel(),
                "wrong": ((target < 0) | (target > 1)).flatten().nonzero().flatten().tolist()[:64],
            }
        )


def logits(facts, name, args, kwargs):
    x = args[0]
    if len(facts["losses"]) >= MAX_FACTS or not x.is_floating_point() or not _readable(x):
        return
    z = torch.logsumexp(x.float(), dim=args[1] if len(args) > 1 else kwargs["dim"])
    z = z[torch.isfinite(z)]
    kept = x.float()[torch.isfinite(x) & (x.float() > MASKED)]
    if z.numel():
        facts["losses"].append(
            {
                "kind": "logits",
                "dtype": dtype(x),
                "at": place(),
                "logsumexp_mean": float(z.mean()),
                "logsumexp_max": float(z.abs().max()),
                "absmax": float(kept.abs().max()) if kept.numel() else 0.0,
            }
        )


def fused_attention(facts, name, args, kwargs):
    q, k = args[0], args[1]
    if len(facts["attention"]) >= MAX_FACTS or not _readable(q) or not _readable(k) or q.dim() != 4:
        return
    scale = kwargs.get("scale")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    bound = q.float().norm(dim=-1).amax(dim=-1) * _heads(k.float().norm(dim=-1).amax(dim=-1), q.shape[1]) * scale
    bound = torch.nan_to_num(bound, 0.0, 0.0, 0.0)
    worst = int(bound.flatten().argmax())
    batch, head = divmod(worst, bound.shape[-1])
    found = q[batch, head, :SHOWN].float() @ k[batch, head * k.shape[1] // q.shape[1]].float().T * scale
    found = found[torch.isfinite(found)]
    mask = kwargs.get("attn_mask")
    if mask is None and "efficient" in name and len(args) > 3:
        mask = args[3]
    _attention(
        facts,
        name,
        q,
        float(found.abs().max()) if found.numel() else 0.0,
        head,
        bound.amax(dim=0).tolist()[:64],
        _masked_rows(mask),
    )


def _heads(norms, heads):
    """Of grouped queries: a key has several of them."""
    return norms if norms.shape[1] == heads else norms.repeat_interleave(heads // norms.shape[1], dim=1)


def _masked_rows(mask):
    if not isinstance(mask, torch.Tensor) or not _readable(mask) or mask.dim() < 1:
        return 0
    closed = ~mask if mask.dtype == torch.bool else torch.isneginf(mask)
    return int(closed.all(dim=-1).sum())


def softmax(facts, name, args, kwargs):
    x = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    if x.dim() < 3 or dim not in (-1, x.dim() - 1) or not _readable(x) or len(facts["attention"]) >= MAX_FACTS:
        return
    values = x.float()
    kept = values[torch.isfinite(x) & (values > MASKED)]
    heads = []
    if x.dim() == 4:
        heads = (
            torch.where(torch.isfinite(values) & (values > MASKED), values.abs(), 0.0).amax(dim=(0, 2, 3)).tolist()[:64]
        )
    worst = max(range(len(heads)), key=heads.__getitem__) if heads else None
    _attention(
        facts,
        name,
        x,
        float(kept.abs().max()) if kept.numel() else 0.0,
        worst,
        heads,
        int(torch.isneginf(x).all(dim=-1).sum()),
    )


def _attention(facts, name, x, largest, head, heads, masked_rows):
    facts["attention"].append(
        {
            "op": name,
            "dtype": dtype(x),
            "logits": largest,
            "head": head,
            "heads": heads,
            "masked_rows": masked_rows,
            "at": place(),
        }
    )


def product(facts, name, args, kwargs):
    """How much is multiplied in which dtype."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    a: Any
    b: Any
    a, b = tensors[-2:] if len(tensors) > 1 else (None, None)
    if name in ("aten::convolution", "aten::_convolution"):
        a, b = tensors[0], tensors[1]
        work = a.shape[0] * b.numel() * max(1, a[0, 0].numel() if a.dim() > 2 else 1)
    elif a is None or a.dim() < 2 or b.dim() < 2:
        return
    else:
        work = a.numel() * b.shape[-1]
    facts["products"][dtype(a)] = facts["products"].get(dtype(a), 0) + int(work)


ALLOCATE = (
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
)  # what they hold is chance


def bits(values: Any) -> list[str]:
    """Fingerprints of the tensors in what an operation is given or hands out."""
    return [fingerprint(t) for _, t in tensors_of(values)]


def numbers(values):
    """The plain numbers in what an operation is given, as text."""
    if isinstance(values, (bool, int, float, complex)):
        return [repr(values)]
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, (list, tuple)) else ()
    return [number for value in inner for number in numbers(value)]


def compared(facts: dict[str, Any], func: Any, args: Any, given: Any, out: Any, in_backward: bool) -> None:
    """An operation as another run of the same script has it too, or has not. given: the bits of its operands before the
    call."""
    name = func._schema.name if hasattr(func, "_schema") else str(func)
    made = [] if name.split("::")[-1] in ALLOCATE else bits(out)
    facts["operations"].append(
        {
            "op": name,
            "given": given,
            "numbers": numbers(args),
            "made": made,
            "at": place(),
            "backward": in_backward,
            "random": torch.Tag.nondeterministic_seeded in func.tags,
        }
    )


WATCHED = {
    "aten::nll_loss_forward": labels,
    "aten::nll_loss2d_forward": labels,
    "aten::_log_softmax": logits,
    "aten::_softmax": softmax,
    "aten::binary_cross_entropy": probabilities,
    "aten::binary_cross_entropy_with_logits": probabilities,
    "aten::_scaled_dot_product_flash_attention_for_cpu": fused_attention,
    "aten::_scaled_dot_product_flash_attention": fused_attention,
    "aten::_scaled_dot_product_efficient_attention": fused_attention,
    "aten::_scaled_dot_product_cudnn_attention": fused_attention,
    "aten::_scaled_dot_product_fused_attention_overrideable": fused_attention,
    "aten::mm": product,
    "aten::addmm": product,
    "aten::bmm": product,
    "aten::baddbmm": product,
    "aten::convolution": product,
}
