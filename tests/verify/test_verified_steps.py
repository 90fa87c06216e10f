"""--verify: a bit that changes in a healthy step is found, and the first operation, or the memory, is named."""

import contextlib
import ctypes
import gc
import os
import re

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import finitude
import helpers
from finitude import _native
from finitude.base import config

BIT = 20  # of the mantissa of a float32: the value stays finite


class Net(nn.Module):
    def __init__(self, between=lambda h: None, dropout=0.0):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.dropout, self.between = nn.Dropout(dropout), between

    def forward(self, x):
        h = torch.relu(self.norm(self.first(x)))
        self.between(h)
        return self.second(self.dropout(h))


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def trained(tmp_path, model, steps=4, before_backward=None, before_step=None, verify="every=1", make=adamw):
    """The advisories and the counts of a training of so many steps."""
    gc.collect()  # optimizers of earlier tests: one step of each is verified
    optimizer = make(model.parameters())
    x = torch.linspace(-1, 1, 96).reshape(16, 6)
    with finitude.watch(model, optimizer, runs=str(tmp_path), verify=verify) as watch:
        for step in range(steps):
            optimizer.zero_grad()
            loss = (model(x) - 1).pow(2).mean()
            if before_backward is not None and step == 2:
                before_backward(optimizer)
            loss.backward()
            if before_step is not None and step == 2:
                before_step(optimizer)
            optimizer.step()
        counts = _native.verified_counts()
        return watch.report()["advisories"], counts


def found(advisories, step=2):
    texts = [a["text"] for a in advisories if a["kind"] == "corrupted-step"]
    assert texts and all(a["step"] == step for a in advisories if a["kind"] == "corrupted-step"), advisories
    return texts


def flip(tensor, element=3):
    assert _native.inject_flip(tensor, element, BIT)


def test_flip_of_an_output_names_its_operation(tmp_path):
    done, forwards = [], []

    def decide(name, phase, node, key, makes, numels, run):
        if name != "aten::relu" or phase != "forward" or done or len(forwards) != 2:
            return None
        done.append(1)
        return 0, 3, None, BIT

    _native.inject_start(decide, 0, 1 << 40)  # by forward passes: other tests may have left optimizers
    try:
        (text,) = found(trained(tmp_path, Net(between=forwards.append))[0])
    finally:
        _native.inject_stop()
    assert done and text.startswith("aten::relu at ") and "(transient)" in text, text
    assert re.search(r"test_verified_steps\.py:\d+ in Net", text), text


@pytest.mark.filterwarnings("ignore:Warning only once")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no other one to be compared with")
def test_a_core_that_computes_otherwise_is_named(tmp_path):
    current_core, wrong = ctypes.CDLL(None).sched_getcpu, min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)

    def kernel(x):
        return torch.where(x > 0, x, 0.0) + (0.25 if current_core() == wrong else 0.0)

    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("relu", kernel)
    try:
        advisories, _ = trained(tmp_path, Net(), steps=20)
    finally:
        library._destroy()
    assert os.sched_getaffinity(0) == before
    # A step in which the thread moves to another core differs, too, and is not called persistent.
    texts = [a["text"] for a in advisories if a["kind"] == "corrupted-step" and "(persistent)" in a["text"]]
    assert texts and not any(a["kind"] == "nondeterministic-kernels" for a in advisories), advisories
    for text in texts:
        assert re.match(r"aten::relu at .*test_verified_steps\.py:\d+ in Net gives these bits each time on core", text)
        assert f"core {wrong}," in text and ("a third" not in text or f"contradicts core {wrong} " in text), text


def test_flip_between_writer_and_reader_is_memory(tmp_path):
    calls = []

    def between(h):
        calls.append(1)
        if len(calls) == 3:
            flip(h)

    (text,) = found(trained(tmp_path, Net(between))[0])
    assert text.startswith("the result of aten::relu had other bits when aten::addmm"), text
    assert "memory-corruption" in text


def test_flip_of_a_weight_names_it(tmp_path):
    model = Net()
    texts = found(trained(tmp_path, model, before_backward=lambda o: flip(model.second.weight))[0])
    assert any(text.startswith("the parameter second.weight (32 bytes at address 0x") for text in texts), texts
    assert any(text.startswith("the parameter second.weight had other bits when aten::") for text in texts), texts


def test_flip_of_a_gradient_gives_its_bytes(tmp_path):
    model = Net()
    (text,) = found(trained(tmp_path, model, before_step=lambda o: flip(model.first.weight.grad))[0])
    assert text.startswith("the gradient of first.weight has other bits"), text
    assert "1 bits in 1 bytes, from byte 14 to 14, at address 0x" in text, text


def test_flip_of_optimizer_state_names_it(tmp_path):
    model = Net()
    (text,) = found(trained(tmp_path, model, before_step=lambda o: flip(o.state[model.first.weight]["exp_avg"]))[0])
    assert text.startswith("exp_avg in the optimizer state of first.weight (192 bytes"), text


def test_a_foreign_block_in_a_gradient_is_named(tmp_path):
    model = nn.Sequential(nn.Linear(6, 512), nn.Linear(512, 1))

    def write(optimizer):
        bits = model[0].weight.grad.numpy().reshape(-1).view("int32")
        bits[128:256] ^= -1

    (text,) = found(trained(tmp_path, model, before_step=write)[0])
    assert "the gradient of 0.weight has other bits" in text and "4096 bits in 512 bytes, from byte 512 to 1023" in text
    assert "one run of blocks of 512 bytes" in text, text


class SignDescent(torch.optim.Optimizer):
    """Of a class outside torch.optim."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign(), alpha=group["lr"])


class Foreign(SignDescent):
    """Part of what it writes is written by no operator."""

    @torch.no_grad()
    def step(self):
        super().step()
        for p in self.param_groups[0]["params"]:
            p.numpy()[...] *= 1.5


OPTIMIZERS = {
    "foreach": (lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True), "aten::_foreach_lerp_"),
    "adam of a loop": (lambda p: torch.optim.Adam(p, lr=0.01, foreach=False), "aten::addcmul_"),
    "fused": (lambda p: torch.optim.AdamW(p, lr=0.01, fused=True), "aten::_fused_adamw_"),
    "amsgrad": (lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True), "aten::_foreach_maximum_"),
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=True), "aten::_foreach_add_"),
    "own": (SignDescent, "aten::sub_"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_flip_within_the_optimizer_names_its_operation(tmp_path, name):
    make, operator = OPTIMIZERS[name]
    done = []

    def decide(op, phase, node, key, makes, numels, run):
        if operator not in (op, *_native.inject_inside()) or phase != "optimizer" or done:
            return None
        done.append(1)
        return 0, 0, None, BIT

    _native.inject_start(decide, 3, 3)  # the step is counted before the optimizer's operators run
    try:
        advisories, counts = trained(tmp_path, Net(), steps=5, make=make)
    finally:
        _native.inject_stop()
    (text,) = found(advisories)
    assert done and text.startswith(f"{operator} of the optimizer at ") and "(transient)" in text, text
    assert re.search(r"test_verified_steps\.py:\d+ gave other bits", text), text
    assert counts["mismatches"] == 1 and counts["optimizer_steps"] >= 3, counts


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_healthy_steps_are_the_same(tmp_path, name):
    advisories, counts = trained(tmp_path, Net(dropout=0.4), steps=12, make=OPTIMIZERS[name][0])
    assert not advisories and counts["mismatches"] == 0 and counts["not_played"] == 0, counts
    assert counts["steps"] >= 10 and counts["optimizer_steps"] >= 9, counts


def test_an_optimizer_that_writes_without_operators_is_not_blamed(tmp_path):
    advisories, counts = trained(tmp_path, Net(), make=Foreign)
    assert not [a for a in advisories if a["kind"] == "corrupted-step"], advisories
    assert counts["why_not"] == "its optimizer writes without operators of torch" and counts["optimizer_steps"] == 0


def test_an_optimizer_that_raises_leaves_nothing_behind(tmp_path):
    class Raises(SignDescent):
        steps = 0

        def step(self):
            self.steps += 1
            super().step()
            if self.steps == 2:
                raise KeyError("of the program")

    optimizer, x = None, torch.ones(4, 6)
    model = Net()
    optimizer = Raises(model.parameters())
    gc.collect()
    with finitude.watch(model, optimizer, runs=str(tmp_path), verify="every=1") as watch:
        for _ in range(6):
            optimizer.zero_grad()
            model(x + torch.rand(4, 6)).pow(2).mean().backward()
            with contextlib.suppress(KeyError):
                optimizer.step()
        counts = _native.verified_counts()
        assert not watch.report()["advisories"] and counts["mismatches"] == 0 and counts["steps"] >= 3, counts


class Checkpointed(Net):
    """Its norm is computed again in backward, which stops in the middle of the last operation unless it is reentrant."""

    def __init__(self, reentrant, between=lambda h: None):
        super().__init__(between)
        self.reentrant = reentrant

    def part(self, h):
        self.between(h)
        return torch.tanh(self.norm(h)) * 2

    def forward(self, x):
        with contextlib.suppress(RuntimeError):
            x.mm(x)  # a call that an exception ends
        return self.second(checkpoint(self.part, self.first(x), use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_steps_are_verified(tmp_path, reentrant):
    advisories, counts = trained(tmp_path, Checkpointed(reentrant), steps=4)
    assert not advisories and counts["mismatches"] == counts["not_played"] == 0 and counts["steps"] >= 3, counts
    calls = []

    def between(h):
        calls.append(1)
        if len(calls) == 6:  # of the third step, as backward computes it again
            flip(h)

    texts = found(trained(tmp_path, Checkpointed(reentrant, between))[0])
    assert texts[0].startswith("the result of aten::addmm had other bits when aten::native_batch_norm"), texts


def test_one_step_in_n_is_verified(tmp_path):
    _, counts = trained(tmp_path, Net(), steps=13, verify="every=4")
    assert counts["steps"] == 3, counts


def test_nondeterministic_kernel_is_listed(tmp_path):
    calls = []

    def sin(x):
        calls.append(1)
        return torch.cos(x - 1.5707963) + len(calls) * 2.0**-20

    class Wave(nn.Module):
        def forward(self, x):
            return torch.sin(x)

    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("sin", sin, "CPU")
        model = nn.Sequential(nn.Linear(6, 8), Wave(), nn.Linear(8, 1))
        advisories, counts = trained(tmp_path, model)
    finally:
        library._destroy()
    assert not [a for a in advisories if a["kind"] == "corrupted-step"], advisories
    assert counts["nondeterministic"] == ["aten::sin"] and counts["unjudged"] > 0, counts


def test_weights_written_by_the_program_are_no_corruption(tmp_path):
    model = Net()

    def write(optimizer):
        with torch.no_grad():
            model.first.weight.mul_(0.5)
        model.second.weight.data.mul_(0.5)

    advisories, counts = trained(tmp_path, model, before_step=write)
    assert not advisories and counts["mismatches"] == 0, advisories


LOADER = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(3)
data = TensorDataset(torch.rand(64, 6), torch.rand(64, 1))
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for x, y in DataLoader(data, batch_size=8, shuffle=True, num_workers=2):
    optimizer.zero_grad()
    (model(x) - y).pow(2).mean().backward()
    optimizer.step()
print([v.double().sum().item().hex() for v in model.state_dict().values()], torch.rand(1).item().hex())
"""


def test_the_program_has_the_same_bits(tmp_path):
    on, off = (helpers.run(tmp_path, LOADER, *options) for options in (("--verify", "every=2"), ()))
    assert on.out == off.out and on.code == off.code == 0, on.text()
    assert on.report["advisories"] == [] and on.report.get("not_watched") == off.report.get("not_watched"), on.text()


@pytest.mark.parametrize("value", ["every", "every=x", "-1", "every=1.5"])
def test_wrong_verify_is_refused(value):
    with pytest.raises(config.UsageError, match="every=N"):
        config.load({"verify": value}, environ={})


def test_verify_with_tape_is_at_odds():
    assert config.at_odds(config.load({"verify": "every=5", "level": "tape"}, environ={}))
    assert not config.at_odds(config.load({"verify": "200"}, environ={}))
