"""Which of several divisions of a line went wrong, and by what they divide."""

import pytest

from helpers import TRAINING, run

STEP = """
for i in range(3):
    p = (model(batches[i]).abs() + 0.1) * (0.0 if i == 2 else 1.0)
    t = torch.ones(8, 3) * (i != 2)
    n = int(i != 2)
    loss = LOSS
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def alarm_of(folder, loss):
    done = run(folder, TRAINING + STEP.replace("LOSS", loss), "--level", "trace")
    return done, done.the_alarm()


def test_the_second_of_a_line_is_named(tmp_path):
    done, alarm = alarm_of(tmp_path, "(p.sum(0) / t.sum(0) + (t * p).sum(0) / p.sum(0)).mean()")
    first, second = alarm["births"][:2]
    assert (first["expression"], second["expression"]) == ("p.sum(0) / t.sum(0)", "(t * p).sum(0) / p.sum(0)")
    shown = " ".join(done.err.split())
    assert "also in forward aten::div" in shown and "(t * p).sum(0) / p.sum(0) of loss = (p.sum(0)" in shown, (
        done.text()
    )
    assert "and in aten::div at train.py:" in done.err.splitlines()[-1], done.text()


@pytest.mark.parametrize(
    "loss, divisor, fix",
    [
        ("(p + 1).mean() / (0 if i == 2 else 1)", "the constant 0 of that line", "take the constant 0 out"),
        ("(p + 1).mean() / n", "the divisor is n", "max(n, 1)"),
    ],
)
def test_a_divisor_that_is_a_number(tmp_path, loss, divisor, fix):
    done, alarm = alarm_of(tmp_path, loss)
    assert alarm["cause"]["class"] == "division-by-zero" and divisor in alarm["cause"]["text"], done.text()
    assert fix in alarm["fix"]["text"] and "epsilon" not in alarm["fix"]["text"], done.text()


def test_a_zero_at_which_two_operators_have_no_value_is_clamped_for_both(tmp_path):
    """As the variance of a Gaussian likelihood: clamped for the logarithm alone, the quotient is still infinite."""
    done, alarm = alarm_of(tmp_path, "(p.log() + 2 / p).mean()")
    assert alarm["fix"]["verified"] and "at every birth that reads the same" in alarm["fix"]["tried"], done.text()
    assert "and at each call that fails on the same values" in alarm["fix"]["text"], done.text()


def test_a_zero_that_a_division_by_infinity_gives_is_explained_by_the_infinity(tmp_path):
    done, alarm = alarm_of(tmp_path, "-torch.log(p.exp() / torch.exp(p + 1000 * (i == 2))).mean()")
    assert alarm["cause"]["class"] == "exp-overflow", done.text()
    assert "divides by it, and aten::log" in alarm["cause"]["text"], done.text()


def test_a_redacted_report_quotes_no_line(tmp_path):
    done = run(tmp_path, TRAINING + STEP.replace("LOSS", "(p + 1).mean() / n"), "--level", "trace", "--redact")
    text = done.the_alarm()["cause"]["text"]
    assert "the divisor is the number 0" in text and "the divisor is n" not in text, text
