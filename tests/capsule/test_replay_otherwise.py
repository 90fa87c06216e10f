"""`finitude replay` with a step computed in other ways: on each core, with calls changed, without fused operators."""

import os
import pathlib
import re
import subprocess

import pytest

import helpers
from finitude import _native

PLAYER = pathlib.Path(_native.__file__).with_name("finitude-replay")

# A fused softmax and a fused norm, in modules with names. In the third step the squares in a norm overflow float32: the
# loss is Inf, and every gradient finite.
SCRIPT = """
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.ones(4))
    def forward(self, x):
        return self.head(self.body(x))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(4):
    x = torch.rand(8, 6)
    optimizer.zero_grad()
    p = torch.softmax(model(x), 1)
    size = torch.linalg.vector_norm(model.scale * (1e25 if i == 2 else 1))
    loss = (p * p).mean() + size
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def capsule(tmp_path_factory):
    folder = tmp_path_factory.mktemp("otherwise")
    result = helpers.run(folder, SCRIPT)
    assert result.the_alarm()["capsule"], result.text()
    return folder / result.the_alarm()["capsule"]


def alone(*words, **how):
    done = subprocess.run([PLAYER, *map(str, words)], capture_output=True, text=True, timeout=120, **how)
    return done.returncode, done.stdout, done.stderr


def replay(tmp_path, *words):
    """The same of both programs."""
    code, out, err = alone(*words)
    here = helpers.finitude(tmp_path, "replay", *map(str, words))
    without_times = [re.sub(r"[\d.]+ ms", "", text) for text in (out, here.out)]
    assert (here.code, without_times[0]) == (code, without_times[1]), here.text() + err
    return code, out, err


def test_all_cores_give_the_same_bits(capsule, tmp_path):
    code, out, err = replay(tmp_path, "--stress", "--times", "2", capsule)
    cores = len(os.sched_getaffinity(0))
    who = f"all {cores} cores agree: " if cores > 1 else "core "
    assert code == 0 and out.count("\n") == 1 and out.startswith(who), out + err
    assert out.endswith("2 plays, as in the recorded run\n") or cores == 1


def test_one_core_is_compared_with_itself(capsule):
    core = min(os.sched_getaffinity(0))
    code, out, _ = alone("--stress", "--times=2", capsule, preexec_fn=lambda: os.sched_setaffinity(0, {core}))
    assert code == 0 and out.startswith(f"core {core} alone: ") and "no other core to compare it with" in out, out


def test_a_core_that_gives_other_bits(capsule, tmp_path):
    """By a player that makes its results up: the last core has other bits in its last play."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("this machine has one core, and no other core could give other bits")
    player = tmp_path / "player"
    player.write_text(
        '#!/bin/sh\nwhile test "$1" != --on-core; do shift; done\n'
        f"echo played: 1; echo played: 1; test $2 = {cores[-1]} && echo played: 2 || echo played: 1\n"
    )
    player.chmod(0o755)
    code, out, _ = alone("--stress", "--times=3", f"--player={player}", capsule)
    assert code == 1 and f"core {cores[-1]}" in out and "in 1 of 3 plays" in out, out
    player.write_text("#!/bin/sh\nexec sleep 100\n")
    code, out, err = alone("--stress", "--timeout=1", f"--player={player}", capsule)
    assert code == 4 and out == "no core has played the step\n" and "the time was up" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stress", "--threads=2"), "--stress compares cores, each with one thread: leave --threads out"),
        (("--stress", "--stop-at=log"), "leave --stop-at out"),
        (("--stress", "--perturb=noise"), "leave --perturb out"),
        (("--perturb=noise", "--times=2"), "--perturb compares the step with itself: leave --times out"),
        (("--perturb=magic",), "--perturb cannot be magic"),
        (("--at=log",), "which --perturb?"),
        (("--timeout=5",), "--timeout is of --stress, --perturb and --with"),
        (("--unfused", "--dtype=float64"), "leave --dtype out"),
        (("--perturb=noise", "--at=nowhere"), "no call of the step is of an operator, a line or a module nowhere"),
        (("--perturb=noise", "--at=_softmax#9"), "only 1 times"),
    ],
)
def test_words_that_do_not_fit(capsule, words, said):
    code, _, err = alone(*words, capsule)
    assert code == 2 and said in err, err


def test_one_operation_with_noise(capsule, tmp_path):
    """Each way to name calls; what is not reached keeps its bits."""
    code, out, _ = replay(tmp_path, "--perturb", "noise", "--at", "head", capsule)
    assert code == 0 and out.startswith("noise: inputs off by at most 2 ulps, in "), out
    moved = re.search(r"gradient (\S+): (\d+) ulps, ([\d.e-]+) relative", out)
    assert moved and 0 < float(moved[3]) < 1e-3, out
    assert (
        replay(tmp_path, "--perturb", "noise", "--at", "Net.head", capsule)[1].splitlines()[1:] == out.splitlines()[1:]
    )
    line = 1 + SCRIPT.strip().splitlines().index("    p = torch.softmax(model(x), 1)")
    for where in ("_softmax", "aten::_softmax#1", f"train.py:{line}"):
        code, out, _ = replay(tmp_path, "--perturb", "noise", "--at", where, capsule)
        assert code == 0 and re.search(r"^  \d+ of \d+ results moved$", out, re.M), out


def test_results_that_become_finite_come_first(capsule, tmp_path):
    code, out, _ = replay(tmp_path, "--perturb", "float64", capsule)
    lines = out.splitlines()
    assert code == 1 and lines[2].split()[0] == "aten::linalg_vector_norm", out
    assert lines[3] == "      now finite: loss", out
    code, out, _ = replay(tmp_path, "--perturb", "float64", "--at", "linalg_vector_norm", capsule)
    assert code == 1 and "  now finite: loss\n" in out, out
    code, out, _ = replay(tmp_path, "--perturb", "float64", "--at", "_softmax", capsule)
    assert code == 0 and "now finite" not in out, out


def test_what_has_no_other_form_is_said(capsule, tmp_path):
    code, out, err = replay(tmp_path, "--perturb", "unfused", "--at", "mul", capsule)
    assert code == 4 and out == "" and "nothing of mul was computed otherwise: has no other form" in err, out + err
    code, out, err = replay(tmp_path, "--perturb", "float64", "--at", "bernoulli_", capsule)
    assert code == 4 and "draws random numbers" in err, out + err


def test_every_operator_in_turn(capsule, tmp_path):
    code, out, _ = replay(tmp_path, "--perturb", "noise", capsule)
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("most sensitive operations of this step (noise"), out
    assert lines[1].split() == ["operator", "calls", "loss", *"gradient that moves most".split(), "first", "line"]
    rows = [line.split()[0] for line in lines[2:] if line.startswith("  aten::")]
    assert "aten::addmm" in rows and "aten::_softmax" in rows, out
    assert re.search(r"^as usual \(reads no floating numbers\): ", out, re.M), out
    for how in ("layout", "unfused", "deterministic"):
        code, out, err = replay(tmp_path, "--perturb", how, capsule)
        assert code == 0, (how, out + err)


def test_unfused(capsule, tmp_path):
    """Plain operations square in float32, too: the loss stays Inf."""
    code, out, _ = replay(tmp_path, "--unfused", capsule)
    assert code == 0 and "same class of failure" in out, out
    (names,) = re.findall("^computed by plain operations: (.*)$", out, re.M)
    assert "aten::_softmax" in names and "aten::native_layer_norm" in names, out
    listed = replay(tmp_path, "--unfused", "--step-through", capsule)[1]
    assert names in listed and "same class of failure" in listed
