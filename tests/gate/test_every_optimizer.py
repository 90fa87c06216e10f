"""Every class of torch.optim in every mode that its signature has: a veto is exact, and watching changes nothing."""

import inspect
import itertools
import os

import pytest
import torch

from helpers import run
from optimizer_support import BAD, BATCHES, HOWS, MODELS, NAN, check, digest, is_accepted, watching

pytestmark = pytest.mark.slow  # every mode of a class; of all classes where it is thorough

CLASSES = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}

ALL = bool(os.environ.get("FINITUDE_ALL_TRIES"))  # make test-thorough

# Dense, decoupled, of a closure, of sparse gradients, by the shape of a parameter. The others are of these kinds.
OF_EACH_KIND = ("SGD", "AdamW", "LBFGS", "SparseAdam", "Adafactor", "Muon")
FEW = ("AdamW", "LBFGS", "SparseAdam", "Muon")

# What an argument is set to besides its default; of every other argument that is a flag: to the other value.
VALUES = {
    "foreach": (False, True),
    "fused": (True,),
    "momentum": (0.9,),
    "weight_decay": (0.1,),
    "dampening": (0.1,),
    "lr_decay": (0.1,),
    "initial_accumulator_value": (0.1,),
    "momentum_decay": (0.01,),
    "line_search_fn": ("strong_wolfe",),
    "lr": (torch.tensor(0.01),),
    "history_size": (2,),
    "t0": (2,),
    "nesterov": (False, True),
    "adjust_lr_fn": ("match_rms_adamw",),
}
TOGETHER = {"nesterov": {"momentum": 0.9}, "dampening": {"momentum": 0.9}}


def arguments(kind):
    """One argument of the signature off its default at a time, and each of those with every implementation."""
    names = list(inspect.signature(kind).parameters.items())[1:]
    single = [{}]
    for name, parameter in names:
        default = parameter.default
        values = VALUES.get(name, (not default,) if isinstance(default, bool) else ())
        single += [{**TOGETHER.get(name, {}), name: value} for value in values if name == "lr" or value != default]
    kinds_of_loop = [m for m in single if m.keys() <= {"foreach", "fused"}]
    seen = []
    for one, other in itertools.product(kinds_of_loop, single):
        mode = {**other, **one}
        if mode not in seen and not (one and other in kinds_of_loop[1:]):
            seen.append(mode)
    return [m for m in seen if "differentiable" not in m]


@pytest.fixture(autouse=True)
def _quick(few_objects, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def maker(kind, mode):
    few = {"max_iter": 3} if "max_iter" in inspect.signature(kind).parameters else {}
    return lambda params: kind(
        params, **few, **{k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in mode.items()}
    )


def models_for(make, closure):
    """The first kind of model that torch trains like this, and the one with sparse gradients; what torch says of
    others."""
    said = [(model, is_accepted(make, model, closure=closure)) for model in MODELS]
    accepted = [model for model, why in said if not why]
    return accepted[:1] + [m for m in accepted[1:] if m.sparse], [why for _, why in said if why]


@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=pytest.mark.thorough) for n in CLASSES])
def test_a_veto_is_exact_in_every_mode(name):
    """In each mode one kind of bad batch, and each kind in turn; all of them in the first mode, and in
    make test-thorough in every mode."""
    kind = CLASSES[name]
    for number, mode in enumerate(arguments(kind)):
        hows = HOWS if not mode or ALL or name not in OF_EACH_KIND else (HOWS[number % len(HOWS)],)
        trained, said = False, []
        for closure in (
            (False, True) if not mode or name == "LBFGS" else (False,)
        ):  # a closure comes the same way in all modes
            models, why = models_for(maker(kind, mode), closure)
            trained, said = trained or bool(models), said + why
            for model in models:
                try:
                    check(maker(kind, mode), model, hows, closure=closure)
                except AssertionError as error:
                    how = f"{name}({mode}) with {model.__name__}" + (", by closure" if closure else "")
                    raise AssertionError(f"{how}: {error}") from error
        # What torch refuses on the CPU is made for the capture of a graph on a device.
        assert trained or "capturable" in repr(said), (mode, said)


DIFFERENTIABLE = [n for n, k in CLASSES.items() if "differentiable" in inspect.signature(k).parameters]


def unroll(kind, mode, bad=(), skipped=()):
    """A training that is itself differentiated: the parameters are not leaves, their gradients part of the graph."""
    torch.manual_seed(1)
    start = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    weight = start.clone()
    optimizer = kind([weight], differentiable=True, **mode)
    digests = []
    for i in range(BATCHES):
        if i not in skipped:
            x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(i))
            (grad,) = torch.autograd.grad((x @ weight - 1).pow(2).mean(), weight, create_graph=True)
            weight.grad = grad * (NAN if i in bad else 1)
            optimizer.step()
        digests.append(digest(optimizer, [weight]))
    try:
        return digests, torch.autograd.grad(weight.pow(2).sum(), start)[0].numpy().tobytes()
    except RuntimeError as refused:  # this class of torch overwrites what its own graph needs
        return digests, type(refused)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_skipped_differentiated_step_leaves_the_graph_unchanged(name):
    kind = CLASSES[name]
    for mode in ({}, {"maximize": True}) if "maximize" in inspect.signature(kind).parameters else ({},):
        plain, reference = unroll(kind, mode), unroll(kind, mode, skipped=BAD)
        assert isinstance(plain[1], bytes) or name not in ("SGD", "Adam", "RMSprop")
        with watching() as watch:
            assert unroll(kind, mode) == plain and not watch.alarms
        with watching() as watch:
            assert unroll(kind, mode, bad=BAD) == reference
            assert [(a["step"], a["sink"]["kind"]) for a in watch.alarms] == [(i, "gradient") for i in BAD]


def test_class_list_contains_the_usual_optimizers():
    assert {
        "Adadelta",
        "Adafactor",
        "Adagrad",
        "Adam",
        "Adamax",
        "AdamW",
        "ASGD",
        "LBFGS",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
        "SparseAdam",
    } <= set(CLASSES)
    assert len(arguments(torch.optim.Adam)) >= 20 and {"foreach": False, "amsgrad": True} in arguments(torch.optim.Adam)


def scheduled(optimizer):
    """Two schedulers, one inside the other kind that chains, stepped after each step of the optimizer."""
    lr = torch.optim.lr_scheduler
    one, plateau = lr.StepLR(optimizer, 2, 0.5), lr.ReduceLROnPlateau(optimizer, patience=1)

    def step():
        one.step()
        plateau.step(1.0)

    return step


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "Muon"])
def test_with_schedulers_attached(name):
    if name not in CLASSES:
        pytest.skip(f"this torch has no {name}")
    model = next(m for m in MODELS if not is_accepted(CLASSES[name], m))
    assert check(CLASSES[name], model, extra=scheduled)


def test_script_hooks_see_gradients_of_a_vetoed_step(tmp_path):
    # A pre-hook that clips by itself, a post-hook that logs: neither may find None.
    def make(params):
        optimizer = torch.optim.Adam(params, lr=0.01)
        optimizer.register_step_pre_hook(
            lambda o, *_: [p.grad.clamp_(-1, 1) for g in o.param_groups for p in g["params"]] and None
        )
        optimizer.register_step_post_hook(
            lambda o, *_: [p.grad.norm() for g in o.param_groups for p in g["params"]] and None
        )
        return optimizer

    assert check(make)


def test_a_veto_leaves_the_class_as_it_was():
    before = torch.optim.SGD.step.__closure__[0].cell_contents if hasattr(torch.optim.SGD.step, "hooked") else None
    assert check(torch.optim.SGD)
    after = torch.optim.SGD.step.__closure__[0].cell_contents
    assert before is None or before is after
    assert after.__name__ == "step"


SAMPLE = """
import hashlib, os
import torch
from torch import nn
REFERENCE = bool(os.environ.get("REFERENCE"))
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False))
opt = torch.optim.{make}
def show(v):
    return v.numpy().tobytes() if torch.is_tensor(v) else [(k, show(v[k])) for k in v] if isinstance(v, dict) else repr(v)
for i, x in enumerate([torch.randn(8, 4) for _ in range(7)]):
    if REFERENCE and i in (0, 4): continue
    opt.zero_grad()
    (net(x * (float("nan") if i in (0, 4) else 1)) - 1).pow(2).mean().backward()
    opt.step()
    if i not in (0, 4): print(i, hashlib.sha256(repr((show(net.state_dict()), show(opt.state_dict()))).encode()).hexdigest())
"""


@pytest.mark.parametrize(
    "make",
    [
        "Muon(net.parameters())",
        "NAdam(net.parameters(), decoupled_weight_decay=True)",
        "Adafactor(net.parameters())",
        "ASGD(net.parameters(), t0=2)",
    ],
)
def test_command_line_with_reruns_gives_the_same_result(tmp_path, make):
    reference = run(tmp_path, SAMPLE.format(make=make), env={"REFERENCE": "1"})
    reference.assert_silent()
    got = run(tmp_path, SAMPLE.format(make=make), "--on-alarm", "skip")
    assert (got.code, got.out) == (0, reference.out), got.text()
    assert [(a["step"], a["weights"]) for a in got.alarms] == [(0, "clean"), (4, "clean")]
