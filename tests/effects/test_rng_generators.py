"""Random numbers of the program's own: drawn again as they were drawn, or the second run is none."""

import json

import pytest
import torch  # noqa: F401  its libraries

from finitude import _native  # noqa: F401
from helpers import plain, run, write_script

pytestmark = pytest.mark.fast

BODY = """
import random, sys
import numpy as np, torch
from torch import nn
TOP

def main():
    torch.manual_seed(0)
    INSIDE
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    LOOP
        y = x.sum(1, keepdim=True)
        p = model(x)
        loss = ((p - y) ** 2).mean()
        if step == 6:
            loss = loss + torch.log(x - x.amax()).mean()
        print(step, x.sum().item(), x.min().item(), x.max().item())
        opt.zero_grad(); loss.backward(); opt.step()

main()
"""
ROUNDS = "for step in range(10):\n        x = "
NUMPY = "torch.from_numpy(rng.standard_normal((5, 8)).astype('float32'))"
# an odd number of them: the second of a pair of normal numbers is part of the state
GAUSS = "torch.tensor([[rng.gauss(0, 1) for _ in range(8)] for _ in range(4)] + [[rng.gauss(0, 1)] + [0.5] * 7])"
STREAM = """class Source:
    def __init__(self, rng):
        self.rng = rng
    def batch(self):
        return """

SOURCES = {
    "numpy in a global name": ("rng = np.random.default_rng(3)", "", ROUNDS + NUMPY),
    "numpy in a local name": ("", "rng = np.random.default_rng(3)", ROUNDS + NUMPY),
    "numpy's old one": (
        "",
        "rng = np.random.RandomState(3)",
        ROUNDS + "torch.from_numpy(rng.randn(5, 7)).float()[:, [0, 1, 2, 3, 4, 5, 6, 6]]",
    ),
    "numpy's global one, pairs": (
        "np.random.seed(3)",
        "",
        ROUNDS + "torch.from_numpy(np.random.randn(5, 7)).float()[:, [0, 1, 2, 3, 4, 5, 6, 6]]",
    ),
    "another kind of numpy's": ("", "rng = np.random.Generator(np.random.Philox(3))", ROUNDS + NUMPY),
    "random.Random": ("rng = random.Random(3)", "", ROUNDS + GAUSS),
    "random's own, pairs": ("rng = random\nrandom.seed(3)", "", ROUNDS + GAUSS),
    "torch's in an attribute": (
        STREAM + "torch.randn(5, 8, generator=self.rng)",
        "it = Source(torch.Generator().manual_seed(3))",
        ROUNDS + "it.batch()",
    ),
    "numpy's in an attribute": (
        STREAM + NUMPY.replace("rng", "self.rng"),
        "it = [Source(np.random.default_rng(3))]",
        ROUNDS + "it[0].batch()",
    ),
    "in a generator that drives the loop": (
        """def stream(n):
    rng = np.random.default_rng(3)
    for i in range(n):
        yield i, """
        + NUMPY,
        "",
        "for step, x in stream(10):",
    ),
    "torch's in such a generator": (
        """def stream(n):
    g = torch.Generator().manual_seed(3)
    for i in range(n):
        yield i, torch.randn(5, 8, generator=g)""",
        "",
        "for step, x in stream(10):",
    ),
    "in a closure": (
        """def source():
    rng = np.random.default_rng(3)
    return lambda: """
        + NUMPY,
        "draw = source()",
        ROUNDS + "draw()",
    ),
    "made after the first steps": (
        "",
        "rng = np.random.default_rng(1)",
        ROUNDS.replace("x =", "if step == 4: rng = np.random.default_rng(3)\n        x =") + NUMPY,
    ),
}


def program(top, inside, loop):
    return BODY.replace("TOP", top).replace("INSIDE", inside or "pass").replace("LOOP", loop)


@pytest.mark.parametrize("source", SOURCES)
def test_rerun_draws_the_same_random_numbers(tmp_path, source):
    got = run(tmp_path, program(*SOURCES[source]), "--on-alarm", "skip")
    alarm = got.alarms[0]
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (6, "rewind", True), alarm["rerun_text"]
    lines = [line.split() for line in got.out.splitlines()]
    assert [int(line[0]) for line in lines] == list(range(10)), got.out
    plain = run(tmp_path, program(*SOURCES[source]).replace("step == 6", "False"))
    assert got.out == plain.out, "what is drawn after the second run is what would have been drawn"
    log = alarm["births"][0]
    _, total, smallest, largest = map(float, lines[6])
    assert log["inputs"][0]["min"] == pytest.approx(smallest - largest, abs=1e-6), (log, lines[6])


@pytest.mark.parametrize(
    "what,text",
    [
        (
            "x, y, p came out with other values",
            program(
                "import os",
                "",
                ROUNDS + "torch.frombuffer(bytearray(os.urandom(40)), dtype=torch.uint8).view(5, 8) / 255",
            ),
        ),
        (
            "other random numbers were drawn",
            program(
                STREAM + NUMPY.replace("rng", "self.rng"),
                """it = Source(np.random.default_rng(3))""",
                ROUNDS.replace("x =", "it.rng = np.random.default_rng(7) if step == 4 else it.rng\n        x =")
                + "it.batch().mul_(1.0)",
            ),
        ),
    ],
)
def test_rerun_on_other_data_is_not_verified(tmp_path, what, text):
    text = text.replace("x - x.amax()", "p - p").replace(
        "nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)", "nn.Linear(8, 1)"
    )
    got = run(tmp_path, text, "--on-alarm", "skip")  # all gradients are NaN, in both runs
    assert f"rewind did not reproduce the step: {what}" in got.alarms[0]["rerun_text"], json.dumps(
        got.alarms[0], indent=1
    )
    assert got.alarms[0]["rerun_by"] == "restart" and got.alarms[0]["rerun_verified"] == ("urandom" not in text), (
        got.alarms[0]["rerun_text"]
    )
    watched = (
        text.rsplit("main()", 1)[0] + "import finitude\nwith finitude.watch(on_alarm='skip', report='w.json'): main()\n"
    )
    done = plain(tmp_path, write_script(tmp_path, watched))
    assert done.code == 0, done.text()
    alone = json.loads((tmp_path / "w.json").read_text())["alarms"][0]  # which cannot be started again
    assert (alone["rerun_by"], alone["rerun_verified"]) == (
        "rewind",
        False,
    ) and f"it failed again, but {what}" in alone["rerun_text"], alone
    assert ("it failed again, on other data (x, y, p)" in got.alarms[0]["rerun_text"]) == ("urandom" in text)
