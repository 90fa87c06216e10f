"""What the armed observer knows of memory from an earlier look never hides what lies there now."""

import pytest

import helpers

# The memory of x was looked at, found sound, and is then written by code that no operator stands for.
WRITTEN_UNSEEN = """
import numpy as np
import torch

w = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([w], lr=0.1)
for i in range(4):
    host = np.ones(4, dtype=np.float32)
    x = torch.from_numpy(host)
    scale = (x * 2).mean()
    if i == 2:
        host[1] = FILL
    x.OP
    loss = (x * w).sum() / scale
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def written(fill, op):
    return WRITTEN_UNSEEN.replace("FILL", fill).replace("OP", op)


@pytest.mark.parametrize("level", ["gate", "trace"])
def test_memory_written_by_numpy_is_seen_as_is(tmp_path, level):
    alarm = helpers.run(tmp_path, written("float('nan')", "numel()"), "--level", level).the_alarm()
    birth = alarm["births"][0]
    assert (birth["phase"], birth["source"]) == ("memory", "loss = (x * w).sum() / scale")
    assert alarm["cause"]["class"] == "memory-corruption"


@pytest.mark.parametrize(
    ("fill", "op", "phase", "cause"),
    [("float('nan')", "mul_(2)", "memory", "memory-corruption"), ("0", "log_()", "forward", "log-of-zero")],
)
def test_in_place_op_input_is_read_from_copy(tmp_path, fill, op, phase, cause):
    """By the time the result is seen to be bad, the value from before is in no memory but the copy."""
    alarm = helpers.run(tmp_path, written(fill, op), "--level", "trace").the_alarm()
    birth = alarm["births"][0]
    assert (birth["phase"], birth["source"], alarm["cause"]["class"]) == (phase, f"x.{op}", cause)


# What forward saved is read again by backward; the buffer has been filled with the next batch by then.
STAGED = """
import numpy as np
import torch

class Reader:
    def __init__(self):
        self.slot = np.empty((6, 3), dtype=np.float32)

    def read(self, i):
        self.slot[:] = np.nan if i == BAD else i + 1.0
        return torch.from_numpy(self.slot)

w = torch.nn.Parameter(torch.ones(3, 2))
optimizer = torch.optim.SGD([w], lr=0.01)
reader = Reader()
x = reader.read(0)
for i in range(1, 6):
    loss = (x @ w).square().mean()   # saved here
    EARLY
    optimizer.zero_grad()
    loss.backward()
    LATE
    optimizer.step()
"""


@pytest.mark.parametrize("level", ["gate", "trace"])
def test_buffer_refilled_before_backward_is_memory_not_data(tmp_path, level):
    text = STAGED.replace("BAD", "3").replace("EARLY", "x = reader.read(i)").replace("LATE", "pass")
    alarm = helpers.run(tmp_path, text, "--level", level).the_alarm()
    birth = alarm["births"][0]
    assert (alarm["step"], birth["phase"], alarm["cause"]["class"]) == (2, "memory", "memory-corruption"), alarm
    assert (
        birth["source"] == "loss = (x @ w).square().mean()   # saved here"
        and "was finite when aten::mm" in alarm["cause"]["text"]
    )


@pytest.mark.parametrize("level", ["gate", "trace"])
def test_buffer_refilled_after_backward_holds_the_next_batch(tmp_path, level):
    text = STAGED.replace("BAD", "3").replace("LATE", "x = reader.read(i)").replace("EARLY", "pass")
    alarm = helpers.run(tmp_path, text, "--level", level).the_alarm()
    assert (alarm["step"], alarm["births"][0]["phase"], alarm["cause"]["class"]) == (3, "data", "bad-data"), alarm
