"""A script that looks at its loss before backward and drops the step: reported as an advisory, whichever way it looks."""

import pytest

from finitude.report import incident
from finitude.session import windows
from helpers import TRAINING, plain, run, training, write_script

LOOP = """
import math
import numpy as np
for i, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x)
    if i in (2, 4): loss = loss {fault}
    if {check}: continue
    loss.backward()
    opt.step()
print("ended", finite())
"""

CHECKS = [
    "torch.isnan(loss)",
    "torch.isnan(loss).any()",
    "loss.isnan()",
    "loss.isnan().item()",
    "not torch.isfinite(loss)",
    "not torch.isfinite(loss).all()",
    "not loss.isfinite()",
    "loss != loss",
    "not loss == loss",
    "math.isnan(loss.item())",
    "math.isnan(loss)",
    "not math.isfinite(float(loss))",
    "np.isnan(loss.item())",
    "str(loss.item()) == 'nan'",
    "torch.isnan(torch.stack([loss, loss])).any()",
    "not (loss.item() < 1e9)",
    "torch.isnan(loss.detach())",
    "not math.isfinite(loss.detach().cpu().item())",
    "not torch.isfinite(loss.detach()).all()",
    "math.isnan(loss.detach())",
    "not loss < 1e9",
    "math.isnan(loss.detach().tolist())",
    "np.isnan(loss.detach())",
    "math.isnan(loss.data.item())",
]


@pytest.mark.parametrize("check", CHECKS)
def test_loss_checked_and_dropped_is_an_advisory(tmp_path, check):
    got = training(tmp_path, LOOP.format(fault="* NAN", check=check), "--on-alarm", "raise")
    assert (got.code, got.out, got.report["outcome"]) == (0, "ended True\n", "clean"), got.text()
    assert not got.alarms and got.watched["handled_by_script"] == 2, got.text()
    assert [a["step"] for a in got.advisories()] == [2, 3], got.text()
    assert "never given to backward" in got.advisories("handled-by-script")[0]["text"]


@pytest.mark.parametrize("check", ["not torch.isfinite(loss)", "math.isnan(loss.item())"])
def test_dropped_loss_is_explained_by_rerun_in_place(tmp_path, check):
    got = training(tmp_path, LOOP.format(fault="* NAN", check=check), "--on-alarm", "stop")
    first, second = got.advisories("handled-by-script")
    assert (got.code, got.out) == (0, "ended True\n") and not got.alarms, got.text()
    assert first["births"][0]["op"] == "aten::mul" and "loss * NAN" in first["births"][0]["source"], got.text()
    # The dropped loss has no gradients: what was compared is of the step that the script applied.
    assert "in place; loss and gradients of the step that was then applied came out with the same" in first["text"]
    assert "rewind" in first["text"], first
    assert not second["births"]


@pytest.mark.parametrize("check", ["not torch.isfinite(loss)", "torch.isinf(loss)", "math.isinf(loss)"])
def test_an_infinite_loss_too(tmp_path, check):
    got = training(tmp_path, LOOP.format(fault="* INF", check=check), "--on-alarm", "raise")
    assert not got.alarms and got.watched["handled_by_script"] == 2, got.text()


def test_with_finite_losses_the_same_checks_are_silent(tmp_path):
    got = training(tmp_path, LOOP.format(fault="* 1", check=" or ".join(CHECKS)), "--on-alarm", "stop")
    got.assert_silent()
    assert got.watched["steps"] == 6


def test_leaving_loop_at_check_is_explained_at_end(tmp_path):
    text = LOOP.format(fault="* NAN", check="torch.isnan(loss)").replace("continue", "break")
    got = training(tmp_path, text, "--on-alarm", "stop")
    (advisory,) = got.advisories("handled-by-script")
    assert got.code == 0 and not got.alarms and advisory["step"] == 2, got.text()
    assert advisory["births"][0]["op"] == "aten::mul" and "restart" in advisory["text"], got.text()


@pytest.mark.parametrize("leaves", ["sys.exit(1)", 'raise SystemExit("loss is NaN")', "break"])
def test_a_watched_program_that_ends_for_it_hears_which_loss(tmp_path, leaves):
    text = LOOP.format(fault="* NAN", check="not torch.isfinite(loss)").replace("continue", leaves)
    write_script(tmp_path, TRAINING + "import sys, finitude\nfinitude.watch()\n" + text)
    said = plain(tmp_path, "train.py").err
    assert "1 bad step handled by the script (step 2: a loss that was not finite was looked at" in said, said


def test_raised_loss_is_what_is_compared(tmp_path):
    text = LOOP.format(fault="* NAN", check="torch.isnan(loss)").replace("continue", "raise ValueError(i)")
    alarm = training(tmp_path, text, "--on-alarm", "stop").the_alarm()
    assert alarm["rerun_verified"] and alarm["rerun_by"] == "restart", alarm["rerun_text"]
    assert alarm["rerun_text"].endswith("; the value came out with the same bits"), alarm["rerun_text"]


# The program steps its optimizer all the same, without gradients or with those of an earlier batch.
STEPS_ON = """
import torch
torch.manual_seed(0)
layer = torch.nn.Linear(3, 1)
opt = torch.optim.{optimizer}(layer.parameters(), lr=0.1)
for i in range(16):
    x = torch.randn(4, 3)
    {zero}
    loss = (layer(x).sum() * (float("nan") if i >= 3 else 1)).pow(2)
    if {check}:
        loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("optimizer", "zero", "check"),
    [
        ("SGD", "opt.zero_grad()", "not torch.isnan(loss)"),
        ("Adam", "opt.zero_grad(set_to_none=False)", "torch.isfinite(loss)"),
        ("SGD", "pass", "loss.item() < 1e9"),
    ],
)
def test_dropped_loss_has_the_step_of_its_check(tmp_path, optimizer, zero, check):
    got = run(tmp_path, STEPS_ON.format(optimizer=optimizer, zero=zero, check=check), "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert alarm["step"] == 3 and "learned since step 3" in alarm["text"], got.text()
    assert alarm["rerun"] == "persistent" and alarm["births"][0]["line"] == 8, got.text()
    assert [a["step"] for a in got.advisories("handled-by-script")][:3] == [3, 4, 5], got.text()


def test_only_what_existed_is_called_compared():
    assert incident.compared({"losses": [1], "gradients": [2, 0]}) == "loss and gradients"
    assert incident.compared({"losses": [1], "gradients": [0, 0]}) == "the loss"
    assert incident.compared({"losses": [1], "gradients": None}) == "the loss"
    assert incident.compared({"losses": [], "gradients": [0, 2]}) == "the gradients"
    assert incident.compared({"losses": [], "gradients": [0], "raised": [3]}) == "the value"
    assert "random numbers" in incident.compared({"losses": [], "gradients": [0], "raised": None})
    assert windows._finite({"losses": [1], "marks": [0, 1]}) == "; loss and gradients are finite"
    assert windows._finite({"losses": [1], "marks": [0]}) == "; the loss is finite"
    assert windows._finite({"losses": [], "marks": [1]}) == "; gradients are finite"
    assert windows._finite({"losses": [], "marks": [0]}) == "; no backward was run in this step"


def test_returning_function_is_explained_after_model_is_gone(tmp_path):
    got = training(
        tmp_path,
        """
        import math
        def train():
            model = nn.Linear(4, 3)
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            for i, x in enumerate(batches):
                loss = (model(x) / (x.abs().max() * (i != 4))).pow(2).mean()
                if not math.isfinite(loss.item()):
                    return i
                opt.zero_grad()
                loss.backward()
                opt.step()
        print("gave up at", train())
        """,
        "--on-alarm",
        "stop",
    )
    (advisory,) = got.advisories("handled-by-script")
    assert (got.code, got.out) == (0, "gave up at 4\n") and not got.alarms and advisory["step"] == 4, got.text()
    assert advisory["births"][0]["op"] == "aten::div" and "model(x) / " in advisory["births"][0]["source"], got.text()


SIDE = {
    "a value that is only logged": """
        for i, x in enumerate(batches):
            loss = loss_of(x)
            aside = (loss * NAN).item()
            opt.zero_grad(); loss.backward(); opt.step()
        """,
    "a copy that is only logged": """
        for i, x in enumerate(batches):
            loss = loss_of(x)
            aside = (loss * NAN).detach().item()
            opt.zero_grad(); loss.backward(); opt.step()
        """,
    "copies that nobody looks at": """
        for i, x in enumerate(batches):
            asides = [(loss_of(x) * NAN).detach() for _ in range(20)]
            loss = loss_of(x) + torch.nan_to_num(asides[0])
            opt.zero_grad(); loss.backward(); opt.step()
        """,
    "a term that is left out of the loss": """
        for i, x in enumerate(batches):
            loss, extra = loss_of(x), model(x).mean() * NAN
            if torch.isfinite(extra): loss = loss + extra
            opt.zero_grad(); loss.backward(); opt.step()
        """,
    "under no_grad": """
        for i, x in enumerate(batches):
            with torch.no_grad():
                if torch.isnan(loss_of(x) * NAN): pass
            loss = loss_of(x)
            opt.zero_grad(); loss.backward(); opt.step()
        """,
    "an evaluation without no_grad": """
        for i, x in enumerate(batches + batches):
            loss = loss_of(x)
            opt.zero_grad(); loss.backward(); opt.step()
            model.eval()
            for y in batches: (loss_of(y) * NAN).item(), torch.isnan((loss_of(y) * NAN).detach())
            model.train()
        """,
    "an evaluation without no_grad at the end": """
        for x in batches:
            opt.zero_grad(); loss_of(x).backward(); opt.step()
        model.eval()
        losses = [(loss_of(x) * NAN).item() for x in batches * 3]
        """,
    "nothing that the optimizer owns": """
        other = nn.Linear(4, 1)
        for i, x in enumerate(batches):
            if torch.isnan(other(x).sum() * NAN): pass
            loss = loss_of(x)
            opt.zero_grad(); loss.backward(); opt.step()
        """,
    "masks compared with themselves": """
        for i, x in enumerate(batches):
            mask = torch.full((8, 8), -INF)
            assert (mask == mask).all() and mask[0, 0].item() == -INF
            loss = loss_of(x)
            opt.zero_grad(); loss.backward(); opt.step()
        """,
}


@pytest.mark.parametrize("body", SIDE.values(), ids=SIDE)
def test_bad_value_unrelated_to_taken_step_is_silent(tmp_path, body):
    training(tmp_path, body, "--on-alarm", "stop").assert_silent()


def test_checked_loss_given_to_backward_is_one_alarm(tmp_path):
    got = training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            loss = loss_of(x)
            if i == 3: loss = loss * NAN
            before = bool(torch.isnan(loss))
            opt.zero_grad()
            loss.backward()
            after = loss.item(), (loss / 2).item(), torch.isnan(loss)
            opt.step()
        """,
        "--on-alarm",
        "skip",
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["births"][0]["op"]) == (3, "rewind", "aten::mul"), got.text()
    assert not got.advisories() and got.watched["handled_by_script"] == 0, got.text()


def test_check_after_backward_is_reported_once(tmp_path):
    got = training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            loss = loss_of(x)
            if i == 3: loss = loss * NAN
            opt.zero_grad()
            loss.backward()
            if torch.isnan(loss) or math.isnan(loss.item() / 2): continue
            opt.step()
        """.replace("for i", "import math\n        for i", 1),
        "--on-alarm",
        "raise",
    )
    assert len(got.advisories()) == got.watched["handled_by_script"] == 1, got.text()


def test_model_in_evaluation_mode_drops_steps_too(tmp_path):
    got = training(tmp_path, "model.eval()" + LOOP.format(fault="* NAN", check="loss.isnan()"), "--on-alarm", "raise")
    assert [a["step"] for a in got.advisories()] == [2, 3] and got.watched["handled_by_script"] == 2, got.text()


def test_micro_batches_of_which_one_is_dropped(tmp_path):
    got = training(
        tmp_path,
        """
        opt.zero_grad()
        for i, x in enumerate(batches):
            loss = loss_of(x) / 2
            if i == 3: loss = loss * NAN
            if torch.isnan(loss): continue
            loss.backward()
            if i % 2 == 0:
                opt.step()
                opt.zero_grad()
        print("ended", finite())
        """,
        "--on-alarm",
        "stop",
    )
    (advisory,) = got.advisories()
    assert got.out == "ended True\n" and not got.alarms and advisory["births"][0]["op"] == "aten::mul", got.text()


def test_dropped_loss_does_not_explain_later_alarm(tmp_path):
    got = training(
        tmp_path,
        """
        opt.zero_grad()
        for i, x in enumerate(batches):
            loss = loss_of(x) / 3
            if i == 3: loss = loss / (0 * loss)
            if torch.isinf(loss): continue
            if i == 4: loss = loss * (0 * INF)
            loss.backward()
            if i == 5: opt.step()
        """,
        "--on-alarm",
        "stop",
    )
    alarm = got.the_alarm()
    assert {birth["op"] for birth in alarm["births"]} == {"aten::mul"} and "INF" in alarm["births"][0]["source"], alarm
    assert got.watched["handled_by_script"] == 1, got.text()


def test_traced_dropped_step_needs_no_rerun(tmp_path):
    got = training(
        tmp_path, LOOP.format(fault="* NAN", check="torch.isnan(loss)"), "--level", "trace", "--on-alarm", "stop"
    )
    first = got.advisories("handled-by-script")[0]
    assert first["births"][0]["op"] == "aten::mul" and "trace" in first["text"], got.text()


def test_logging_a_bad_value_each_step_stays_fast(tmp_path):
    got = training(
        tmp_path,
        """
        for i in range(400):
            loss = loss_of(batches[0])
            (loss * INF).item()
            opt.zero_grad(); loss.backward(); opt.step()
        """,
        "--on-alarm",
        "stop",
    )
    got.assert_silent()


def test_scripted_and_vectorised_checks_work_as_ever(tmp_path):
    got = run(
        tmp_path,
        """
        import torch, warnings
        warnings.simplefilter("error", UserWarning)
        def bad(x: torch.Tensor) -> torch.Tensor:
            return torch.isnan(x) | torch.isinf(x) | (x != x)
        scripted = torch.jit.script(bad)
        traced = torch.fx.symbolic_trace(bad)
        vmapped = torch.vmap(bad)
        x = torch.tensor([1.0, float("nan"), float("inf")], requires_grad=True)
        for f in (bad, scripted, traced, vmapped):
            print(f(x).tolist(), f(x.half()).tolist())
        print(torch.tensor(float("nan")).item(), torch.tensor(3).item(), torch.tensor(True).item(), torch.tensor(1j).item())
        """,
        "--on-alarm",
        "stop",
    )
    want = "[False, True, True] [False, True, True]\n" * 4 + "nan 3 True 1j\n"
    assert (got.code, got.out) == (0, want), got.text()


def test_operators_keep_their_kernels_and_names_their_objects(tmp_path):
    """What stands in for the kernel of an operator is met by compiled code, by tracing and by every other library."""
    text = """
        import hashlib
        import torch
        from torch import nn
        model = nn.Linear(2, 2)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            model(torch.ones(1, 2)).sum().backward()
            opt.step()
            operators = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
            kernels = "".join(map(torch._C._dispatch_dump, operators))
            print(len(operators) > 2000, hashlib.sha256(kernels.encode()).hexdigest())
        base = torch._C.TensorBase
        print(*(type(f).__name__ for f in (torch.isnan, torch.eq, torch.Tensor.item, base.isnan, base.__ne__)))
        print(torch.isnan is torch._C._VariableFunctions.isnan, torch.Tensor.detach is base.detach)
        """
    want, got = plain(tmp_path, write_script(tmp_path, text)), run(tmp_path, text)
    assert want.out.startswith("True") and (got.code, got.out) == (0, want.out), got.text()


def test_torch_functions_are_restored_after_a_watch(tmp_path):
    text = """
        import ctypes
        import torch
        import finitude
        def word(address):
            return ctypes.c_void_p.from_address(address).value
        def functions():
            base, apart = torch._C.TensorBase, torch._C._VariableFunctions
            return [word(word(id(base.__dict__[n]) + 40) + 8) for n in ("item", "isnan", "__ne__", "detach", "data", "numpy", "sum")] + \\
                   [word(word(id(getattr(apart, n)) + 16) + 8) for n in ("isnan", "eq", "sum")]
        before = functions()
        for again in range(2):
            with finitude.watch(report="r.json", runs="runs"):
                print([now == torchs for now, torchs in zip(functions(), before)])
            print(functions() == before)
        """
    done = plain(tmp_path, write_script(tmp_path, text))
    during = [False] * 6 + [True] + [False] * 2 + [True]
    assert done.code == 0 and done.out == f"{during}\nTrue\n" * 2, done.text()


def test_a_view_whose_base_was_written_is_looked_at_as_ever(tmp_path):
    """Its node can't be built again: grad_fn raises."""
    body = """
    out = torch.ones(3, requires_grad=True) * 2
    first, second, third = out.unbind(0)
    out.mul_(2)
    print(first.item(), float(second), third.detach().item())
    """
    got = training(tmp_path, body)
    got.assert_no_alarm()
    assert (got.code, got.out) == (0, "4.0 4.0 4.0\n"), got.text()
