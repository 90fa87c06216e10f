"""Training by torch.func alone: no optimizer, no leaf, new parameters in each step."""

import textwrap

import helpers

LOOP = """
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
torch.manual_seed(0)
model = nn.Linear(3, 1)
params = {k: v.detach() for k, v in model.named_parameters()}
def loss_of(params, x):
    size = x.norm(dim=1)
    return (functional_call(model, params, (x,)).squeeze(1) / size).pow(2).mean()
for i in range(6):
    x = torch.randn(4, 3)
    if i == BAD:
        x[2] = 0
    gradients, loss = grad_and_value(loss_of)(params, x)
    GUARD
    params = {k: params[k] - 0.1 * gradients[k] for k in params}
    print(i, all(bool(p.isfinite().all()) for p in params.values()))
"""
BIRTH = "return (functional_call(model, params, (x,)).squeeze(1) / size).pow(2).mean()"


def run(folder, *options, bad=3, guard="pass"):
    return helpers.run(folder, textwrap.dedent(LOOP).replace("BAD", str(bad)).replace("GUARD", guard), *options)


def test_applied_bad_loss_is_alarm_with_its_birth(tmp_path):
    got = run(tmp_path)
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"], alarm["rerun_by"]) == (
        3,
        "loss",
        "damaged",
        "restart",
    ), got.text()
    assert not got.watched["not_watched"], "its capsule comes out as it did"
    replayed = helpers.finitude(tmp_path, "replay", alarm["capsule"])
    assert replayed.code == 0 and replayed.out.startswith("identical: 1 of 1 results have the same bits"), (
        replayed.text()
    )
    assert (alarm["births"][0]["source"], alarm["rerun_verified"], alarm["cause"]["class"]) == (
        BIRTH,
        True,
        "division-by-zero",
    ), got.text()
    assert got.code == 1 and got.out.splitlines()[-1] == "3 False", got.text()  # stopped at the next derivative


def test_warn_reports_once_and_continues(tmp_path):
    got = run(tmp_path, "--on-alarm", "warn")
    assert got.code == 0 and got.out.count("False") == 3, got.text()
    assert got.the_alarm()["step"] == 3


def test_what_is_healthy_is_silent(tmp_path):
    got = run(tmp_path, bad=-1)
    got.assert_silent()
    assert got.out.count("True") == 6
    assert got.watched["steps"] == 6 and not got.watched["not_watched"], got.text()


def test_step_dropped_by_script_is_advisory_with_birth(tmp_path):
    got = run(tmp_path, guard="if not loss.isfinite(): continue")
    got.assert_no_alarm()
    (advisory,) = got.report["advisories"]
    assert (advisory["kind"], advisory["step"], advisory["births"][0]["source"]) == ("handled-by-script", 3, BIRTH)
    assert got.out.count("True") == 5
    assert got.watched["steps"] == 6 and not got.watched["not_watched"], got.text()


def test_bad_losses_with_finite_gradients_report_their_birth(tmp_path):
    text = (
        textwrap.dedent(LOOP)
        .replace("BAD", "-1")
        .replace("GUARD", "pass")
        .replace(".mean()\n", ".mean() + EXTRA.log().sum()\n")
    )
    got = helpers.run(
        tmp_path,
        text.replace("for i in", "EXTRA = torch.ones(2)\nfor i in")
        .replace("if i == -1:", "if i == 2:")
        .replace("x[2] = 0", "EXTRA[1] = 0"),
    )
    assert got.code == 0 and not got.alarms and got.out.count("True") == 6, got.text()
    first, last = got.advisories("handled-by-script")
    assert (first["step"], last["step"]) == (2, 5) and first["text"].startswith("3 losses"), got.text()
    assert (first["births"][0]["op"], first["cause"]["class"]) == ("aten::log", "log-of-zero"), got.text()
    assert "0 gradients scanned, 2 advisories. Report" in got.err, got.text()


def test_last_bad_loss_is_reported(tmp_path):
    got = run(tmp_path, bad=5)
    assert got.code == 0 and not got.alarms, got.text()
    assert [a["step"] for a in got.advisories("handled-by-script")] == [5], got.text()


def test_derivatives_of_nonfinite_inputs_are_not_training(tmp_path):
    got = helpers.run(
        tmp_path,
        """
        import torch
        from torch.func import grad
        rows = torch.randn(6, 3)
        rows[2:] = float("nan")
        print([bool(grad(lambda x: (x * x).sum())(row).isfinite().all()) for row in rows])
        """,
    )
    got.assert_no_alarm()
