"""Training is the same to the bit, watched or not: 50 steps of many kinds, then everything that a step may change.

Each training runs twice, in two children forked from one process that has imported torch and run nothing.
"""

import gc
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import warnings

import pytest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
STEPS = 50
WATCHED = (False, True, "tape")  # True: with --level gate
KINDS = {}


def kind(*, steps=STEPS, slow=False):
    def register(function):
        KINDS[function.__name__] = (function, steps, slow)
        return function

    return register


# -- the trainings: each sets up (model, optimizer, step function) ----------------------------------------------------


def _classification(model, optimizer, shape, classes=4, clip=0.0):
    import torch
    from torch.nn import functional as F

    def step():
        x, y = torch.randn(*shape), torch.randint(classes, (shape[0],))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss

    return model, optimizer, step


def _perceptron():
    from torch import nn

    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))


@kind()
def perceptron():
    import torch

    model = _perceptron()
    return _classification(model, torch.optim.Adam(model.parameters(), lr=1e-2), (16, 12))


@kind()
def perceptron_with_fused_adam_and_two_groups():
    import torch

    model = _perceptron()
    groups = [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[3].parameters()}]
    return _classification(model, torch.optim.AdamW(groups, lr=1e-2, fused=True), (16, 12))


@kind()
def convolution_with_batch_norm():
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    return _classification(
        model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True), (8, 1, 10, 10)
    )


@kind()
def recurrent():
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(6, 16, num_layers=2, dropout=0.1, batch_first=True)
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    model = Net()
    return _classification(model, torch.optim.RMSprop(model.parameters(), lr=1e-3), (4, 7, 6), clip=0.5)


def _transformer():
    from torch import nn

    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(96, 4))


@kind()
def transformer_with_dropout():
    import torch

    model = _transformer()
    return _classification(model, torch.optim.AdamW(model.parameters(), lr=1e-3), (8, 6, 16), clip=1.0)


@kind()
def accumulation():
    import torch
    from torch.nn import functional as F

    model = _perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step():
        for _ in range(3):
            loss = F.cross_entropy(model(torch.randn(8, 12)), torch.randint(4, (8,))) / 3
            loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    return model, optimizer, step


@kind()
def autocast_bfloat16():
    import torch
    from torch.nn import functional as F

    model = _transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(torch.randn(8, 6, 16))
        loss = F.cross_entropy(logits.float(), torch.randint(4, (8,)))
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


@kind()
def float16_with_a_scaler_that_skips():
    import torch
    from torch.nn import functional as F

    model = _perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=8)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(torch.randn(16, 12))
        loss = F.cross_entropy(logits.float(), torch.randint(4, (16,)))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss * scaler.get_scale()

    return model, optimizer, step


def _checkpointed(reentrant):
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.block, self.last = nn.Linear(12, 24), _perceptron_block(), nn.Linear(24, 4)

        def forward(self, x):
            return self.last(checkpoint(self.block, self.first(x), use_reentrant=reentrant))

    def _perceptron_block():
        return nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Dropout(0.3), nn.BatchNorm1d(24))

    model = Net()
    return _classification(model, torch.optim.Adam(model.parameters(), lr=1e-2), (16, 12))


@kind()
def checkpoint_reentrant():
    return _checkpointed(True)


@kind()
def checkpoint_non_reentrant():
    return _checkpointed(False)


@kind(steps=15)
def line_search():
    import torch
    from torch.nn import functional as F

    model = _perceptron().eval()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    x, y = torch.randn(16, 12), torch.randint(4, (16,))

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return model, optimizer, lambda: optimizer.step(closure)


def _compiled(backend):
    import torch

    model = _perceptron()
    _, optimizer, step = _classification(
        torch.compile(model, backend=backend), torch.optim.Adam(model.parameters(), lr=1e-2), (16, 12)
    )
    return model, optimizer, step


@kind(slow=True)
def compiled_by_aot_eager():
    return _compiled("aot_eager")


@kind(slow=True)
def compiled_by_inductor():
    return _compiled("inductor")


# -- in the child -----------------------------------------------------------------------------------------------------


def _digest(value):
    import torch

    if isinstance(value, torch.Tensor):
        value = (
            str(value.dtype),
            tuple(value.shape),
            value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes(),
        )
    elif isinstance(value, dict):
        value = [(k, _digest(v)) for k, v in value.items()]
    elif isinstance(value, (list, tuple)):
        value = [_digest(v) for v in value]
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _train(name, watched, folder):
    import numpy
    import torch

    warnings.simplefilter("ignore")
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)
    function, steps, _ = KINDS[name]
    model, optimizer, step = function()
    losses, facts = [], {}
    if watched:
        import finitude
        from finitude import _native

        watch = finitude.watch(
            model, optimizer, runs=str(folder / "runs"), level="gate" if watched is True else watched
        )
    for i in range(steps):
        losses.append(step().detach().clone())
        if i % 10 == 0:
            random.random(), numpy.random.rand()
    if watched:
        facts = {
            **_native.counters(),
            "alarms": len(watch.alarms),
            "failure": watch.report().get("reason", ""),
            "taped": _native.tape_on(),
        }
    result = {
        "losses": [_digest(loss) for loss in losses],
        "weights": {k: _digest(v) for k, v in model.named_parameters()},
        "buffers": {k: _digest(v) for k, v in model.named_buffers()},
        "gradients": {k: _digest(p.grad) for k, p in model.named_parameters()},
        "optimizer": _digest(optimizer.state_dict()),
        "torch generator": _digest(torch.get_rng_state()),
        "numpy generator": _digest(list(numpy.random.get_state()[1])),
        "python generator": _digest(random.getstate()),
    }
    if watched:
        watch.close()
    return {"state": result, "facts": facts}


def _serve(folder, names):
    sys.path.insert(0, str(TOOLS))
    import forked
    import numpy  # noqa: F401
    import torch  # noqa: F401
    import torch._dynamo  # noqa: F401

    import finitude.api  # noqa: F401

    forked.import_what_runs_import()
    gc.collect()
    gc.freeze()
    for name in names:
        for watched in WATCHED:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    found = _train(name, watched, folder)
                    (folder / f"{name}-{watched}.json").write_text(json.dumps(found))
                    code = 0
                finally:
                    os._exit(code)
            os.waitpid(pid, 0)


def _run(folder, names):
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    done = subprocess.run(
        [sys.executable, os.path.abspath(__file__), str(folder), *names],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = {}
    for name in names:
        for watched in WATCHED:
            file = folder / f"{name}-{watched}.json"
            assert file.exists(), f"{name}, watched {watched}: the training did not end well\n{done.stderr}"
            found[name, watched] = json.loads(file.read_text())
    return found


@pytest.fixture(scope="module")
def fast_runs(tmp_path_factory):
    return _run(tmp_path_factory.mktemp("bits"), [name for name, (_, _, slow) in KINDS.items() if not slow])


def _assert_same(name, found):
    for watched in WATCHED[1:]:
        _assert_same_as_off(name, found, watched)


def _assert_same_as_off(name, found, watched):
    off, on = found[name, False]["state"], found[name, watched]["state"]
    assert len(set(off["losses"])) > 5, "a training whose loss does not move shows nothing"
    for what, value in off.items():
        assert on[what] == value, f"{name}: {what} differ when watched"
    facts, steps = found[name, watched]["facts"], KINDS[name][1]
    assert facts["taped"] == (watched == "tape"), facts
    assert facts["on"] and facts["alarms"] == 0 and facts["vetoes"] == 0, facts
    assert facts["steps"] + facts["scaler_skips"] == steps, facts
    if name == "float16_with_a_scaler_that_skips":
        assert 2 <= facts["scaler_skips"] < steps // 2, facts
    if name != "line_search":  # gradients inside a closure are not looked at
        assert facts["gradients_scanned"] >= steps, facts


@pytest.mark.parametrize("name", [name for name, (_, _, slow) in KINDS.items() if not slow])
def test_fifty_steps_are_bit_identical_when_watched(fast_runs, name):
    _assert_same(name, fast_runs)


@pytest.mark.slow
@pytest.mark.thorough  # test_compiled_shapes.py compares both backends, watched at each level
@pytest.mark.parametrize("name", [name for name, (_, _, slow) in KINDS.items() if slow])
def test_compiled_training_is_bit_identical_when_watched(tmp_path, name):
    _assert_same(name, _run(tmp_path, [name]))


def test_the_digest_sees_a_single_bit():
    import torch

    value = torch.zeros(3)
    other = value.clone()
    other[1] = -0.0
    assert _digest(value) == _digest(value.clone()) and _digest(value) != _digest(other)


if __name__ == "__main__":
    _serve(pathlib.Path(sys.argv[1]), sys.argv[2:])
