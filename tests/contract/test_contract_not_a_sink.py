"""What is not a sink: a loss without backward, gradients that no optimizer owns, elements that weigh nothing."""

import pytest

from helpers import training

LOOP = """
for i, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x)
    {extra}
    loss.backward()
    opt.step()
print("ended", finite())
"""

NO_BACKWARD = {
    "logged only": "print('loss', (loss_of(x) * NAN).item(), file=__import__('sys').stderr) if i == 2 else None",
    "kept in a list": "history = globals().setdefault('history', []); history.append((loss * NAN).item())",
    "evaluated under no_grad": "with torch.no_grad(): wrong = loss_of(x) / 0 * 0",
    "evaluated in inference mode": "with torch.inference_mode(): wrong = loss_of(x * NAN)",
    "backward never called": "wrong = loss_of(x) * NAN",
    "autograd.grad beside the loss": "g = torch.autograd.grad(loss_of(x) * NAN, model.weight)",
}


@pytest.mark.parametrize("extra", NO_BACKWARD.values(), ids=NO_BACKWARD)
def test_loss_without_backward_is_no_alarm(tmp_path, extra):
    got = training(tmp_path, LOOP.format(extra=extra))
    got.assert_no_alarm()
    assert got.out == "ended True\n" and got.watched["steps"] == 6


def test_the_same_loss_given_to_backward_alarms(tmp_path):
    assert training(tmp_path, LOOP.format(extra="loss = loss * NAN")).the_alarm()["step"] == 0


OWNERS = {
    "a parameter that no optimizer owns": "other = nn.Linear(4, 1)",
    "a leaf that is not a parameter": "other = lambda x: x @ leaf; leaf = torch.ones(4, 1, requires_grad=True)",
    "an input whose gradient is kept": "other = lambda x: x.requires_grad_().sum(1)",
}


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
def test_bad_gradient_without_an_optimizer_is_no_alarm(tmp_path, owner):
    # Finite in value; in gradient NaN for `other`, zero for the model.
    slope = "z = other(x.clone()); loss = loss + 0 * (z - z.detach()).sqrt().sum()"
    got = training(tmp_path, owner + LOOP.format(extra=slope))
    got.assert_no_alarm()
    assert got.out == "ended True\n"


def test_frozen_parameter_gets_no_alarm(tmp_path):
    got = training(
        tmp_path,
        """
        model.bias.requires_grad_(False)
        model.bias.grad = torch.full((3,), NAN)     # left over from before it was frozen, and not used:
        opt = torch.optim.SGD([model.weight], lr=0.1)
        """
        + LOOP.format(extra="pass").replace("\n", "\n" + " " * 8),
    )
    got.assert_no_alarm()
    assert got.out == "ended True\n" and got.watched["gradients_scanned"] == 6


def test_bad_gradient_with_frozen_other_parameter_alarms(tmp_path):
    got = training(
        tmp_path, "model.bias.requires_grad_(False)\n" + LOOP.format(extra="loss = loss + 0 * ENDLESS_SLOPE")
    )
    assert got.the_alarm()["sink"] == {"kind": "gradient", "name": "weight"}, got.text()


VECTOR = """
for i, x in enumerate(batches):
    opt.zero_grad()
    losses = (model(x) - 1).pow(2).mean(1)
    if i == 2: losses = losses + torch.where(torch.arange(8) == 5, NAN, 0.0)
    losses.backward({weights})
    opt.step()
print("ended", finite())
"""


def test_nan_root_element_with_zero_weight_is_silent(tmp_path):
    training(
        tmp_path,
        VECTOR.format(weights="torch.arange(8) != 5").replace("torch.arange(8) != 5", "(torch.arange(8) != 5).float()"),
    ).assert_silent()


def test_nan_root_element_with_nonzero_weight_alarms(tmp_path):
    alarm = training(tmp_path, VECTOR.format(weights="torch.ones(8)")).the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"]) == (2, "loss")


def test_nonfinite_grad_argument_is_its_own_gradient_sink(tmp_path):
    got = training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            opt.zero_grad()
            weights = torch.ones(8)
            if i == 2: weights[5] = NAN
            (model(x) - 1).pow(2).mean(1).backward(weights)
            opt.step()
        """,
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]) == (2, {"kind": "gradient", "name": "grad_output"}), got.text()


NORM = """
for i, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x)
    if i == 3: loss = loss * {scale}
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
print("ended", finite())
"""


def test_overflowing_norm_of_finite_gradients_is_an_advisory(tmp_path):
    got = training(tmp_path, NORM.format(scale="1e25"))
    got.assert_no_alarm()
    (advisory,) = got.advisories()
    assert (advisory["kind"], advisory["step"], advisory["cause"]["class"]) == ("clipping", 3, "clipping"), got.text()
    assert got.out == "ended True\n"


def test_large_norm_without_overflow_is_silent(tmp_path):
    training(tmp_path, NORM.format(scale="1e15")).assert_silent()
