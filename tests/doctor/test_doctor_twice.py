"""`finitude doctor --twice`: two runs of a program are compared, and the first operation that differs is named."""

import textwrap

import pytest

from doctor_support import TRAINING, examine, found, line_of


def test_two_runs_that_differ(tmp_path):
    body = """
        import os
        for _ in range(3):
            (F.cross_entropy(model(x), y) * (1 + int.from_bytes(os.urandom(4), "big") * 1e-12)).backward()
            opt.step()
        """
    _, document, _ = examine(tmp_path, TRAINING + textwrap.dedent(body), "--twice")
    (finding,) = found(document, "P19")
    assert (
        finding["verdict"] == "warn"
        and finding["evidence"]["reproducible"] is False
        and finding["evidence"]["first"] is None
    )


CLOCK = """
torch.library.define("doctor::clock", "(Tensor x) -> Tensor")

@torch.library.impl("doctor::clock", "CompositeExplicitAutograd")
def clock(a):
    return torch.full_like(a, int.from_bytes(os.urandom(3), "big"))
"""
TWICE = {
    "the data": (
        "a batch (batch.0)",
        "x = x + torch.tensor(list(os.urandom(16)))[:, None]\n"
        "data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)\n",
        "model(a)",
    ),
    "a layer": (
        "the output of 2 (Linear)",
        "data = [(x, y)] * 4\n",
        'model[2](model[1](model[0](a)) + int.from_bytes(os.urandom(4), "big") * 1e-8)',
    ),
}


@pytest.mark.parametrize("case", TWICE.values(), ids=TWICE)
def test_two_runs_report_what_differs_first(tmp_path, case):
    first, before, forward = case
    text = (
        "import os\n"
        + TRAINING.lstrip("\n")
        + before
        + f"for a, b in data:\n    F.cross_entropy({forward}, b).backward()\n    opt.step()\n"
    )
    _, document, _ = examine(tmp_path, text, "--twice")
    (finding,) = found(document, "P19")
    assert finding["verdict"] == "warn" and first in finding["text"] and first in finding["evidence"]["first"]


OPERATIONS = {
    "that draws": (
        "aten::bernoulli_",
        "draws random numbers",
        False,
        "torch.manual_seed(int.from_bytes(os.urandom(4), 'big'))\n",
        "F.dropout(model(x), 0.5)",
    ),
    "that is given other data": (
        "aten::addmm",
        "no operation made",
        False,
        "x.numpy()[3, 1] = os.urandom(1)[0] + 2.0\n",
        "model(x)",
    ),
    "that is given another number": (  # no sum: of logits moved by one number cross entropy may have the same bits
        "aten::mul",
        "given another number of the script: ",
        False,
        "",
        "model(x) * (1 + int.from_bytes(os.urandom(4), 'big') * 1e-9)",
    ),
    "another one": ("aten::tanh", "calls aten::relu", False, "", "(torch.tanh if first() else torch.relu)(model(x))"),
    # The clock stands for an operator without a fixed order: equal operands, another result.
    "by itself": (
        "doctor::clock",
        "differs for equal operands",
        False,
        CLOCK,
        "torch.ops.doctor.clock(model(x)) * model(x)",
    ),
    "in backward": (
        "doctor::clock",
        "differs for equal operands",
        True,
        CLOCK
        + """
class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.doctor.clock(grad) * grad  # here
""",
        "Late.apply(model(x))",
    ),
}


@pytest.mark.parametrize("case", OPERATIONS.values(), ids=OPERATIONS)
def test_two_runs_name_the_first_operation_that_differs(tmp_path, case):
    op, how, in_backward, before, forward = case
    mark = tmp_path / "mark"
    text = (
        "import os\n"
        + TRAINING.lstrip("\n")
        + before
        + textwrap.dedent(f"""
        def first():
            try:
                os.mkdir({str(mark)!r})
                return True
            except FileExistsError:
                return False

        for _ in range(1):
            loss = F.cross_entropy({forward}, y)  # there
            loss.backward()
            opt.step()
        """)
    )
    _, document, _ = examine(tmp_path, text, "--twice")
    (finding,) = found(document, "P19")
    evidence = finding["evidence"]
    assert how in evidence["how"] and (" in backward" in finding["text"]) == in_backward, finding
    assert op == evidence["operation"], finding
    assert finding["line"] == line_of(text, "# here" if in_backward else "# there"), finding


def test_uninitialised_memory_is_no_difference(tmp_path):
    body = (
        "for _ in range(2):\n    held = torch.empty(4096).copy_(x.sum()) + torch.empty(64).uniform_().sum()\n"
        "    (F.cross_entropy(model(x), y) * held.mean()).backward()\n    opt.step()\n"
    )
    _, document, _ = examine(tmp_path, TRAINING + body, "--twice")
    (finding,) = found(document, "P19")
    assert finding["verdict"] == "note" and finding["evidence"]["reproducible"] is True, finding


def test_two_runs_that_are_the_same_say_so(tmp_path):
    _, document, _ = examine(
        tmp_path,
        TRAINING + "for _ in range(3):\n    F.cross_entropy(model(x), y).backward()\n    opt.step()\n",
        "--twice",
    )
    (finding,) = found(document, "P19")
    assert (
        finding["verdict"] == "note" and "same bits" in finding["text"] and finding["evidence"]["reproducible"] is True
    )
    assert finding["evidence"]["cudnn_benchmark"] is False
