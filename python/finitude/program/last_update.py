"""What the last update of an optimizer did to its parameters, as far as its state shows: taken back, it gives the
weights before.

Formulas of torch.optim (the functions _single_tensor_adam, _single_tensor_adamax, _single_tensor_sgd and
_single_tensor_rmsprop), read backwards: the averages that an update was made of are still in the state, and rounding
aside nothing else went into it. Where the gradient itself did (SGD without momentum or with Nesterov's, Adagrad,
Adadelta, RMSprop without momentum), it is gone."""

from __future__ import annotations

import torch

from .. import _native
from . import optimizer_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Optimizer, Tensor


def _adam(p, group, state, lr):
    """p <- p (1 - lr decay) - lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps); decay only where it is
    decoupled."""
    beta1, beta2 = (float(b) for b in group["betas"])
    t = float(state["step"])
    v = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
    moved = state["exp_avg"] / (v.sqrt() / (1 - beta2**t) ** 0.5 + group["eps"]) * (lr / (1 - beta1**t))
    decay = lr * float(group["weight_decay"]) if group.get("decoupled_weight_decay") else 0.0
    return (p + moved) / (1 - decay)


def _adamax(p, group, state, lr):
    """p <- p - lr / (1 - b1^t) m / u"""
    return p + state["exp_avg"] / state["exp_inf"] * (lr / (1 - float(group["betas"][0]) ** float(state["step"])))


def _sgd(p, group, state, lr):
    """p <- p - lr buffer"""
    return p + state["momentum_buffer"] * lr


LOST = 16  # units in the last place

# What has to be set in a group for it, besides a state that has come into being.
KNOWN = {
    torch.optim.Adam: (_adam, None),
    torch.optim.AdamW: (_adam, None),
    torch.optim.Adamax: (_adamax, None),
    torch.optim.SGD: (_sgd, "momentum"),
    torch.optim.RMSprop: (_sgd, "momentum"),
}


def _last_rate(optimizer):
    """By what a schedule has scaled the rates since the last update, of which the history has the first group's; or why
    that is not known."""
    points = _native.history(_native.window(optimizer)["ordinal"])
    now = float(optimizer.param_groups[0]["lr"])
    if not points:
        return "there was no update before"
    return points[-1][2] / now if now else "the learning rate is 0 now, and by what it was scaled is not known"


@torch.no_grad()
def last(optimizer: Optimizer) -> str | list[tuple[str, Tensor, Tensor]]:
    """[(name, parameter, its values before)], or why that is not known."""
    kind = type(optimizer)
    if kind not in KNOWN:
        return f"what {kind.__name__} keeps does not determine its last update"
    before, needs = KNOWN[kind]
    scaled = _last_rate(optimizer)
    if isinstance(scaled, str):
        return scaled
    names = dict(zip(map(id, optimizer_members.parameters(optimizer)), optimizer_members.names(optimizer)))
    found = []
    for group in optimizer.param_groups:
        if needs and not group[needs] or group.get("nesterov"):
            how = "with Nesterov's momentum" if group.get("nesterov") else "without momentum"
            return f"{kind.__name__} {how} keeps no trace of its last update"
        for p in group["params"]:
            state = optimizer.state.get(p)
            if state and p.is_complex():
                return "the last update of complex parameters is not worked out"
            value = p.detach()
            if state:
                value = before(value, group, state, float(group["lr"]) * scaled).to(p.dtype)
                # Where the update was so large that rounding took what was there before: nothing, which is as near as
                # one can say.
                value = torch.where(value.abs() < LOST * torch.finfo(p.dtype).eps * p.abs(), 0, value)
            found.append((names.get(id(p), ""), p.detach(), value))
    return found
