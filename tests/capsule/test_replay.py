"""What `finitude replay` and the program without Python do with a capsule; both say the same."""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess

import pytest
import torch

import helpers
from finitude import _native
from finitude.cli import table

PLAYER = pathlib.Path(_native.__file__).with_name("finitude-replay")

# Dropout, BatchNorm, half precision and a log of zero.
SCRIPT = """
import torch
from torch import nn
torch.manual_seed(1)
data = [torch.rand(8, 6) for _ in range(4)]
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
def loss_of(x):
    p = x.sum(1, keepdim=True)
    logp = torch.log(p)
    return (logp * model(x)).mean()
for i in range(4):
    x = data[i]
    if i == 2:
        x = x.clone()
        x[5] = 0
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(x).float().mean()
    (loss_of(x) + half).backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def capsule(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay")
    result = helpers.run(folder, SCRIPT)
    assert result.the_alarm()["capsule"], result.text()
    return folder / result.the_alarm()["capsule"]


def alone(*words):
    """The program without Python."""
    done = subprocess.run([PLAYER, *words], capture_output=True, text=True, timeout=120, env={"PATH": "/nowhere"})
    return done.returncode, done.stdout, done.stderr


def replay(tmp_path, *words):
    """(exit code, stdout, stderr), the same of both programs but for the times."""
    code, out, err = alone(*words)
    here = helpers.finitude(tmp_path, "replay", *map(str, words))
    without_times = [re.sub(r"[\d.]+ ms", "", text) for text in (out, here.out)]
    assert (here.code, without_times[0]) == (code, without_times[1]), here.text()
    assert here.err == err.replace("finitude-replay: ", "finitude: ").replace("finitude-replay", "finitude replay")
    return code, out, err


def test_step_through(capsule, tmp_path):
    code, out, _ = replay(tmp_path, "--step-through", capsule)
    lines = out.splitlines()
    assert code == 0 and lines[-1].startswith("identical"), out
    (log,) = [line for line in lines if "aten::log " in line]
    assert (
        "float32 [8, 1]  1 -Inf  min" in log
        and "<- finite in, not out" in log
        and log.endswith("  train.py:9  logp = torch.log(p)")
    )
    assert sum("  backward of train.py:10  return" in line for line in lines) > 3
    (first,) = [line for line in lines if "aten::ones_like" in line]
    assert first.endswith("train.py:19  (loss_of(x) + half).backward()")
    assert any("bfloat16 [8, 8]" in line and "backward of train.py:18" in line for line in lines)
    assert all("fresh memory" in line and "min" not in line for line in lines if "aten::empty" in line)
    # In order, every call once, and all lines are those of the program.
    numbers = [int(line[:5]) for line in lines[:-1]]
    assert numbers == sorted(set(numbers)) and len(numbers) > 30
    assert {name for line in lines for name in re.findall(r"(\S+\.py):\d+", line)} == {"train.py"}


def test_stop_at(capsule, tmp_path):
    code, out, _ = replay(tmp_path, "--stop-at", "log", capsule)
    assert code == 0 and out.startswith("stopped after call ") and "aten::log  train.py:9  logp = torch.log(p)" in out
    assert re.search(r"in +self +float32 \[8, 1\]  min 0 .* 1 zeros", out) and re.search(
        r"out +result +float32 \[8, 1\]  1 -Inf", out
    )
    index = re.search(r"call (\d+)", out)[1]
    assert replay(tmp_path, "--stop-at", index, capsule)[1] == out
    assert replay(tmp_path, f"--stop-at={index}", capsule)[1] == out
    second = replay(tmp_path, "--stop-at", "aten::addmm#2", capsule)[1]
    assert second != replay(tmp_path, "--stop-at", "addmm", capsule)[1] and "aten::addmm" in second


def test_in_place_output_is_shown_before_and_after(capsule, tmp_path):
    out = replay(tmp_path, "--stop-at", "aten::native_batch_norm", capsule)[1]
    means = re.findall(r"(in|out) +running_mean +(.*)", out)
    assert [side for side, _ in means] == ["in", "out"] and means[0][1] != means[1][1]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("aten::nothing", "does not call aten::nothing"),
        ("log#9", "only 1 times"),
        ("log#x", "behind #"),
        ("99999", "the last number of the step is"),
        ("linear", "does not call linear, or that is made of calls of other names (--step-through lists all calls)"),
    ],
)
def test_calls_that_there_are_not(capsule, tmp_path, word, said):
    code, _, err = replay(tmp_path, "--stop-at", word, capsule)
    assert code == 2 and said in err


def test_capsule_tape_without_the_rest_is_refused(capsule):
    for part in ("tape.bin", "capsule.json"):
        code, _, err = alone(capsule / part)
        assert code == 3 and "the folder of the capsule" in err, err


def test_save_tensors(capsule, tmp_path):
    load = pytest.importorskip("safetensors.torch").load_file
    file = tmp_path / "log.safetensors"
    assert replay(tmp_path, "--stop-at", "log", "--save-tensors", file, capsule)[0] == 0
    tensors = load(file)
    assert sorted(tensors) == ["input.self", "output.result"]
    assert torch.equal(torch.log(tensors["input.self"]), tensors["output.result"])
    assert tensors["input.self"][5] == 0 and torch.isneginf(tensors["output.result"][5])
    assert replay(tmp_path, "--save-tensors", file, capsule)[0] == 0
    results = load(file)
    assert results["gradient.0.weight"].shape == (8, 6) and not torch.isfinite(results["loss"]).all()
    code, _, err = replay(tmp_path, "--save-tensors", tmp_path / "no" / "such.safetensors", capsule)
    assert code == 4 and "cannot be written" in err
    for words in (
        ("--save-tensors", capsule / "tensors.safetensors"),
        ("--script", capsule / "tensors.py"),
    ):  # which writes tensors.safetensors, too
        code, _, err = replay(tmp_path, *words, capsule)
        assert code == 2 and "tensors.safetensors is a file of the capsule itself" in err, err
    assert alone("--check", capsule)[0] == 0


def test_a_prompt_with_the_tensors(capsule, tmp_path):
    done = subprocess.run(
        [*helpers.warm_python(), "-m", "finitude", "replay", "--break", "log", str(capsule)],
        cwd=tmp_path,
        input="print(sorted(inputs), outputs['result'].isinf().sum().item())\n",
        capture_output=True,
        text=True,
        timeout=120,
        env=helpers.environment(None),
    )
    assert done.returncode == 0 and "stopped after call" in done.stdout, done.stderr
    assert "['self'] 1" in done.stdout
    code, _, err = alone("--break", "log", capsule)
    assert code == 2 and "needs Python" in err
    for words in (
        ("--check", "--dtype", "float64"),
        ("--script", "birth.py", "--stop-at", "log"),
        ("--check", "--save-tensors=all.safetensors"),
        ("--report", "--script", "birth.py"),
        ("--report", "--times", "3"),
    ):
        code, _, err = alone(*words, capsule)
        assert code == 2 and f"leave {words[-2] if '=' not in words[-1] else '--save-tensors'} out" in err, err


def test_the_whole_step_in_float64(capsule, tmp_path):
    code, out, _ = replay(tmp_path, "--dtype", "float64", capsule)
    assert code == 0 and re.search(r"^non-finite in float64 too: .*loss", out, re.M), out
    assert "float64, the same results are non-finite" in out
    assert re.search(r"^computed as recorded: aten::\S+ \(draws random numbers\)$", out, re.M), "dropout"
    listed = replay(tmp_path, "--dtype", "float64", "--step-through", capsule)[1]
    assert "float64 [8, 8]" in listed
    assert all("aten::bernoulli_" in line for line in listed.splitlines() if "bfloat16 [" in line), (
        "but for what is drawn"
    )
    assert replay(tmp_path, "--dtype", "float32", capsule)[0] == 0
    code, _, err = replay(tmp_path, "--dtype=bfloat16", capsule)
    assert code == 4 and "bfloat16 takes the place of float16, which this step does not have" in err


OVERFLOW = """
import torch
torch.manual_seed(0)
w = torch.nn.Parameter(torch.rand(5))
optimizer = torch.optim.SGD([w], lr=0.1)
for i in range(3):
    optimizer.zero_grad()
    x = torch.full((5,), 100.0 if i == 1 else 1.0)
    (w * torch.exp(x)).sum().backward()
    optimizer.step()
"""


def test_values_finite_in_float64_are_reported(tmp_path):
    folder = tmp_path / helpers.run(tmp_path, OVERFLOW).the_alarm()["capsule"]
    code, out, _ = replay(tmp_path, "--dtype", "float64", folder)
    assert code == 1 and "finite in float64: loss" in out and "0 of " in out, out
    assert replay(tmp_path, "--dtype", "float32", folder)[0] == 0


def test_what_dtype_does_not_affect_computes_as_recorded(tmp_path):
    """Nothing to convert: nothing is said to be left as it was; attention without dropout draws nothing, so it is
    converted."""
    script = """
import torch
from torch import nn
torch.manual_seed(0)
w, drop = nn.Parameter(torch.rand(2, 1, 4, 8)), nn.Dropout(0.5)
optimizer = torch.optim.SGD([w], lr=0.1)
for i in range(3):
    optimizer.zero_grad()
    out = nn.functional.scaled_dot_product_attention(w, w, w)
    (drop(out) * (float("inf") if i == 1 else 1.0)).sum().backward()
    optimizer.step()
"""
    folder = tmp_path / helpers.run(tmp_path, script).the_alarm()["capsule"]
    in_float32, in_float64 = (replay(tmp_path, "--dtype", dtype, folder)[1] for dtype in ("float32", "float64"))
    assert "computed as recorded" not in in_float32 and "no number is finite on both sides" in in_float32
    assert in_float64.count("computed as recorded") == 1 and "aten::bernoulli_" in in_float64


def test_deterministic_and_threads(capsule, tmp_path):
    code, out, _ = replay(tmp_path, "--deterministic", "--threads", "1", "--times", "2", capsule)
    assert code == 0 and out.count("identical") == 2


def test_missing_device_is_reported(capsule, tmp_path):
    code, out, err = replay(tmp_path, "--device", "cuda", capsule)
    assert code == 4 and not out and ("CUDA" in err or "cuda" in err)


def test_both_programs_replay_a_gpu_capsule_on_cpu(capsule, tmp_path):
    """Recorded on the CPU and moved: the same bits here. Without --device it is said why it is not played where it was
    recorded."""
    moved = tmp_path / "step-of-a-gpu"
    assert _native.capsule_moved(str(capsule), str(moved), "cuda:1") == ""
    for program in (alone, lambda *words: replay(tmp_path, *words)):
        code, out, err = program(str(moved))
        assert code == 0 and out.startswith(
            "recorded on cuda:1, replayed on the CPU, since this torch has no cuda: "
        ), out + err
        assert "bits" in out and "\nidentical: " in out
        code, out, err = program("--device", "cpu", "--dtype", "float64", str(moved))
        assert code in (0, 1) and "results are non-finite" in out, out + err
        code, out, err = program("--device", "cuda", str(moved))
        assert code == 4 and not out and "CUDA" in err
        assert program("--device", "cuda", "--dtype", "float64", str(moved))[0] == 2


def test_usage(capsule, tmp_path):
    for words in (
        ["--dtype", "int8", capsule],
        ["--threads", "0", capsule],
        ["--times"],
        ["--nonsense", capsule],
        [capsule, capsule],
        ["--stop-at", "a", "--break", "b", capsule],
        ["--device", "tpu", capsule],
    ):
        code, out, err = alone(*words)
        assert (
            code == 2
            and not out
            and err.endswith("\n(finitude-replay --help shows the options)\n")
            and err.count("\n") == 2
        ), err
        here = helpers.finitude(tmp_path, "replay", *map(str, words))
        assert (
            here.code == 2
            and here.err.endswith("\n(finitude replay --help shows the options)\n")
            and here.err.count("\n") == 2
        ), here.text()
    code, out, _ = alone("--help")
    assert code == 0 and not [option for option in table.REPLAY_OPTIONS if option not in out]
    here = helpers.finitude(tmp_path, "replay", "--help")
    assert here.code == 0 and here.out == out.replace("finitude-replay", "finitude replay")


def changed(capsule, folder, change):
    """The capsule with another float in its batch: a step that comes out otherwise."""
    shutil.copytree(capsule, folder)
    import tape_format

    about = json.loads((folder / "capsule.json").read_text())
    file = folder / "tensors.safetensors"
    data = bytearray(file.read_bytes())
    change(data)
    file.write_bytes(data)
    about["files"]["tensors.safetensors"]["checksum"] = f"{tape_format.checksum(bytes(data)):016x}"
    helpers.put_about(folder, about)
    return folder


def weight_at(data):
    length = int.from_bytes(data[:8], "little")
    begin = json.loads(data[8 : 8 + length])["parameter.0.weight"]["data_offsets"][0]
    return 8 + length + begin


def test_other_bits_but_the_same_failure(capsule, tmp_path):
    def change(data):
        data[weight_at(data)] ^= 1

    code, out, _ = replay(tmp_path, changed(capsule, tmp_path / "changed", change))
    assert (
        code == 0 and "same class of failure (other bits, but non-finite as recorded in each of 3 runs: loss" in out
    ), out
    assert "differs: buffer 1.running_mean" in out


def test_another_failure_is_not_the_recorded_one(tmp_path):
    """The recorded step overflows; with a batch of zeros there is nothing to overflow."""
    script = (
        OVERFLOW.replace("x = torch.full((5,), 100.0 if i == 1 else 1.0)", "x = big if i == 1 else big * 0")
        .replace("for i", "big = torch.full((32,), 100.0)\nfor i")
        .replace("rand(5)", "rand(32)")
    )
    folder = tmp_path / helpers.run(tmp_path, script).the_alarm()["capsule"]
    length = int.from_bytes((folder / "tensors.safetensors").read_bytes()[:8], "little")
    header = json.loads((folder / "tensors.safetensors").read_bytes()[8 : 8 + length])
    (name,) = [k for k in header if k.startswith("input.")]
    begin, end = header[name]["data_offsets"]

    def change(data):
        data[8 + length + begin : 8 + length + end] = bytes(end - begin)

    code, out, _ = replay(tmp_path, changed(folder, tmp_path / "zeros", change))
    assert code == 1 and "not reproduced: transient (finite in each of 3 runs: loss" in out, out


def test_lines_seeds_and_flags(capsule, tmp_path):
    about = json.loads((capsule / "capsule.json").read_text())
    assert about["seeds"]["torch"] == 1
    assert about["flags"]["matmul_precision"] == "highest" and about["flags"]["autocast"] == "BFloat16"
    assert about["flags"]["deterministic"] is False and about["flags"]["default_dtype"] == "float32"
    notes = (capsule / "tape.bin").read_bytes()
    assert b"logp = torch.log(p)" in notes and b"torch.manual_seed(1)" not in notes, "only lines that a call comes from"
    result = helpers.run(tmp_path, SCRIPT, "--redact")
    redacted = tmp_path / result.the_alarm()["capsule"]
    assert (
        b"train.py" not in (redacted / "tape.bin").read_bytes()
        and b"torch.log" not in (redacted / "tape.bin").read_bytes()
    )
    assert "seeds" not in json.loads((redacted / "capsule.json").read_text())


def test_completion_knows_the_options(tmp_path):
    shown = helpers.finitude(tmp_path, "completion", "bash").out
    assert shown and all(option in shown for option in table.REPLAY_OPTIONS)


LINES = """
import torch
from torch.utils.checkpoint import checkpoint
w = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([w], lr=0.1)
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return torch.cos(g)
def inner(x):
    return torch.tanh(torch.sin(x))
for i in range(2):
    optimizer.zero_grad()
    unused = torch.ones(3).sinh()
    y = Twice.apply(w.exp())
    z = checkpoint(inner, y, use_reentrant=False)
    loss = (z * (float("inf") if i == 1 else 1.0)).sum()
    loss.backward()
    optimizer.step()
"""


def test_the_line_of_each_call(tmp_path):
    """Calls of the program's own code in backward have its line; those of nodes that of the forward call, also where a
    call that makes no node came before, and where a checkpoint computes it twice."""
    folder = tmp_path / helpers.run(tmp_path, LINES).the_alarm()["capsule"]
    lines = alone("--step-through", folder)[1].splitlines()

    def places(op):
        return [re.search(r"  ((?:backward of )?train\.py:\d+) ", line)[1] for line in lines if f" aten::{op} " in line]

    assert places("sinh") == ["train.py:16"] and places("exp") == ["train.py:17"]
    assert places("cos") == ["backward of train.py:13", "train.py:11"]
    assert places("sin") == ["train.py:13", "train.py:13"]
    assert places("tanh_backward") == ["backward of train.py:13"]
    assert places("mul.Tensor") == [
        "train.py:8",
        "train.py:19",
        "backward of train.py:19",
        "backward of train.py:13",
        "backward of train.py:17",
    ]


def _odd_copy(capsule, tmp_path, name, make):
    """The capsule with one file of another kind, which capsule.json says to have 20 GB."""
    copy = tmp_path / "odd"
    shutil.copytree(capsule, copy)
    (copy / name).unlink()
    make(copy / name)
    about = json.loads((copy / "capsule.json").read_text())
    about["files"][name]["bytes"] = 20 << 30
    helpers.put_about(copy, about)
    return copy


def _sparse(path):
    with open(path, "wb") as f:
        f.truncate(20 << 30)


@pytest.mark.parametrize("name", ["tape.bin", "tensors.safetensors"])
@pytest.mark.parametrize(
    "make, reason", [(_sparse, "does not fit into memory"), (os.mkfifo, "is no plain file")], ids=["sparse", "pipe"]
)
def test_file_of_abnormal_size_or_kind_is_refused(capsule, tmp_path, name, make, reason):
    """With less memory than the file is said to take, and without waiting for who never writes."""
    copy = _odd_copy(capsule, tmp_path, name, make)
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # noqa: E731
    done = subprocess.run(
        [PLAYER, copy], capture_output=True, text=True, timeout=60, env={"PATH": "/nowhere"}, preexec_fn=limit
    )
    assert done.returncode == 3 and name in done.stderr and reason in done.stderr, (done.returncode, done.stderr)
