"""finitude.explain: where a bad value was born, asked by the program itself."""

import numpy as np
import pytest
import torch
import torch.utils.checkpoint

import finitude
from finitude.report import graph_births
from finitude.report.explanation import Explanation
from helpers import TRAINING, run, training

TRACE = ("--level", "trace", "--on-alarm", "warn")


def asked(folder, body, *options):
    done = training(folder, body, *(options or TRACE))
    assert done.code == 0, done.text()
    return done.out


def test_forward_birth_of_any_tensor(tmp_path):
    out = asked(
        tmp_path,
        """
        import finitude
        hidden = torch.log(model(batches[0]) * 0)
        print(finitude.explain(hidden * 2))
        """,
    )
    assert "24 Inf of it were born here:" in out
    assert "born in forward   aten::log   train.py:" in out
    assert "hidden = torch.log(model(batches[0]) * 0)" in out and "24 x -Inf" in out
    assert "cause     log of an exact zero" in out and "\nfix       " in out


def test_gradient_leads_to_its_forward_line(tmp_path):
    out = asked(
        tmp_path,
        """
        import finitude
        loss = (model(batches[0]) * 0).abs().sqrt().sum()
        loss.backward()
        print(finitude.explain(model.weight.grad))
        """,
    )
    assert "born in backward" in out and "derivative of   aten::sqrt   train.py:" in out


ASK = """
import finitude
def ask(tensor):
    try:
        print(finitude.explain(tensor))
    except RuntimeError as e:
        print(e)
"""


def test_one_tensor_is_explained_per_step(tmp_path):
    out = asked(tmp_path, ASK + "hidden = model(batches[0]) / 0\nask(hidden)\nask(hidden * 2)\nask(hidden.detach())")
    assert out.count("born in forward   aten::div   train.py:") == 1
    assert out.count("born in forward   aten::div") == 2  # the second one is read from the graph of the tensor
    assert out.endswith("is used up by an earlier answer; ask once in a step\n")


def test_tensor_of_an_earlier_step_is_refused(tmp_path):
    step = "loss_of(batches[0]).backward()\nopt.step()\n"
    out = asked(tmp_path, ASK + "old = torch.full((3,), NAN)\n" + step + "ask(old)")
    assert "3 NaN, and nothing that was recorded made them" in out


def test_alarm_after_a_question_names_the_birth(tmp_path):
    done = run(
        tmp_path,
        TRAINING
        + """
import finitude
for i, x in enumerate(batches):
    opt.zero_grad()
    hidden = model(x) * (0 if i == 3 else 1)
    loss = hidden.abs().log().mean()
    finitude.explain(loss)
    loss.backward()
    opt.step()
""",
        "--level",
        "trace",
    )
    birth = done.the_alarm()["births"][0]
    assert (birth["op"], birth["source"]) == ("aten::log", "loss = hidden.abs().log().mean()")


@pytest.mark.parametrize("options", [("--on-alarm", "warn"), ("--level", "tape", "--on-alarm", "warn")])
def test_without_a_trace_it_names_the_level(tmp_path, options):
    out = asked(
        tmp_path,
        """
        import finitude
        print(finitude.explain(torch.ones(2)))
        try:
            finitude.explain(torch.ones(2) / 0)
        except RuntimeError as e:
            print(e)
        """,
        *options,
    )
    assert "every value is finite" in out
    assert "the tensor holds 2 Inf, and nothing is recorded here" in out
    assert ", or type: finitude run --level trace " in out and out.endswith("train.py\n")


def test_outside_of_a_run_it_names_the_callable():
    with pytest.raises(RuntimeError, match=r"explain\(lambda: \.\.\.\), or make it under finitude\.watch\(level="):
        finitude.explain(torch.ones(2) / 0)
    with pytest.raises(TypeError, match="a tensor or a callable, not int"):
        finitude.explain(3)


@pytest.mark.parametrize(
    "options", [("--on-alarm", "skip"), ("--level", "tape", "--on-alarm", "skip"), (*TRACE[:2], "--on-alarm", "skip")]
)
def test_a_callable_is_explained_at_each_level(tmp_path, options):
    """The step that asks, and those after it, are watched as without the question."""
    done = run(
        tmp_path,
        TRAINING
        + """
import finitude
for i, x in enumerate(batches):
    opt.zero_grad()
    if i == 1:
        print(finitude.explain(lambda: {"loss": x.mean(), "logits": (model(x), (model(x) * 0).log())}))
        print(finitude.explain(lambda: model(x)))
    loss = (model(x) * (0 if i == 4 else 1)).abs().log().mean()
    loss.backward()
    opt.step()
""",
        *options,
    )
    assert "born in forward   aten::log   train.py:" in done.out and "every value is finite" in done.out, done.text()
    assert done.the_alarm()["step"] == 4 and done.the_alarm()["births"][0]["op"] == "aten::log", done.text()


def test_a_callable_needs_no_watch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = finitude.explain(lambda: torch.sqrt(torch.zeros(2) - 1))
    assert shown.births[0]["op"] == "aten::sqrt" and shown.births[0]["source"].startswith("shown = "), str(shown)
    with pytest.raises(ZeroDivisionError):
        finitude.explain(lambda: 1 // 0)
    assert not finitude._native.trace_on() and not list(tmp_path.iterdir())


MODEL = torch.nn.Linear(3, 2)
BROKEN = torch.nn.BatchNorm1d(3).eval()
BROKEN.running_mean.uniform_()
LOOSE = torch.nn.Parameter(torch.full((3,), float("nan")))
DATA = torch.rand(4, 3) + 1
ARRAY = np.ones((4, 3), dtype=np.float32)
ARRAY[2, 1] = np.nan


def of_numpy():
    return MODEL(torch.from_numpy(ARRAY))


def of_a_view():
    values = torch.ones(4, 3)
    values[:, 1].sub_(2).log_()
    return MODEL(values)


def of_an_array_that_shares():
    values = torch.ones(3)
    values.numpy()[1] = np.nan
    return values * 2


VARIANTS = {  # what makes the tensor, the state that it begins with: phase, what bore the value, in the cause
    "a gradient": (
        lambda: torch.autograd.grad((MODEL(DATA) * 0).abs().sqrt().sum(), MODEL.weight),
        {},
        "backward",
        "aten::div",
        "sqrt",
    ),
    "a parameter": (lambda: MODEL(DATA), {MODEL.weight: np.nan}, "state", "Linear.weight", "Linear.weight holds 1 NaN"),
    "a parameter of no module": (lambda: DATA * LOOSE, {}, "state", "parameter", "parameter holds 3 NaN"),
    "a buffer": (
        lambda: BROKEN(DATA),
        {BROKEN.running_mean: np.inf},
        "state",
        "BatchNorm1d.running_mean",
        "BatchNorm1d.running_mean holds 1 Inf of 3 values",
    ),
    "data": (
        lambda: MODEL(DATA).sum(),
        {DATA: np.inf},
        "data",
        None,
        "the batch already holds 1 infinite value at row 0",
    ),
    "NumPy": (of_numpy, {}, "data", "aten::lift_fresh", "handed in by aten::lift_fresh at row 2"),
    "in place, by a view": (of_a_view, {}, "forward", "aten::log_", "log of a negative number: 4 NaNs"),
    "an array that shares its memory": (
        of_an_array_that_shares,
        {},
        "memory",
        None,
        "no operator wrote there in between",
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_callable_says_what_it_read(variant):
    """Of a value that no operation made it says what holds it: a weight, a batch, an array."""
    call, begins_with, phase, name, cause = VARIANTS[variant]
    kept = {tensor: tensor.detach().clone() for tensor in begins_with}
    with torch.no_grad():
        for tensor, value in begins_with.items():
            tensor.view(-1)[0] = value
    try:
        shown = finitude.explain(call)
    finally:
        with torch.no_grad():
            for tensor, value in kept.items():
                tensor.copy_(value)
    birth = shown.births[0]
    assert (birth["phase"], birth["op"] or birth.get("name") or None) == (phase, name), str(shown)
    assert cause in shown.cause["text"] and birth["file"] == __file__, str(shown)
    if phase == "memory":
        assert "a NumPy array that shares it" in shown.fix["text"], str(shown)


def test_html_escapes_the_program():
    found = {"births": [_birth("x = a < b")], "cause": None, "fix": None}
    shown = Explanation("1 NaN", found)
    assert shown and "<pre>1 NaN of it was born here:" in shown._repr_html_()
    assert "a &lt; b" in shown._repr_html_() and "a < b" in repr(shown)


STATISTICS = {"arg": "x", "dtype": "float32", "shape": [4], "numel": 4, "nan": 0, "inf": 0, "pos_inf": 0, "neg_inf": 0}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"min": -1.0, "max": 2.5}, "x [4] float32   min -1   max 2.5"),
        ({"min": -1.0, "max": 2.5, "nan": 3}, "x [4] float32   min -1   max 2.5   3 x NaN"),
        ({"nan": 4}, "x [4] float32   4 x NaN"),
        ({"inf": 4, "pos_inf": 1, "neg_inf": 3}, "x [4] float32   1 x Inf   3 x -Inf"),
        ({"dtype": "other", "numel": 0}, "x [4] integer   not scanned"),
        ({"numel": 0, "shape": []}, "x [] float32   not scanned"),
        ({"numel": 0, "shape": [0, 3]}, "x [0,3] float32   empty"),
    ],
)
def test_a_range_is_said_of_finite_values_that_were_read(more, said):
    one = {**STATISTICS, "min": 0.0, "max": 0.0, "zero": 0, **more}
    birth = {"phase": "forward", "op": "aten::log", "file": "", "line": 0, "source": "", "module": ""}
    found = {
        "births": [{**birth, "inputs": [one], "outputs": []}],
        "cause": {"text": "", "class": "", "confidence": ""},
    }
    assert str(Explanation("4 NaN", found)).splitlines()[2] == f"  input   {said}"


def test_finite_tensor_has_no_births():
    shown = finitude.explain(torch.ones(2))
    assert not shown and str(shown) == "every value is finite" and shown.cause is None


def _birth(source):
    return {
        "phase": "forward",
        "op": "aten::div",
        "file": "/a/train.py",
        "line": 3,
        "source": source,
        "module": "Net.head",
        "node": "",
        "inputs": [],
        "outputs": [],
        "rows": [],
    }


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log()

    @staticmethod
    def backward(ctx, grad):
        return grad / ctx.saved_tensors[0]


SPOILT = torch.nn.Linear(3, 2)
with torch.no_grad():
    SPOILT.weight[0, 0] = np.inf
NORM = torch.nn.BatchNorm1d(2)


class WithVariable(Own):
    @staticmethod
    def forward(ctx, x):
        ctx.variable = "a word of the program"
        return Own.forward(ctx, x)


STEPPED = torch.nn.Linear(3, 2)


def stepped():
    optimizer = torch.optim.SGD(STEPPED.parameters(), lr=0.1)
    loss = (STEPPED(DATA) * 0).log().mean()
    loss.backward()
    optimizer.step()
    return loss


def written_since():
    hidden = MODEL(DATA) * 0
    loss = hidden.log().sum()
    with torch.no_grad():
        hidden.add_(1)
    return loss


def through_backward(model):
    loss = (model(DATA) * 0).log().sum()
    loss.backward()
    model.zero_grad()
    return loss


def checkpointed(calls):
    def layer(x):
        calls.append(1)
        return (MODEL(x) * 0).log()

    return torch.utils.checkpoint.checkpoint(layer, DATA, use_reentrant=False).mean()


# What makes a tensor that nothing recorded: is its birth sure, phase, operation or name, in the text.
READ = {
    "a loss": (lambda: (MODEL(DATA) * 0).abs().log().mean(), True, "forward", "aten::log", "min 0   max 0"),
    "a view": (lambda: (MODEL(DATA) * 0).log().mean().view(1), True, "forward", "aten::log", "Linear."),
    "by zeros": (lambda: (MODEL(DATA) / torch.zeros(2)).sum(), True, "forward", "aten::div", "other [2]"),
    "too large for half": (
        lambda: torch.full((2, 3), 6e4).half() @ torch.nn.Parameter(torch.ones(3, 4).half()),
        True,
        "forward",
        "aten::mm",
        "8 Inf of it were born here",
    ),
    "of an operand that is not kept": (
        lambda: (torch.nn.Parameter(torch.zeros(3)) + torch.from_numpy(ARRAY)).sum(),
        False,
        "forward",
        "aten::sum",
        "does not keep what aten::add gave, a number or a tensor without gradient",
    ),
    "of a function of the program": (
        lambda: Own.apply(torch.zeros(3, requires_grad=True)).sum(),
        False,
        "forward",
        "aten::sum",
        "Inf of it was first seen here",
    ),
    "a row": (lambda: MODEL(torch.from_numpy(ARRAY)).sum(), True, "data", "mat1 of aten::addmm", "1 x NaN"),
    "a weight": (lambda: SPOILT(DATA).sum(), True, "state", "Linear.weight", "1 x Inf"),
    "not what a norm wrote": (lambda: NORM(MODEL(DATA) / 0).sum(), True, "forward", "aten::div", "other [] int64"),
    "written since": (written_since, True, "forward", "aten::log", "8 x -Inf"),
    "freed, of a bad weight": (lambda: through_backward(SPOILT), False, "state", "Linear.weight", "ask before backw"),
    "a weight that the step wrote": (stepped, False, "state", "Linear.weight", "written since the forward pass"),
    "a choice": (lambda: torch.where(DATA[:, :1] > 0, MODEL(DATA) / 0, 1.0), True, "forward", "aten::div", "other []"),
    "of a function with a variable": (
        lambda: WithVariable.apply(torch.zeros(3, requires_grad=True)).sum(),
        False,
        "forward",
        "aten::sum",
        "Inf of it was first seen here",
    ),
    "packed by a hook": (lambda: checkpointed([]), False, "forward", "aten::mean", "what aten::log gave"),
}


@pytest.mark.parametrize("made", READ)
def test_a_tensor_that_nothing_recorded_is_read_from_its_graph(made):
    call, is_sure, phase, name, said = READ[made]
    tensor = call()
    shown = finitude.explain(tensor)
    birth = (shown.births if is_sure else shown.seen)[0]
    assert shown and bool(shown.births) == is_sure and bool(shown.seen) != is_sure, str(shown)
    assert (birth["phase"], birth["op"] or birth["name"]) == (phase, name) and said in str(shown), str(shown)
    assert "for line, cause and fix: pass a callable" in str(shown), str(shown)
    assert str(finitude.explain(tensor)) == str(shown)


def test_reading_a_graph_runs_nothing_of_the_program():
    calls = []
    finitude.explain(checkpointed(calls))
    assert len(calls) == 1
    loss = (MODEL(DATA) * 0).abs().log().mean()
    finitude.explain(loss)
    state = torch.get_rng_state()
    finitude.explain(torch.nn.functional.dropout(MODEL(DATA) / 0).sum())
    loss.backward()  # the graph is as it was
    assert not torch.equal(state, torch.get_rng_state()) and torch.isnan(MODEL.weight.grad).any()
    MODEL.zero_grad()


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: SPOILT.weight, "it is the parameter Linear.weight: whatever wrote into it was not recorded"),
        (lambda: through_backward(MODEL), "backward has been through its autograd graph"),
        (lambda: torch.ones(2) / 0, r"no autograd graph \(made under no_grad"),
    ],
)
def test_without_a_graph_it_says_why(made, why):
    with pytest.raises(RuntimeError, match=f"nothing is recorded here .*{why}.*finitude.explain.lambda"):
        finitude.explain(made())


def test_a_graph_that_cannot_be_read_is_said(monkeypatch):
    monkeypatch.setattr(graph_births, "_Graph", lambda tensor: 1 // 0)
    with pytest.raises(RuntimeError, match="autograd graph cannot be read .ZeroDivisionError"):
        finitude.explain(MODEL(DATA) / 0)


def test_many_bad_weights_are_some_births_and_a_count():
    layers = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(10)))
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.fill_(np.nan)
    shown = finitude.explain(layers(DATA))
    assert len(shown.births) == graph_births.MOST_NAMED and "14 more like these" in str(shown), str(shown)
    assert all(birth["name"].startswith("Sequential.") for birth in shown.births)


def test_a_gradient_keeps_no_graph():
    (MODEL(DATA) * 0).abs().sqrt().sum().backward()
    with pytest.raises(RuntimeError, match="it is the gradient of Linear.weight, .* ask of the loss before backward"):
        finitude.explain(MODEL.weight.grad)
    MODEL.zero_grad()
