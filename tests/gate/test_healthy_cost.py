"""What a healthy step costs, counted and not timed: no Python of ours, no observer, no hook left, no memory.

The trainings run in children forked from one process that has imported torch and run nothing.
"""

import gc
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
FIRST, LAST = 3, 20  # the steps that are looked at; the first two may set things up


# -- the trainings: each gives (optimizer, step function) -------------------------------------------------------------


def _model():
    from torch import nn

    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))


def _loss(model):
    import torch

    return torch.nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,)))


def _simple(make, before_step=lambda model: None):
    import torch

    model = _model()
    optimizer = make(torch.optim, model.parameters())

    def step():
        optimizer.zero_grad()
        _loss(model).backward()
        before_step(model)
        optimizer.step()

    return optimizer, step


def sgd():
    return _simple(lambda optim, p: optim.SGD(p, lr=0.1, momentum=0.9))


def adamw():
    return _simple(lambda optim, p: optim.AdamW(p, lr=1e-3))


def fused_adam():
    return _simple(lambda optim, p: optim.Adam(p, lr=1e-3, fused=True))


def clip_norm():
    import torch

    return _simple(
        lambda optim, p: optim.AdamW(p, lr=1e-3), lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    )


def clip_value():
    import torch

    return _simple(
        lambda optim, p: optim.AdamW(p, lr=1e-3), lambda model: torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
    )


def scheduler_and_accumulation():
    import torch

    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)

    def step():
        for _ in range(2):
            (_loss(model) / 2).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=False)

    return optimizer, step


def loader():
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(16 * 64, 8), torch.randint(4, (16 * 64,)))
    batches = iter(DataLoader(data, batch_size=16, shuffle=True))

    def step():
        x, y = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return optimizer, step


def scaler():
    import torch

    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = _loss(model)
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()

    return optimizer, step


KINDS = {
    f.__name__: f for f in (sgd, adamw, fused_adam, clip_norm, clip_value, scheduler_and_accumulation, loader, scaler)
}


# -- in the child -----------------------------------------------------------------------------------------------------


def _hooks(optimizer):
    from torch.optim import optimizer as module

    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "post": len(optimizer._optimizer_step_post_hooks) + len(module._global_optimizer_post_hooks),
        "pre": len(optimizer._optimizer_step_pre_hooks),
        "tensor": sum(len(p._backward_hooks or ()) + len(p._post_accumulate_grad_hooks or ()) for p in tensors),
    }


def count(name, level, folder):
    """Everything that can be counted of steps FIRST..LAST."""
    import torch

    import finitude
    from finitude import _native

    torch.manual_seed(0)
    ours = os.path.dirname(os.path.abspath(finitude.__file__)) + os.sep
    calls = {}

    def profile(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_code.co_name}"
            calls[place] = calls.get(place, 0) + 1

    with finitude.watch(runs=str(folder / "runs"), level=level):
        optimizer, step = KINDS[name]()
        for _ in range(FIRST):
            step()
        before, hooks = _native.counters(), []
        sys.setprofile(profile)
        for _ in range(FIRST, LAST):
            step()
            hooks.append(_hooks(optimizer))
        sys.setprofile(None)
        after, tracing = _native.counters(), _native.trace_on()
    return {"calls": calls, "hooks": hooks, "before": before, "after": after, "tracing": tracing}


def peak(watched, keep, in_module, folder):
    """By how many MB the memory grows, at its peak, of a loop in whose body a tensor of 200 MB is a local of the user's.

    A parameter outside any module is named after the local that holds it: that look must let go of the others again.
    """
    import torch

    import finitude

    weight = torch.nn.Parameter(torch.full((2, 12_500), 0.01))
    module = torch.nn.Module()
    if in_module:
        module.weight = weight
    optimizer = torch.optim.SGD([weight], lr=1e-6)
    watch = finitude.watch(None, optimizer, runs=str(folder / "runs")) if watched else None
    kept = []
    began = memory("VmRSS")
    for _ in range(4):
        logits = torch.ones(4_000, 2) @ weight
        if keep:
            kept.append(logits.detach())
        loss = logits.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if watch is not None:
        assert watch.report()["watched"]["steps"] == 4
        watch.close()
    return memory("VmHWM") - began


def memory(name):
    return int(re.search(rf"{name}:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) // 1024


def _serve(folder):
    sys.path.insert(0, str(TOOLS))
    import forked
    import torch
    import torch._dynamo  # noqa: F401

    import finitude.api  # noqa: F401

    forked.import_what_runs_import()
    gc.collect()
    gc.freeze()
    for name, order in json.load(sys.stdin).items():
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                torch.set_num_threads(1)
                (folder / f"{name}.json").write_text(json.dumps(globals()[order[0]](*order[1:], folder)))
                code = 0
            finally:
                os._exit(code)
        os.waitpid(pid, 0)


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cost")
    orders = {name: ["count", name, "gate"] for name in KINDS}
    orders["traced"] = ["count", "sgd", "trace"]
    orders |= {
        "peak-off": ["peak", False, False, True],
        "peak-kept": ["peak", False, True, True],
        "peak-module": ["peak", True, False, True],
        "peak-bare": ["peak", True, False, False],
    }
    done = subprocess.run(
        [sys.executable, os.path.abspath(__file__), str(folder)],
        cwd=folder,
        input=json.dumps(orders),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    found = {}
    for name in orders:
        assert (folder / f"{name}.json").exists(), f"{name} did not end well\n{done.stderr}"
        found[name] = json.loads((folder / f"{name}.json").read_text())
    return found


# -- what is asserted -------------------------------------------------------------------------------------------------


def _stepped(facts):
    return facts["after"]["steps"] - facts["before"]["steps"]


@pytest.mark.parametrize("name", KINDS)
def test_healthy_step_is_watched_without_running_our_python(counted, name):
    facts = counted[name]
    assert _stepped(facts) == LAST - FIRST and facts["after"]["on"], facts
    assert facts["after"]["gradients_scanned"] > facts["before"]["gradients_scanned"] or name == "clip_norm", facts
    assert facts["after"]["python_calls"] == facts["before"]["python_calls"]
    assert facts["calls"] == {}  # as the interpreter itself counts them


def test_profiler_counts_our_functions_when_called():
    """The profiler above is able to see a call of ours."""
    import finitude.base.config

    seen = []
    sys.setprofile(lambda frame, event, argument: seen.append(frame.f_code.co_filename) if event == "call" else None)
    try:
        finitude.base.config.load({}, environ={})
    finally:
        sys.setprofile(None)
    assert any(file.startswith(os.path.dirname(os.path.abspath(finitude.__file__)) + os.sep) for file in seen)


@pytest.mark.parametrize("name", KINDS)
def test_healthy_step_has_no_op_observer(counted, name):
    assert not counted[name]["tracing"] and not counted[name]["after"]["tracing"]


def test_an_op_observer_is_on_at_level_trace(counted):
    assert counted["traced"]["tracing"] and counted["traced"]["after"]["tracing"]


@pytest.mark.parametrize("name", KINDS)
def test_no_hooks_remain_after_the_first_two_steps(counted, name):
    facts = counted[name]
    assert all(hooks == {"post": 0, "pre": 0, "tensor": 0} for hooks in facts["hooks"]), facts["hooks"]
    assert facts["after"]["post_hooks"] == facts["before"]["post_hooks"]


@pytest.mark.parametrize("where", ["module", "bare"])
def test_watching_prolongs_no_tensors_life(counted, where):
    off, on, kept = (counted[f"peak-{name}"] for name in ("off", where, "kept"))
    assert off > 360, "the loop has to hold two tensors of 200 MB at its peak"
    assert kept > off + 160, "a tensor that is kept has to show"
    assert abs(on - off) < 64, (off, on)


if __name__ == "__main__":
    _serve(pathlib.Path(sys.argv[1]))
