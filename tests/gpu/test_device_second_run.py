"""A bad step of a GPU is run again: on a make-believe device whose memory nobody can read as it is, with the gate's
library beside it."""

import json
import pathlib
import textwrap

import pytest
import torch

import pretend_device
from device_support import ON_DEVICE, build
from helpers import finitude, run

FAR = 1 << 62  # as tests/native/pretend_device.cpp has it

pytestmark = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12),
    reason="before 2.12 torch returns the handle of a stream of CUDA only",
)

# Trains; at step 3 something is bad. Then once more from the start, with `continue` in that place.
PROGRAM = """
NAN, INF = float("nan"), float("inf")
def train(leave_out):
    torch.manual_seed(0)
    torch.random.default_generator.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3)).to("pretend")
    opt = OPTIMIZER
    data = [torch.randn(8, 4) for _ in range(8)]
    for i, x in enumerate(data):
        x = x.to("pretend")
        if i == 3 and leave_out:
            continue
        opt.zero_grad()
        out = model(x)
        if i == 3:
            pass  # BAD
        loss = (out - 1).pow(2).mean()
        loss.backward()
        opt.step()
    state = [t.cpu() for s in opt.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    return [t.cpu() for t in model.parameters()] + state, [b.cpu() for b in model.buffers()]
found, wanted = train(False), train(True)
same = [all(torch.equal(a, b) for a, b in zip(*pair)) for pair in zip(found, wanted)]
print("weights", same[0], "buffers", same[1])
"""
OPTIMIZERS = {
    "foreach": "torch.optim.AdamW(model.parameters(), lr=0.05, foreach=True)",
    "fused": "torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)",
}


@pytest.fixture(scope="module")
def begin():
    """What a program on that device begins with."""
    return (
        pretend_device.BEGIN.format(library=pretend_device.library(), name="pretend")
        + f'\nassert _native.open_device_library({build(far=FAR)!r}, "pretend") == ""\n'
    )


def training(begin, optimizer, bad):
    text = PROGRAM.replace("OPTIMIZER", OPTIMIZERS[optimizer]).replace("pass  # BAD", bad)
    script = textwrap.dedent(begin + text).strip() + "\n"
    return script, 1 + script[: script.index(bad)].count("\n")


LOG = "out = torch.log(out * 0)"


@pytest.mark.parametrize("optimizer, way", [("foreach", "rewind"), ("fused", "restart")])
def test_the_birth_is_named_from_values_copied_off(tmp_path, begin, optimizer, way):
    script, line = training(begin, optimizer, LOG)
    result = run(tmp_path, script, "--on-alarm", "skip")
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["weights"], alarm["rerun"], alarm["rerun_by"]) == (3, "clean", "persistent", way), (
        result.text()
    )
    birth = alarm["births"][0]
    assert (birth["op"], birth["line"], birth["phase"], len(alarm["births"])) == ("aten::log", line, "forward", 1), (
        birth
    )
    assert birth["inputs"][0]["zero"] == 24 and birth["outputs"][0]["neg_inf"] == 24, birth
    assert (alarm["cause"]["class"], alarm["cause"]["confidence"]) == ("log-of-zero", "proven"), alarm["cause"]
    # What is tried on whole steps reads and writes values on the host.
    assert alarm["fix"]["verified"] is False and "the step was one of pretend:0" in alarm["fix"]["outcome"], alarm[
        "fix"
    ]
    # Where the host knew at once, everything is as it was before the step. Else the program had gone on by then, its
    # generators too.
    assert ("weights True buffers True" in result.out) == (way == "rewind"), result.text()


def test_restart_with_other_values_is_not_verified(tmp_path, tmp_path_factory, begin):
    """A second process that comes to other values says so."""
    marker = (
        tmp_path_factory.mktemp("elsewhere") / "ran before"
    )  # what the program made in its own folder the second one does not see
    bad = (
        f"import os; out = torch.log(out * 0) if not os.path.exists({str(marker)!r}) else out; "
        f"open({str(marker)!r}, 'w').close()"
    )
    script, _ = training(begin, "fused", bad)
    alarm = run(tmp_path, script, "--on-alarm", "skip").the_alarm()
    assert (alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"], alarm["births"]) == (
        "transient",
        "restart",
        False,
        [],
    ), alarm


BIRTHS = {
    "backward": ("out = (out * 0).square().sqrt()", "aten::div", "backward"),
    "in place": ("out.div_(0 * out.detach())", "aten::div", "forward"),
    "a number of the host": ("out = out * torch.tensor(NAN)", "aten::lift_fresh", "data"),
    "a batch": ("x[2, 1] = INF; out = model(x)", None, None),
}


@pytest.mark.parametrize("name", BIRTHS)
def test_births_of_every_phase(tmp_path, begin, name):
    bad, op, phase = BIRTHS[name]
    script, line = training(begin, "foreach", bad)
    result = run(tmp_path, script, "--on-alarm", "skip")
    birth = result.the_alarm()["births"][0]
    assert birth["line"] == line, result.text()
    assert op is None or (birth["op"], birth["phase"]) == (op, phase), birth
    assert "weights True buffers True" in result.out, result.text()


def test_every_step_recorded(tmp_path, begin):
    script, line = training(begin, "foreach", LOG)
    result = run(tmp_path, script, "--on-alarm", "skip", "--level", "trace")
    alarm = result.the_alarm()
    assert (alarm["rerun_by"], alarm["births"][0]["op"], alarm["births"][0]["line"]) == ("trace", "aten::log", line), (
        result.text()
    )


def test_capsule_replays_without_such_a_device(tmp_path, begin):
    script, _ = training(begin, "foreach", LOG)  # on that device batch norm leaves its statistics as they are
    alarm = run(tmp_path, script.replace("nn.BatchNorm1d(8), ", ""), "--on-alarm", "skip").the_alarm()
    about = json.loads(pathlib.Path(tmp_path, alarm["capsule"], "capsule.json").read_text())
    assert about["replay"] == "identical", about["replay"]
    again = finitude(tmp_path, "replay", alarm["capsule"])
    assert again.code == 0 and "recorded on pretend:0, replayed on the CPU" in again.out, again.text()
    assert "differs" not in again.out and ("\nidentical" in again.out or "\nsame class of failure" in again.out), (
        again.text()
    )


def test_nothing_is_read_while_a_stream_is_captured(tmp_path, begin):
    """A copy to the host would end the capture."""
    script, _ = training(
        begin + "\nimport ctypes\nhost = ctypes.CDLL(LIBRARY)\n".replace("LIBRARY", "_library"), "foreach", "pass"
    )
    library = script.split("open_device_library('")[1].split("'")[0]
    script = script.replace("ctypes.CDLL(_library)", f"ctypes.CDLL({library!r})\nhost.finitude_cuda_host_capture(1)")
    result = run(tmp_path, script, "--on-alarm", "skip", "--level", "trace")
    assert result.code == 0 and not result.alarms and "captured into a CUDA graph" in result.err, result.text()


def test_device_values_are_reported_like_host_values(tmp_path, begin):
    """What the report and the checks at the start read."""
    body = """
x = torch.randn(5, 7)
x[1, 2], x[3, 3] = NAN, INF
there = x.to("pretend")
assert _native.statistics(there) == _native.statistics(x) and _native.checksum(there) == _native.checksum(x)
assert _native.statistics(there.t()[2:]) == _native.statistics(x.t()[2:]) and _native.checksum(there[:, ::2]) == _native.checksum(x[:, ::2])
assert not _native.is_finite(there) and _native.is_finite(there[2]) and not _native.is_finite(there.to(torch.complex64))
assert _native.is_finite(torch.ones(3, dtype=torch.int64).to("pretend")) and _native.is_finite(torch.empty(0).to("pretend"))
print("done")
"""
    result = run(tmp_path, begin + "NAN, INF = float('nan'), float('inf')\n" + body)
    assert "done" in result.out, result.text()


def test_parameters_that_are_bad_from_the_start(tmp_path, begin):
    script, _ = training(begin, "foreach", "pass")
    script = script.replace("    opt = ", "    model[0].weight.data[1, 1] = NAN\n    opt = ")
    alarm = run(tmp_path, script).the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["sink"]["name"]) == (0, "parameter", "0.weight"), alarm


def test_where_memory_can_be_read_nothing_differs(tmp_path):
    """The gate alone is that of a device."""
    script = (
        ON_DEVICE.format(library=build())
        + """
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
for i, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x) if i != 4 else (model(x).abs().clamp(min=1) * 1e38 * 1e38).sum()
    loss.backward()
    opt.step()
"""
    )
    result = run(tmp_path, script, "--on-alarm", "stop")
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["births"][0]["op"]) == (4, "restart", "aten::mul"), result.text()
    assert "gradients with as many values that are not finite" in alarm["rerun_text"]
