"""Gradients that torch.autograd.grad and torch.func hand to the script, which drops them: with an optimizer, without."""

import pytest

from helpers import TRAINING, run, training

BY_GRAD = """
for i in range({steps}):
    loss = loss_of(batches[i % 6])
    if {bad}: loss = loss {fault}
    grads = torch.autograd.grad(loss, list(model.parameters()))
    if {check}: continue
    for p, g in zip(model.parameters(), grads): p.grad = g
    opt.step()
print("ended", finite())
"""
BY_FUNC = """
from torch.func import functional_call, grad_and_value
def loss_with(params, x, is_bad):
    loss = functional_call(model, params, (x,)).square().mean()
    return loss * NAN if is_bad else loss
for i in range({steps}):
    params = {{name: p.detach() for name, p in model.named_parameters()}}
    grads, loss = grad_and_value(loss_with)(params, batches[i % 6], {bad})
    if not torch.isfinite(loss): continue
    for name, p in model.named_parameters(): p.grad = grads[name]
    opt.step()
print("ended", finite())
"""
LOOK = "not all(g.isfinite().all() for g in grads)"
NORM = "not torch.isfinite(nn.utils.get_total_norm(grads))"
BAD_GRADIENT = "+ 0 * ENDLESS_SLOPE"


@pytest.mark.parametrize("check", [LOOK, NORM], ids=["look", "norm"])
@pytest.mark.parametrize("fault", ["* NAN", BAD_GRADIENT], ids=["loss", "gradient"])
def test_a_long_row_is_an_alarm(tmp_path, fault, check):
    loop = BY_GRAD.format(steps=30, bad="i > 2", fault=fault, check=check)
    got = training(tmp_path, loop, "--on-alarm", "raise", "--max-skips", "5")
    alarm = got.the_alarm()
    assert (got.code, alarm["step"], alarm["weights"], alarm["action"]) == (1, 3, "clean", "stopped"), got.text()
    assert "dropped 5 steps in a row" in alarm["text"] and "all finite" not in got.err, got.text()
    assert alarm["sink"]["kind"] == ("loss" if fault == "* NAN" else "gradient"), got.text()


@pytest.mark.parametrize("fault", ["* NAN", BAD_GRADIENT], ids=["loss", "gradient"])
def test_the_row_is_explained(tmp_path, fault):
    got = training(tmp_path, BY_GRAD.format(steps=10**6, bad="i > 2", fault=fault, check=LOOK), "--max-skips", "4")
    alarm = got.the_alarm()
    assert f"loss {fault}"[:10] in alarm["births"][0]["source"], got.text()
    assert (alarm["rerun_by"], alarm["rerun_verified"]) == ("restart", True), got.text()


def test_a_few_are_counted_and_no_alarm(tmp_path):
    got = training(tmp_path, BY_GRAD.format(steps=30, bad="i % 5 == 2", fault="* NAN", check=LOOK))
    got.assert_no_alarm()
    assert (got.watched["steps"], got.watched["handled_by_script"]) == (24, 6), got.text()
    assert "all finite" not in got.err, got.text()


def test_run_continues_under_warn_and_all_are_counted(tmp_path):
    loop = BY_GRAD.format(steps=40, bad="i > 2", fault="* NAN", check=LOOK)
    got = training(tmp_path, loop, "--on-alarm", "warn", "--max-skips", "4")
    assert (got.code, len(got.alarms), got.watched["handled_by_script"]) == (0, 1, 37), got.text()


def test_what_a_step_meets_is_its_alarm_alone(tmp_path):
    got = training(tmp_path, BY_GRAD.format(steps=30, bad="i > 2", fault="* NAN", check="False"), "--on-alarm", "skip")
    assert got.alarms and got.alarms[0]["sink"]["kind"] == "gradient", got.text()
    assert got.watched["handled_by_script"] == 0, got.text()


PENALTY = """
for i in range(30):
    opt.zero_grad()
    loss = loss_of(batches[i % 6])
    slopes = torch.autograd.grad(loss * NAN if i > 2 else loss, list(model.parameters()), create_graph={graph})
    loss.backward()
    opt.step()
print("ended", finite())
"""


@pytest.mark.parametrize("graph", [True, False])
def test_gradients_only_inspected_do_not_end_training(tmp_path, graph):
    got = training(tmp_path, PENALTY.format(graph=graph).replace("loss.backward()", "loss_of(batches[0]).backward()"))
    got.assert_no_alarm()
    assert got.out == "ended True\n", got.text()


def test_a_long_row_by_torch_func(tmp_path):
    got = training(tmp_path, BY_FUNC.format(steps=10**6, bad="i > 2"), "--max-skips", "5")
    alarm = got.the_alarm()
    assert (got.code, alarm["step"]) == (1, 3) and "dropped 5 steps in a row" in alarm["text"], got.text()
    assert "loss * NAN" in alarm["births"][0]["source"], got.text()


NO_OPTIMIZER = """
for i in range({steps}):
    loss = loss_of(batches[i % 6])
    if {bad}: loss = loss * NAN
    grads = torch.autograd.grad(loss, list(model.parameters()))
    if {check}: continue
    with torch.no_grad():
        for p, g in zip(model.parameters(), grads): p -= 0.1 * g
print("ended", finite())
"""
FUNC_ALONE = """
from torch.func import grad_and_value
def loss_with(w, x, is_bad):
    loss = (x @ w).square().mean()
    return loss * NAN if is_bad else loss
w = torch.rand(batches[0].shape[1], 1)
for i in range({steps}):
    slope, loss = grad_and_value(loss_with)(w, batches[i % 6], {bad})
    if not torch.isfinite(loss): continue
    w = w - 0.01 * slope
"""


@pytest.mark.parametrize("loop", [NO_OPTIMIZER, FUNC_ALONE], ids=["grad", "func"])
def test_a_long_row_without_an_optimizer(tmp_path, loop):
    without = TRAINING.replace("opt = torch.optim.SGD(model.parameters(), lr=0.1)\n", "")
    got = run(tmp_path, without + loop.format(steps=10**6, bad="i > 2", check=LOOK), "--max-skips", "5")
    alarm = got.the_alarm()
    assert (got.code, alarm["step"], alarm["weights"], alarm["action"]) == (1, 3, "clean", "stopped"), got.text()
    assert "dropped 5 steps in a row" in alarm["text"] and "loss * NAN" in alarm["births"][0]["source"], got.text()


RAISED = """
{before}
class Checked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.view_as(x)
    @staticmethod
    def backward(ctx, g):
        if not torch.isfinite(g).all(): raise ValueError("bad gradient")
        return g
def look(g):
    if not torch.isfinite(g).all(): raise ValueError("a gradient is not finite")
for i in range({steps}):
    opt.zero_grad()
    out = {out}
    loss = out.pow(2).mean()
    if {bad}: loss = loss + (out - out).sqrt().sum()
    try: loss.backward()
    except (RuntimeError, ValueError): continue
    opt.step()
print("ended", finite())
"""
RAISES = {
    "a hook": ("[p.register_hook(lambda g: look(g)) for p in model.parameters()]", "model(batches[i % 6])"),
    "a function": ("", "Checked.apply(model(batches[i % 6]))"),
    "anomaly mode": ("torch.autograd.set_detect_anomaly(True)", "model(batches[i % 6])"),
}


@pytest.mark.parametrize("before, out", RAISES.values(), ids=RAISES)
def test_a_long_row_of_backward_passes_that_raise(tmp_path, before, out):
    loop = RAISED.format(before=before, out=out, steps=10**6, bad="i > 2")
    got = training(tmp_path, loop, "--max-skips", "5")
    alarm = got.the_alarm()
    assert (got.code, alarm["step"], alarm["action"]) == (1, 3, "stopped"), got.text()
    assert "dropped 5 steps in a row" in alarm["text"], got.text()
    assert "(out - out).sqrt()" in alarm["births"][0]["source"], got.text()


def test_a_few_backward_passes_that_raise_are_counted(tmp_path):
    before, out = RAISES["a hook"]
    got = training(tmp_path, RAISED.format(before=before, out=out, steps=30, bad="i % 5 == 2"))
    got.assert_no_alarm()
    assert got.watched["handled_by_script"] == 6 and "all finite" not in got.err, got.text()


def test_unrelated_exception_in_backward_is_no_drop(tmp_path):
    before, out = RAISES["a hook"]
    loop = RAISED.format(before=before, out=out, steps=30, bad="False")
    memory = 'if not torch.isfinite(g).all(): raise ValueError("a gradient is not finite")'
    got = training(tmp_path, loop.replace(memory, 'if i % 2: raise RuntimeError("out of memory")'))
    got.assert_silent()
