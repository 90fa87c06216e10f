"""Loops over `zip`, `map` and what itertools has like them, which keep the iterators they draw from in a tuple: a
second run in place puts those back, or leaves alone what one of them reads once."""

import pytest

import helpers

PROGRAM = """
import itertools
import json
import torch

torch.manual_seed(0)
X, Y = [torch.randn(4, 3) for _ in range(5)], [torch.randn(4, 1) for _ in range(5)]
X[3][2] = 0
with open("rows.txt", "w") as file:
    file.write("".join(json.dumps(x.tolist()) + "\\n" for x in X))
net = torch.nn.Linear(3, 1)
opt = torch.optim.Adam(net.parameters())

class Once:
    def __init__(self, values): self.values = list(values)
    def __iter__(self): return self
    def __next__(self):
        if not self.values: raise StopIteration
        return self.values.pop(0)

def pairs():
    for pair in zip(X, Y):
        yield pair

for round in LOOP_AROUND:
    for x, y in LOOP:
        x = torch.as_tensor(x)
        loss = (net(x / x.norm(dim=1, keepdim=True)) - y).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        print(loss.item())
print("end")
"""
IN_MEMORY = [
    "zip(X, Y)",
    "map(lambda x, y: (x, y), X, Y)",
    "(both for _, both in enumerate(zip(X, Y)))",
    "pairs()",
    "zip(map(torch.clone, X), reversed(Y))",
]
READ_ONCE = ["zip(map(json.loads, open('rows.txt')), Y)", "zip(Once(X), Y)", "map(lambda x, y: (x, y), Once(X), Y)"]


def ran(folder, loop, around="range(1)"):
    text = PROGRAM.replace("LOOP_AROUND", around).replace("LOOP", loop)
    got = helpers.run(folder, text, "--on-alarm", "skip", "--capsules", "0", "--experiments", "0")
    plain = helpers.plain(folder, "train.py").out.splitlines()
    assert got.code == 0 and len(got.out.splitlines()) == len(plain) and got.out.splitlines()[:3] == plain[:3], (
        got.text()
    )
    return got.alarms[0]


@pytest.mark.parametrize("loop", IN_MEMORY)
def test_what_lies_in_memory_is_drawn_from_again(tmp_path, loop):
    alarm = ran(tmp_path, loop)
    assert (alarm["step"], alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"]) == (
        3,
        "persistent",
        "rewind",
        True,
    ), alarm["rerun_text"]


def test_unmoved_outer_loop_does_not_prevent_rerun(tmp_path):
    assert ran(tmp_path, "zip(X, Y)", "[a for a, _ in zip(range(2), 'ab')]")["rerun_by"] == "rewind"
    assert ran(tmp_path, "zip(X, Y)", "zip([1, 2], ((a, b) for a, b in zip([1, 2], 'ab')))")["rerun_by"] == "rewind"


def test_a_grid_of_settings_around_it(tmp_path):
    """zip_longest keeps a tuple with an empty place once one of them has ended, which nothing may read."""
    loop = "itertools.starmap(lambda x, y: (x, y), zip(X, Y))"
    assert ran(tmp_path, loop, "itertools.product([1], [2])")["rerun_by"] == "rewind"
    assert ran(tmp_path, "zip(X, Y)", "itertools.zip_longest([1], [])")["rerun_by"] == "rewind"


@pytest.mark.parametrize("loop", READ_ONCE)
def test_single_pass_iterator_is_left_to_the_restart(tmp_path, loop):
    alarm = ran(tmp_path, loop)
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (3, "restart", True), alarm["rerun_text"]
