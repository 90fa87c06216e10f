"""A value that is not finite and that ends the program through a check of somebody else's: the program's own, SciPy's,
NumPy's, Python's."""

import pytest

from helpers import plain, run, training, write_script

TRAINING = """
import math, sys
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
frozen = nn.Linear(6, 3).requires_grad_(False)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)

def assign(costs):
    from scipy.optimize import linear_sum_assignment
    return linear_sum_assignment(costs)

def refuse_bad(values):
    ok = torch.isfinite(values).all()
    if not ok:
        raise RuntimeError("stop here")

class Holder:
    pass

for step in range(4):
    x = torch.randn(8, 6)
    width = torch.zeros(8, 1) if step == {bad} else torch.ones(8, 1)
    out = net(x)
    {body}
    loss = out.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""

# name: (lines of the step, the exception, a part of the line of the birth, the operator)
REFUSED = {
    "scipy, of a value that has no name any more": (
        "rows, _ = assign(torch.log(width * torch.ones(3)).detach().neg().numpy())",
        "ValueError",
        "torch.log(width",
        "aten::log",
    ),
    "an assertion without words on what nobody trains": (
        "goal = frozen(x / width)\n    assert torch.isfinite(goal).all()",
        "AssertionError",
        "x / width",
        "aten::div",
    ),
    "numpy's, on an array that the step has handed over": (
        "gram = (out / width).detach().numpy()\n    np.linalg.eigvalsh(gram.T @ gram + 0 * gram[0, 0])",
        None,
        "out / width",
        "aten::div",
    ),
    "a number made an integer": (
        "share = (width.sum() / width.sum()).item()\n    out = out * (1 + int(10 * share))",
        "ValueError",
        "width.sum() / width.sum()",
        "aten::div",
    ),
    "the program's own exception, in a function, by a flag": (
        "refuse_bad(values=out.detach() * width / width)",
        "RuntimeError",
        "width / width",
        "aten::div",
    ),
    "an attribute of an object": (
        "held = Holder()\n    held.scores = frozen(x).sub(99 * (1 - width)).sqrt() if step == {bad} else frozen(x)\n"
        "    if held.scores.isnan().any(): raise SystemExit('no scores')",
        "no scores",
        "sqrt()",
        "aten::sqrt",
    ),
    "a distribution, which compares its own argument": (
        "torch.distributions.Normal(out * width / width, F.softplus(out) + 1e-3)",
        "ValueError",
        "width / width",
        "aten::div",
    ),
    "an exit": (
        "goal = frozen(x).div(width)\n    if bool((goal != goal).any()) or goal.isinf().any(): sys.exit(5)",
        "",
        "div(width)",
        "aten::div",
    ),
    "raised again as another": (
        "try:\n        np.random.default_rng(0).choice(8, p=(width[:, 0] / "
        "width.sum()).double().numpy())\n    except ValueError as e:\n"
        "        raise KeyError('no choice') from e",
        "KeyError",
        "width[:, 0] / width.sum()",
        "aten::div",
    ),
}


# The others are of the same kinds.
OFTEN = [
    "scipy, of a value that has no name any more",
    "an assertion without words on what nobody trains",
    "a number made an integer",
    "a distribution, which compares its own argument",
    "the program's own exception, in a function, by a flag",
    "raised again as another",
]


@pytest.mark.parametrize(
    "body, error, source, op",
    [pytest.param(*REFUSED[name], id=name, marks=() if name in OFTEN else pytest.mark.thorough) for name in REFUSED],
)
def test_refused_value_is_an_alarm_with_its_birth(tmp_path, body, error, source, op):
    if "scipy" in body or "assign" in body:
        pytest.importorskip("scipy")
    got = run(tmp_path, TRAINING.format(bad=2, body=body.format(bad=2)), "--experiments", "0")
    alarm = got.the_alarm()
    assert got.code == (5 if error == "" else 1) and (error or "") in got.err and "NonFiniteError" not in got.err, (
        got.text()
    )
    assert alarm["step"] == 2 and alarm["births"], got.text()
    assert (alarm["births"][0]["op"], source in alarm["births"][0]["source"]) == (op, True), got.text()


WATCHED = "import finitude; finitude.watch(net, opt, runs='runs')\n"


@pytest.mark.parametrize(
    "name, said",
    [
        ("an assertion without words on what nobody trains", "goal holds 24 NaN"),
        ("a number made an integer", "share holds NaN"),
    ],
)
def test_refused_value_is_an_alarm_of_a_watch_that_the_end_of_the_program_closes(tmp_path, name, said):
    body, error, *_ = REFUSED[name]
    write_script(tmp_path, TRAINING.format(bad=2, body=body).replace("def assign", WATCHED + "def assign"))
    got = plain(tmp_path, "train.py", cold=True)
    assert got.code == 1 and error in got.err, got.text()
    assert "1 alarm" in got.err and "all finite" not in got.err and said in got.err, got.text()


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("share = out.detach() / width\n    assert bool(share.isfinite().all())", "value share"),
        ("torch.distributions.Normal(out * width / width, F.softplus(out) + 1e-3)", "value "),
    ],
)
def test_no_change_is_verified_by_a_value_that_ended_the_program(tmp_path, body, value):
    """The program may end at the same line again, or make NaN of it: its loss was never computed."""
    got = run(tmp_path, TRAINING.format(bad=2, body=body))
    fix = got.the_alarm()["fix"]
    assert fix["outcome"].startswith(value) and "not known" in fix["outcome"] and not fix["verified"], fix
    assert "+++" in fix["diff"] and "loss finite" not in got.text() and "not finite: loss" not in got.text(), got.text()


def test_an_array_that_numpy_refuses_has_its_line_in_the_script(tmp_path):
    body = "gram = (out / width).detach().numpy()\n    np.linalg.eigvals(gram.T @ gram)"
    got = run(tmp_path, TRAINING.format(bad=2, body=body), "--experiments", "0")
    alarm = got.the_alarm()
    assert "at train.py:" in alarm["text"] and "_linalg.py" not in alarm["text"], got.text()
    assert "gradients of the step before" in alarm["rerun_text"], alarm["rerun_text"]


UNNAMED = {
    "np.linalg.eigh": "np.linalg.eigh(np.cov(centre(out).T))",
    "np.linalg.svd": "np.linalg.svd(\n        centre(out) * 2)",
    "scipy.linalg.cholesky": "import scipy.linalg\n    scipy.linalg.cholesky(np.cov(centre(out).T) + np.eye(3))",
}


@pytest.mark.parametrize(("call", "body"), UNNAMED.items(), ids=UNNAMED)
def test_an_argument_without_a_name_has_its_line_in_the_script(tmp_path, call, body):
    pytest.importorskip("scipy")
    centre = "def centre(z): return ((z - z.mean(0)) / width).detach().numpy()\n    "
    got = run(tmp_path, TRAINING.format(bad=2, body=centre + body), "--experiments", "0")
    alarm = got.the_alarm()
    assert f"an argument of {call} holds" in alarm["text"] and "at train.py:" in alarm["text"], got.text()
    assert "/ width" in alarm["births"][0]["source"], got.text()


def test_numpy_array_made_bad_is_named_with_line(tmp_path):
    body = "gains = 1 / width.numpy()\n    if not np.isfinite(gains).all(): raise OSError('gains')"
    got = run(tmp_path, TRAINING.format(bad=2, body=body))
    alarm = got.the_alarm()
    assert "gains holds 8 Inf" in alarm["text"] and "gains = 1 /" in alarm["births"][0]["source"], got.text()
    assert "all finite" not in got.err and alarm["cause"]["class"] == "unknown"


# Whatever lies around, what ends the program has nothing to do with it.
INNOCENT = {
    "a key": "marks = torch.full((8, 8), float('-inf')).triu(1)\n    padded = torch.full((8, 2), "
    "float('nan'))\n    if step == {bad}: raise KeyError('column')",
    "a shape": "padded = torch.full((8, 5), float('nan'))\n    if step == {bad}: padded.view(7, 3)",
    "a check of a shape": "padded = torch.full((8, 5), float('nan'))\n    assert step != {bad} or "
    "padded.shape[1] == 4, 'width'",
    "a mask is read": "marks = torch.full((8, 8), float('-inf')).triu(1)\n    if step == {bad}: "
    "marks + torch.ones(7, 7)",
}


@pytest.mark.parametrize("body", INNOCENT.values(), ids=INNOCENT)
def test_program_dying_of_another_error_gets_no_cause(tmp_path, body):
    got = run(tmp_path, TRAINING.format(bad=-1, body=body.format(bad=2)))
    assert got.code == 1 and not got.alarms and got.report["outcome"] == "clean", got.text()
    advisories = got.advisories()
    assert len(advisories) == ("nan" in body) and all(
        a["kind"] == "not-finite-at-the-end" and not a["births"] for a in advisories
    ), got.text()
    assert ("all finite" in got.err) == (not advisories), got.err
    assert not advisories or "padded holds" in got.err.splitlines()[-1] or "padded holds" in got.err, got.err


def test_checks_that_find_nothing_are_silent(tmp_path):
    lines = "\n    ".join(
        body.format(bad=-1)
        for name, (body, *_) in REFUSED.items()
        if "scipy" not in name and "raised again" not in name
    )
    run(tmp_path, TRAINING.format(bad=-1, body=lines)).assert_silent()


ARITHMETIC = """
import math
import torch
torch.manual_seed(0)
net = torch.nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
average, beta, n, empty = 0.0, 0.9, 0, torch.tensor(0)
{before}
for step in range(4):
    loss = net(torch.randn(8, 6)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 2:
        {body}
"""

# (lines of step 2, the exception, what is said of it, the class of its cause)
ENDED = {
    "a statistic": ("print(loss.item() / average)", "ZeroDivisionError", "average is 0", "division-by-zero"),
    "a remainder": ("print(7 % n)", "ZeroDivisionError", "n is 0", "division-by-zero"),
    "a correction": (
        "print(0.1 / (1 - beta ** n))",
        "ZeroDivisionError",
        "1 - beta ** n is 0, which is 1 - b ** n with n = 0: count the step (n) before this line",
        "division-by-zero",
    ),
    "a logarithm": ("print(math.log(average))", "ValueError", "average is 0", "log-of-zero"),
    "a root": ("print(math.sqrt(n - 4))", "ValueError", "n - 4 is -4", "negative-domain"),
    "an exponential": ("print(math.exp(n + 800))", "OverflowError", "n + 800 is 800", "overflow"),
    "whole numbers of torch": ("print(torch.tensor(3) // empty)", "RuntimeError", "empty is 0", "division-by-zero"),
}


@pytest.mark.parametrize(("body", "error", "said", "cause"), ENDED.values(), ids=ENDED)
def test_a_finite_number_that_ended_the_program_is_named(tmp_path, body, error, said, cause):
    result = run(tmp_path, ARITHMETIC.format(before="", body=body))
    assert result.code == 1 and not result.alarms, result.text()
    (one,) = result.advisories("ended-by-arithmetic")
    assert one["text"].startswith(f"{error} ended the program at train.py:14: {said}"), one["text"]
    assert (one["step"], one["cause"]["class"], one["births"][0]["line"]) == (3, cause, 14)
    assert "all finite" not in result.err and f"{error} ended the program" in result.err, result.err


def test_a_number_that_ended_the_program_before_the_first_step(tmp_path):
    """Nothing was watched by then; the line says what it ended of."""
    result = run(tmp_path, ARITHMETIC.format(before="scale = 1 / average", body="pass"))
    assert result.report["outcome"] == "unwatched" and "average is 0 (set at line 6: average, beta" in result.err


@pytest.mark.parametrize("body", ["raise ZeroDivisionError('mine')", "{}['missing']", "print(1 / beta)"])
def test_other_exceptions_are_about_no_number(tmp_path, body):
    result = run(tmp_path, ARITHMETIC.format(before="", body=body))
    assert result.code == (0 if "beta" in body else 1)
    assert not result.advisories("ended-by-arithmetic") and "all finite" in result.err, result.text()


def test_views_whose_base_was_written_are_looked_at(tmp_path):
    """Their grad_fn raises."""
    body = """
    for i, x in enumerate(batches):
        opt.zero_grad()
        out = model(x)
        first, second, *others = out.unbind(0)
        out.mul_(NAN if i == 2 else 1)
        if i == 2: raise ValueError("out is nan")
        (out - 1).pow(2).mean().backward()
        opt.step()
    """
    got = training(tmp_path, body, "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert alarm["births"][0]["op"] == "aten::mul_" and "internal failure" not in got.err, got.text()
