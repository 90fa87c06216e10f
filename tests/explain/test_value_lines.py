"""The line at which NumPy, Python or another rank made a value that torch only took in."""

import runpy
import sys

import pytest

from finitude.report import value_lines
from helpers import run

HEAD = """
import numpy as np
import torch
from torch import nn
torch.manual_seed(0)
rng = np.random.default_rng(0)
model = nn.Linear(6, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
def advance(loss):
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
NUMPY = """
for i in range(6):
    raw = rng.random((16, 6)).astype(np.float32)
    if i == 4:
        raw[3, 2] = 0
    features = np.log(raw)  # made
    features = (features - 0.5) * 2
    x = torch.from_numpy(features)  # taken
    advance(model(x).pow(2).mean())
"""
RETURNED = """
def shares(i):
    counts = rng.integers(1, 9, 16).astype(np.float64) * (i != 4)
    parts = counts / counts.sum()  # made
    return parts * 16
for i in range(6):
    w = torch.tensor(shares(i), dtype=torch.float32)  # taken
    advance((model(torch.randn(16, 6)).pow(2).mean(1) * w).mean())
"""
WRITTEN = """
def centred(rewards):
    mean = sum(rewards) / len(rewards)
    return [r - mean for r in rewards]
for i in range(6):
    rewards = [float(v) for v in rng.random(16)]
    if i == 4: rewards[4] = float("inf")  # made
    advance((model(torch.randn(16, 6)).mean(1) * torch.tensor(centred(rewards))).mean())  # taken
"""
OF_AN_OBJECT = """
class Scaled:
    def of(self, batch):
        self.last = (batch - batch.mean(0)) / np.sqrt(batch.var(0))  # made
        return self.last.astype(np.float32)
scaled = Scaled()
for i in range(6):
    batch = rng.random((16, 6))
    if i == 4: batch[:, 1] = 0.25
    x = torch.as_tensor(scaled.of(batch))  # taken
    advance(model(x).pow(2).mean())
"""
NUMBER = """
for i in range(6):
    left = np.float64(4 - i) if i < 5 else 1.0
    weight = np.log(left)  # made
    advance(model(torch.randn(16, 6)).pow(2).mean() * float(weight))  # taken
"""
CASES = {"numpy": NUMPY, "returned": RETURNED, "written": WRITTEN, "object": OF_AN_OBJECT, "number": NUMBER}


def line_of(text, mark):
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {mark}"))


@pytest.fixture
def watched(tmp_path):
    """Runs a script under a trace of its lines: (what it saw, its path, its text)."""

    def run_script(body):
        text = (HEAD + body).lstrip("\n").replace("opt.step()", "opt.step() if torch.isfinite(loss) else stop()")
        text = "def stop(): raise KeyboardInterrupt\n" + text
        path = tmp_path / "train.py"
        path.write_text(text, encoding="utf-8")
        value_lines.begin(in_place=False)
        with pytest.raises(KeyboardInterrupt):
            runpy.run_path(str(path), run_name="__main__")
        seen = value_lines.end()
        assert sys.gettrace() is None
        return seen, str(path), text

    return run_script


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("body", CASES.values(), ids=CASES)
def test_the_statement_that_made_it_is_found(watched, body):
    seen, path, text = watched(body)
    made, _ = seen.maker(path, line_of(text, "taken"))
    assert (made.place.file, made.place.line) == (path, line_of(text, "made"))


def test_what_is_made_before_the_loop_is_found(watched):
    seen, path, text = watched(
        """
table = torch.full((16, 6), float("inf"))
for i in range(6):
    advance(model(table[:4]).mean())  # taken
"""
    )
    made, name = seen.maker(path, line_of(text, "taken"))
    assert name == "table" and "torch.full" in made.place.source


def test_a_debugger_is_left_alone():
    def tracer(*_):
        return tracer

    sys.settrace(tracer)
    try:
        value_lines.begin(in_place=False)
        assert sys.gettrace() is tracer and value_lines.end() is None
    finally:
        sys.settrace(None)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_long_step_is_not_traced_to_its_end(watched, monkeypatch):
    monkeypatch.setattr(value_lines, "MOST_LINES", 20)
    seen, path, text = watched(NUMPY)
    assert seen.maker(path, line_of(text, "taken")) is None


@pytest.mark.parametrize("body", [NUMPY, NUMBER], ids=["numpy", "number"])
def test_the_report_names_that_line(tmp_path, body):
    text = HEAD + body
    alarm = run(tmp_path, text).the_alarm()
    birth, line = alarm["births"][0], line_of(text.lstrip("\n"), "made")
    assert (birth["phase"], birth["line"], alarm["cause"]["class"]) == ("data", line, "bad-data")
    assert f"train.py:{line}" in alarm["cause"]["text"] and alarm["fix"]["line"] == line


@pytest.mark.parametrize("made, is_number", [("0 * BIG", False), ("BIG - BIG", False), ("BAD + 1", True)])
def test_an_infinite_constant_makes_no_nan(tmp_path, made, is_number):
    """A mask's fill is meant. What the arithmetic of the line makes of it is born there."""
    text = f"""
import torch
BIG, BAD = float("inf"), float("nan")
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(5):
    loss = net(torch.ones(4, 3)).square().mean()
    if i == 0: loss = loss * ({made})
    opt.zero_grad(); loss.backward(); opt.step()
"""
    birth = run(tmp_path, text).the_alarm()["births"][0]
    assert birth["source"].startswith("BIG, BAD =" if is_number else "if i == 0: loss = loss"), birth
