"""What a second run in place writes into the program's own state, wherever that lies, is written once."""

import pytest

import helpers

MODULE = """
calls, seen = 0, []
class Registry:
    total, items = 0, []
def bump(x, held=[]):
    global calls
    calls += 1
    seen.append(x); held.append(x)
    Registry.total += 1; Registry.items.append(x)
    bump.calls = getattr(bump, "calls", 0) + 1
    return len(held)
"""

WRITES = """
import array, collections, contextvars, ctypes, dataclasses, io, multiprocessing, threading, types
import others
import torch

class Counts:
    n, log = 0, []
class Slots:
    __slots__ = ("n", "unset")
    def __init__(self): self.n = 0
@dataclasses.dataclass(slots=True)
class Row:
    n: int = 0
    log: list = dataclasses.field(default_factory=list)
def f(): f.n += 1
def defaults(held=[], *, more={"n": 0}):
    held.append(1)
    more["n"] += 1
f.n = 0
s, row, bag, local = Slots(), Row(), types.SimpleNamespace(n=0, log=[]), threading.local()
local.n = 0
numbers, chain, data = array.array("i", [0]), collections.ChainMap({"n": 0}), collections.UserDict(n=0)
variable, word, shared = contextvars.ContextVar("variable", default=0), ctypes.c_int(0), multiprocessing.Value("i", 0)
text = io.StringIO()

torch.manual_seed(0)
net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), 1e-3)
for i in range(5):
    x = torch.ones(3, 2) * (i != 3)
    Counts.n += 1; Counts.log.append(i); s.n += 1; row.n += 1; row.log.append(i); f(); defaults()
    bag.n += 1; bag.log.append(i); local.n += 1; numbers[0] += 1; numbers.append(i); chain["n"] += 1; data["n"] += 1
    variable.set(variable.get() + 1); word.value += 1; shared.value += 1; text.write(str(i)); m = others.bump(i)
    loss = net(x).square().mean() / x.sum()
    opt.zero_grad(); loss.backward(); opt.step()
    print(i, Counts.n, Counts.log, s.n, row, f.n, defaults.__defaults__, defaults.__kwdefaults__, bag, local.n, numbers, chain, data, variable.get(), word, shared.value, text.getvalue(),
          m, others.calls, others.seen, others.Registry.total, others.Registry.items, others.bump.calls, hasattr(s, "unset"))
"""


def test_state_outside_attributes_and_lists_is_written_once(tmp_path):
    helpers.write_script(tmp_path, MODULE, "others.py")
    got = helpers.run(tmp_path, WRITES, "--on-alarm", "skip")
    assert got.the_alarm()["rerun_by"] == "rewind" and got.alarms[0]["step"] == 3, got.text()
    assert (got.code, got.out) == (0, helpers.plain(tmp_path, "train.py").out), got.text()


BAR = """
import time
import torch

def bar(rows):
    last, shown = time.monotonic(), 0
    for n, row in enumerate(rows):
        yield row
        if time.monotonic() - last >= 0.15:
            last, shown = time.monotonic(), shown + 1
            print("bar", n + 1, shown)

torch.manual_seed(0)
net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), 1e-3)
for x in bar(torch.ones(5, 3, 2) * torch.tensor([1., 1, 1, 0, 1])[:, None, None]):
    time.sleep(0.2)
    started = time.monotonic()
    loss = net(x).square().mean() / x.sum()
    opt.zero_grad(); loss.backward(); opt.step()
"""


def test_generator_continues_with_values_of_the_first_run(tmp_path):
    """A progress bar's: when it was drawn last."""
    text = BAR.replace(
        "        yield row\n", "        begun = time.monotonic()\n        yield row\n        print(begun < started)\n"
    )
    got = helpers.run(tmp_path, text, "--on-alarm", "skip")
    assert got.the_alarm()["rerun_by"] == "rewind", got.text()
    assert got.out == helpers.plain(tmp_path, "train.py").out, got.text()


UNCOUNTED = """
import numpy as np
import torch
torch.manual_seed(0)
net = torch.nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
shadow, window, memory = [p.data.clone() for p in net.parameters()], torch.zeros(4), torch.zeros(3)
for k, x in enumerate(torch.rand(8, 6, 5)):
    print(k, shadow[0].sum().item(), window.tolist(), memory.tolist())
    loss = (net(x).abs() + 1).log().mean()
    if k == 5:
        loss = loss * (x.sum() * 0).log() * 0  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
    for s in shadow:
        s.data.mul_(0.5).add_(0.1)
    window.data[k % 4] += 1
    memory.numpy()[:] += 1
"""


@pytest.mark.fast
@pytest.mark.parametrize("policy", ["skip", "warn"])
def test_untracked_tensor_writes_remain_as_after_first_run(tmp_path, policy):
    """Neither leaves a mark in the tensor's version."""
    got = helpers.run(tmp_path, UNCOUNTED, "--on-alarm", policy)
    assert got.code == 0, got.text()
    assert got.out == helpers.plain(tmp_path, "train.py").out, got.text()
    first = got.alarms[0]
    assert first["rerun"] == "persistent" and "other data" not in first["rerun_text"], first["rerun_text"]
