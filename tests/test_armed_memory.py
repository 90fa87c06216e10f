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
def test_memory_that_numpy_wrote_is_seen_as_it_is(tmp_path, level):
    alarm = helpers.run(tmp_path, written("float('nan')", "numel()"), "--level", level).the_alarm()
    birth = alarm["births"][0]
    assert (birth["phase"], birth["source"]) == ("memory", "loss = (x * w).sum() / scale")
    assert alarm["cause"]["class"] == "memory-corruption"


@pytest.mark.parametrize(
    ("fill", "op", "phase", "cause"),
    [("float('nan')", "mul_(2)", "memory", "memory-corruption"), ("0", "log_()", "forward", "log-of-zero")],
)
def test_what_an_op_in_place_read_is_told_by_its_copy(tmp_path, fill, op, phase, cause):
    """By the time the result is seen to be bad, the value from before is in no memory but the copy."""
    alarm = helpers.run(tmp_path, written(fill, op), "--level", "trace").the_alarm()
    birth = alarm["births"][0]
    assert (birth["phase"], birth["source"], alarm["cause"]["class"]) == (phase, f"x.{op}", cause)
