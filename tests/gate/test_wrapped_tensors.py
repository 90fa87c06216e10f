"""Parameters of a Python class that holds another tensor and has no memory of its own, as DTensor is one."""

import pytest
import torch

from device_support import ON_DEVICE, build
from finitude import _native
from helpers import run

HELD = """
import torch
from torch import nn
from torch.utils._pytree import tree_map
class Held(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad)
    def __init__(self, inner):
        self.inner = inner
    def __repr__(self):
        return "Held"
    def __tensor_flatten__(self):
        return ["inner"], None
    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Held(inner["inner"])
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        bare = tree_map(lambda v: v.inner if isinstance(v, Held) else v, (args, kwargs or {}))
        result = function(*bare[0], **bare[1])
        if function._schema.name.endswith("_") and isinstance(args[0], Held):
            return args[0]
        return tree_map(lambda v: Held(v) if isinstance(v, torch.Tensor) else v, result)
"""
TRAINING = (
    HELD
    + """
torch.manual_seed(0)
weight = nn.Parameter(Held(torch.randn(4, 3)))
opt = torch.optim.SGD([weight], lr=0.1)
for step in range(6):
    opt.zero_grad()
    x = torch.rand(5, 4)
    loss = (x @ weight).pow(2).mean()
    if step == 3: loss = loss * SCALE
    loss.backward()
    opt.step()
print("finite", bool(weight.inner.isfinite().all()))
"""
)


def test_bad_step_is_skipped(tmp_path):
    got = run(tmp_path, TRAINING.replace("SCALE", "float('nan')"), "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["weights"]) == (3, "clean"), got.text()
    assert alarm["births"][0]["source"].endswith("loss * float('nan')"), alarm["births"]
    assert "finite True" in got.out


def test_a_gradient_alone_is_seen(tmp_path):
    got = run(
        tmp_path,
        TRAINING.replace(
            "    loss.backward()", "    loss.backward()\n    if step == 3: weight.grad.inner[1, 2] = float('inf')"
        ).replace("SCALE", "1"),
        "--on-alarm",
        "skip",
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"]) == (3, "gradient") and "finite True" in got.out, got.text()
    assert got.watched["gradients_scanned"] >= 6


def test_a_healthy_run_is_silent(tmp_path):
    got = run(tmp_path, TRAINING.replace("SCALE", "2"))
    got.assert_silent()
    assert "finite True" in got.out and got.watched["gradients_scanned"] == 6


def test_what_cannot_be_read_is_named(tmp_path):
    silent = TRAINING.replace('    def __tensor_flatten__(self):\n        return ["inner"], None\n', "")
    assert silent != TRAINING
    got = run(tmp_path, silent.replace("SCALE", "2"))
    assert got.code == 0 and not got.alarms, got.text()
    assert got.watched["gradients_scanned"] == 0
    assert [text for text in got.watched["not_watched"] if "gradients of the class __main__.Held" in text], got.watched


def test_single_rank_on_gpu_skips_no_step(tmp_path):
    """A fused kernel that reads found_inf would: it is asked for only where every parameter is whole, but for the first
    step, before there is state."""
    body = (
        HELD
        + """
bare = lambda t: t.inner if isinstance(t, Held) else t
weight = nn.Parameter(WEIGHT)
opt = torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=True)
asked = []
hold(1)
for step in range(6):
    opt.zero_grad()
    loss = (torch.rand(5, 4) @ weight).pow(2).mean()
    loss.backward()
    if step == 3: bare(weight.grad)[1, 2] = NAN
    opt.step()
    asked.append(hasattr(opt, "found_inf"))
print("flags", any(asked), "waits", counts()["waits"], "finite", bool(bare(weight).isfinite().all()))
"""
    )
    device = ON_DEVICE.format(library=build())
    whole = run(tmp_path, device + body.replace("WEIGHT", "torch.randn(4, 3)"), "--on-alarm", "skip")
    assert "flags True waits 1 finite True" in whole.out, whole.text()
    shard = run(tmp_path, device + body.replace("WEIGHT", "Held(torch.randn(4, 3))"), "--on-alarm", "skip")
    assert "flags False waits 7 finite True" in shard.out and shard.the_alarm()["step"] == 3, shard.text()


def namespace():
    names = {}
    exec(HELD, names)
    return names["Held"]


def test_the_values_are_those_of_what_it_holds():
    held = namespace()
    inner = torch.tensor([1.0, float("nan")])
    assert _native.local_of(held(inner)) is inner and _native.local_of(held(held(inner))) is inner
    assert _native.statistics(held(inner))["nan"] == 1 and not _native.is_finite(held(inner))
    assert _native.local_of(inner) is inner


def test_class_with_unclear_inner_tensor_is_left_alone():
    class Silent(namespace()):
        def __tensor_flatten__(self):
            raise RuntimeError("no")

    class Two(namespace()):
        def __tensor_flatten__(self):
            return ["inner", "other"], None

    silent, two = Silent(torch.ones(2)), Two(torch.ones(2))
    two.other = torch.ones(2)
    assert _native.local_of(silent) is silent and _native.local_of(two) is two
    with pytest.raises(KeyError, match="mine"):  # what the program raises meanwhile is not lost
        try:
            raise KeyError("mine")
        finally:
            _native.local_of(Silent(torch.ones(2)))
