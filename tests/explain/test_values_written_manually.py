"""Values that the program itself writes between two operations of a step: over a gradient, a buffer, the loss."""

import pytest

from helpers import training

LOOP = """
model.register_buffer("scale", torch.ones(1))
for k, x in enumerate(batches):
    if k == 3: {before}
    loss = loss_of(x) * model.scale
    if k == 3: {at_loss}
    opt.zero_grad()
    loss.backward()
    if k == 3: {after}
    opt.step()
"""
INTO_GRADIENT = ("wrong-backward", "into the gradient of weight")
CASES = {
    "gradient, one element of .data": ("after", "model.weight.grad.data[0, 2] = INF", *INTO_GRADIENT),
    "gradient, all of .data": ("after", "model.weight.grad.data.fill_(NAN)", *INTO_GRADIENT),
    "gradient, by NumPy": ("after", "model.weight.grad.numpy()[1] = NAN", *INTO_GRADIENT),
    "gradient, by an array": ("after", "array = model.weight.grad.numpy(); array[1] = NAN", *INTO_GRADIENT),
    "gradient, divided in .data": (
        "after",
        "model.weight.grad.data.div_(torch.zeros(()))",
        "division-by-zero",
        "the denominator holds 1 zero",
    ),
    "buffer, by NumPy": ("before", "model.scale.numpy()[0] = NAN", "corrupted-state", "into scale"),
    "buffer": ("before", "model.scale.fill_(NAN)", "corrupted-state", "into scale"),
    "loss": ("at_loss", "loss.data.fill_(NAN)", "bad-data", "into the loss"),
}


@pytest.mark.parametrize("place, statement, cause, words", CASES.values(), ids=CASES)
def test_it_is_stopped_and_the_line_is_named(tmp_path, place, statement, cause, words):
    parts = {"before": "pass", "at_loss": "pass", "after": "pass", place: statement}
    got = training(tmp_path, LOOP.format(**parts), "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["weights"]) == (3, "clean"), got.text()
    assert alarm["cause"]["class"] == cause and words in alarm["cause"]["text"], got.text()
    assert statement in alarm["births"][0]["source"], got.text()
    if cause == "wrong-backward":
        assert alarm["births"][0]["phase"] == ("memory" if "numpy" in statement else "backward"), got.text()


def test_nan_that_marks_what_is_missing(tmp_path):
    body = """
    for k, x in enumerate(batches):
        goal = torch.zeros(len(x), 1)
        if k == 3: goal[1] = float("nan")
        apart = (model(x) - goal).pow(2)
        loss = torch.where(goal.isnan(), 0.0, apart).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    """
    got = training(tmp_path, body, "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert alarm["cause"]["class"] == "bad-data" and "the script itself writes NaN" in alarm["cause"]["text"], (
        got.text()
    )
    assert "torch.where before any arithmetic" in alarm["fix"]["text"], alarm["fix"]
    assert 'goal[1] = float("nan")' in alarm["births"][0]["source"], alarm["births"][0]


def test_weights_written_by_numpy_between_two_steps(tmp_path):
    body = """
    array = model.weight.detach().numpy()
    for k, x in enumerate(batches):
        if k == 3:
            array[0, 1] = INF
        opt.zero_grad()
        loss_of(x).backward()
        opt.step()
    """
    got = training(tmp_path, body, "--on-alarm", "stop")
    alarm, fix = got.the_alarm(), got.the_alarm()["fix"]
    assert alarm["cause"]["class"] == "corrupted-state" and "writes 1 Inf into weight" in alarm["cause"]["text"]
    assert "array[0, 1] = INF" in alarm["births"][0]["source"] and fix["line"] == alarm["births"][0]["line"], fix


AFTER_BACKWARD = """
for k, x in enumerate(batches):
    loss = loss_of(x) * (k != 3)
    opt.zero_grad()
    loss.backward()
    {before}
    for p in model.parameters():
        {update}
    opt.step()
"""
OF_GRADIENTS = {
    "divided by a norm of zero": (
        "total = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))",
        "p.grad.div_(total)",
        "division-by-zero",
    ),
    "a scale of one by zero": (
        "scale = 1.0 / sum(p.grad.abs().sum() for p in model.parameters())",
        "p.grad = p.grad * scale",
        "division-by-zero",
    ),
    "a number of Python's": (
        "factor = INF * 0.0 if k == 3 else 0.5",
        "p.grad *= factor",
        "wrong-backward",
    ),
}


@pytest.mark.parametrize("before, update, cause", OF_GRADIENTS.values(), ids=OF_GRADIENTS)
def test_gradients_that_the_script_makes_bad_were_not_born_in_forward(tmp_path, before, update, cause):
    got = training(tmp_path, AFTER_BACKWARD.format(before=before, update=update), "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert {birth["phase"] for birth in alarm["births"]} == {"backward"}, got.text()
    assert alarm["cause"]["class"] == cause, got.text()
    assert "between backward and the optimizer's step" in alarm["cause"]["text"], got.text()
    assert alarm["births"][0]["source"] in (before, update), got.text()
    assert "sample" not in alarm["fix"]["text"], got.text()


def test_a_birth_of_forward_is_one_where_gradients_are_clipped_as_well(tmp_path):
    body = """
    for k, x in enumerate(batches):
        out = model(x)
        loss = (out.pow(2) / (k != 3)).mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    """
    got = training(tmp_path, body, "--on-alarm", "stop")
    assert got.the_alarm()["births"][0]["phase"] == "forward", got.text()
    assert "between backward" not in got.the_alarm()["cause"]["text"], got.text()


@pytest.mark.parametrize(
    "statement",
    [
        "out.data.index_put_((torch.tensor([1]),), torch.tensor(float('nan')))",
        "out.data.copy_(torch.as_tensor(np.full(out.shape, np.nan)))",
    ],
)
def test_a_number_that_the_line_itself_holds_came_from_nowhere_else(tmp_path, statement):
    body = f"""
    import numpy as np
    for k, x in enumerate(batches):
        out = model(x)
        if k == 3: {statement}
        loss = out.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    """
    got = training(tmp_path, body, "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert "the script itself writes" in alarm["cause"]["text"], got.text()
    assert statement in alarm["births"][0]["source"], got.text()
    assert "missing values (None, NaN)" not in alarm["fix"]["text"], got.text()


HOOKED = """
def hook_of(k):
    def hook(g):
        return WHAT
    return hook
def after(p):
    p.grad = p.grad / p.grad.norm()
AFTER
for k, x in enumerate(batches):
    h = model(x)
    h.register_hook(hook_of(k))
    loss = (h - 1).pow(2).mean() * (SCALE if k == 3 else 1.0)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
HOOKS = {
    "a number": ("g * (NAN if k == 3 else 0.5)", "", "1.0", "wrong-backward", "while backward runs, is given a number"),
    "after accumulation": (
        "g",
        "for p in model.parameters(): p.register_post_accumulate_grad_hook(after)",
        "0.0",
        "division-by-zero",
        "the script's own hook on a gradient",
    ),
}


@pytest.mark.parametrize("what, after, scale, cause, words", HOOKS.values(), ids=HOOKS)
def test_a_hook_is_code_of_the_script(tmp_path, what, after, scale, cause, words):
    got = training(
        tmp_path, HOOKED.replace("WHAT", what).replace("AFTER", after).replace("SCALE", scale), "--on-alarm", "stop"
    )
    alarm = got.the_alarm()
    assert alarm["cause"]["class"] == cause and words in alarm["cause"]["text"], got.text()
    assert "accumulategrad" not in got.err and "a metric that is not there yet" not in got.err, got.text()
