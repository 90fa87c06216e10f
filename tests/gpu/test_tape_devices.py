"""Tapes of a GPU, played on a machine that has none: made by hand or recorded on the CPU and moved, for no GPU is here.
What is recorded of a device is tested on one that is none (tests/native/pretend_device.cpp). With a GPU:
tests/gpu/test_cuda_tape.py."""

import math
import pathlib
import struct

import pytest
import torch

import pretend_device
import tape_format as t
import tape_programs
from finitude import _native
from made_tapes import NONE, UNDEFINED, Made, attention


def play(tape, device=""):
    return _native.tape_play(tape, ["aten"], 0, device)


def test_what_exists_on_cuda_only_is_named(tmp_path):
    made = Made()
    x = made.given(torch.ones(4))
    made.call(
        "aten::_cudnn_rnn_flatten_weight",
        [t.values(x), *[t.integer(1)] * 6, t.boolean(False), t.boolean(False)],
        [made.result(torch.ones(4))],
    )
    made.outcome(x)
    assert play(made.bytes())["missing"] == ["aten::_cudnn_rnn_flatten_weight (exists on CUDA only)"]
    (tmp_path / "a.tape").write_bytes(made.bytes())
    code, out, err, _ = _native.replay_command([str(tmp_path / "a.tape")])
    assert code == 4 and "aten::_cudnn_rnn_flatten_weight (exists on CUDA only)" in err
    # What it gave may be on the tape: then nobody has to call it.
    made.entries.append(t.fill(1, struct.pack("<4f", 1, 2, 3, 4)))
    made.outcomes = [t.tensor(1, [4])]
    found, said = made.play(tmp_path)
    assert found[0].tolist() == [1, 2, 3, 4] and "computed as recorded: aten::_cudnn_rnn_flatten_weight" in said
    # A part of it only is not enough.
    made.entries[-1] = t.fill(1, struct.pack("<3f", 1, 2, 3))
    assert play(made.bytes())["missing"]


def test_cuda_birth_script_names_its_device(tmp_path):
    q, k, v, _ = attention()
    huge = q.detach() * 1e30
    made = Made()
    out, sums, seed = made.result(q), made.result(torch.empty(2, 4, 5)), made.result(torch.empty((), dtype=torch.int64))
    made.call(
        "aten::_scaled_dot_product_flash_attention",
        [made.given(huge), made.given(k.detach() * 1e30), made.given(v), t.number(0), *[t.boolean(False)] * 2, NONE],
        [out, sums, UNDEFINED, UNDEFINED, t.integer(5), t.integer(5), seed, UNDEFINED, UNDEFINED],
    )
    made.outcome(out)
    (tmp_path / "a.tape").write_bytes(made.bytes())
    words = ["--script", str(tmp_path / "birth.py"), str(tmp_path / "a.tape")]
    code, said, err, _ = _native.replay_command(words)
    assert code == 0 and said.endswith(f"written: {tmp_path / 'birth.py'}\n"), said + err
    text = (tmp_path / "birth.py").read_text()
    assert (
        "The operator is one of cuda:0: move the tensors there" in text
        and "_scaled_dot_product_flash_attention" in text
    )
    assert _native.replay_command(["--device", "cuda", *words])[0] == 2


def test_attention_with_dropout_is_refused_with_reason(tmp_path):
    q, k, v, _ = attention()
    made = Made()
    out, sums, seed = made.result(q), made.result(torch.empty(2, 4, 5)), made.result(torch.empty((), dtype=torch.int64))
    made.call(
        "aten::_scaled_dot_product_flash_attention",
        [*(made.given(x) for x in (q, k, v)), t.number(0.5), *[t.boolean(False)] * 2, NONE],
        [out, sums, UNDEFINED, UNDEFINED, t.integer(5), t.integer(5), seed, UNDEFINED, UNDEFINED],
    )
    made.outcome(out)
    assert "a dropout whose mask no other device can make" in play(made.bytes())["why_not"]


@pytest.mark.parametrize("name", tape_programs.PROGRAMS)
def test_step_moved_to_gpu_replays_on_the_cpu(name, tmp_path):
    """With every program: what a CPU drew is drawn again, for its generators are named on the tape."""
    torch.set_num_threads(1)
    tape, _, _ = tape_programs.record(_native, name)
    moved = _native.tape_moved(tape, "cuda:0", ["state"])
    about = _native.tape_about(moved)
    assert about["devices"] == ["cpu", "cuda:0"] and {
        device for kind, _, device in about["where"] if kind == "state"
    } <= {"cpu"}
    played = play(moved)
    assert played["identical"], played
    (tmp_path / "moved.tape").write_bytes(moved)
    code, out, _, _ = _native.replay_command([str(tmp_path / "moved.tape")])
    assert (
        code == 0
        and out.startswith("recorded on cuda:0, replayed on the CPU, since this torch has no cuda: ")
        and "\nidentical: " in out
    )
    code, out, _, _ = _native.replay_command(["--device", "cpu", str(tmp_path / "moved.tape")])
    assert code == 0 and out.startswith("recorded on cuda:0, replayed on the CPU: ")
    code, out, err, _ = _native.replay_command(["--device", "cuda", str(tmp_path / "moved.tape")])
    assert code == 4 and not out and "CUDA" in err


def test_device_arguments_and_pinned_memory_are_mapped():
    torch.set_num_threads(1)
    w = torch.ones(4)
    _native.tape_start()
    there = w.to(torch.float64)
    made = torch.full((4,), 2.0, device="cpu") + torch.arange(4, device="cpu")
    result = (there * made).float()
    _native.tape_stop()
    assert _native.tape_outcome("value", "result", result)
    tape = _native.tape_take()
    moved = _native.tape_moved(tape, "cuda:1", [])
    # Version 2 is what names devices, and only a tape that has one is of it.
    assert tape[8] == 1 and moved[8] == 2
    assert b"cuda:1" in moved and play(moved)["identical"]

    pinned = Made()
    x = pinned.given(torch.arange(4.0))
    to, empty = pinned.result(torch.empty(4)), pinned.result(torch.empty(4))
    pinned.call("aten::_to_copy", [x, NONE, NONE, t.device("cuda:0"), t.boolean(True), t.boolean(True), NONE], [to])
    pinned.call("aten::_pin_memory", [to, t.device("cuda:3")], [empty])
    pinned.outcome(empty)
    assert play(pinned.bytes())["why_not"] == ""


def test_distance_of_replay_from_recording_is_reported(tmp_path):
    """A fill in the place of one input: the loss and the gradient come out otherwise, by so much."""
    w = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    x = torch.tensor([1.0, 1.0, float("inf")])
    _native.tape_start()
    loss = (w * x).sum()
    loss.backward()
    _native.tape_stop()
    assert _native.tape_outcome("loss", "loss", loss.detach()) and _native.tape_outcome("gradient", "w", w.grad)
    # This is a stand-in for another kernel: one value in a fill is an ulp further.
    tape = bytearray(_native.tape_moved(_native.tape_take(), "cuda:0", []))
    at = tape.find(struct.pack("<3f", 1, 1, math.inf))
    assert at > 0
    tape[at : at + 4] = struct.pack("<f", 1 + 2**-23)
    body, data = struct.unpack_from("<Q", tape, 16)[0], struct.unpack_from("<Q", tape, 32)[0]
    begin = -(-(64 + body) // 64) * 64
    struct.pack_into("<Q", tape, 24, t.checksum(bytes(tape[64 : 64 + body])))
    struct.pack_into("<Q", tape, 40, t.checksum(bytes(tape[begin : begin + data])))
    struct.pack_into("<Q", tape, 56, t.checksum(bytes(tape[:56])))
    (tmp_path / "a.tape").write_bytes(tape)
    code, out, err, _ = _native.replay_command([str(tmp_path / "a.tape")])
    assert code == 0 and "\nsame class of failure" in out, out + err
    assert "differs: gradient w" in out and "  gradient w: 1 ulps, 1.19e-07 relative" in out, out


def test_a_tape_of_version_2_is_still_read():
    """Recorded on a device that is none, with a dropout whose mask is on the tape; the generator of that device counts
    as Philox."""
    tape = pathlib.Path(__file__).parents[1].joinpath("data", "tapes", "version_2.tape").read_bytes()
    about = _native.tape_about(tape)
    assert (
        tape[8] == 2
        and about["devices"] == ["cpu", "pretend:0"]
        and about["generators"] == [("cpu", True), ("pretend:0", True)]
    )
    assert (about["outcomes"], about["fills"], about["gaps"]) == (9, 2, [])
    played = play(tape)
    assert played["why_not"] == "" and played["otherwise"] == {"aten::native_dropout": "as recorded"}
    assert ("loss", "loss") in [(kind, name) for kind, name, _ in played["outcomes"]]


STEP = """
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)).to("pretend:0")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
x = torch.randn(3, 4)
def step():
    loss = model(x.to("pretend:0")).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
step()
_native.tape_start()
loss = step()
_native.tape_stop()
assert _native.tape_outcome("loss", "loss", loss.detach())
for name, p in model.named_parameters():
    _native.tape_name(p, "parameter", name)
    assert _native.tape_outcome("gradient", name, p.grad) and _native.tape_outcome("parameter", name, p.detach())
tape = _native.tape_take()
open("step.tape", "wb").write(tape)
here = _native.tape_play(tape, ["aten"], 0)
assert here["identical"] and not here["otherwise"], here
there = _native.tape_play(tape, ["aten"], 0, "cpu")
assert there["identical"] and there["otherwise"] == {"aten::native_dropout": "as recorded"}, there
"""


def test_device_step_replays_there_and_on_the_cpu(tmp_path):
    """Its memory is at addresses that nobody can read: all of it came by copies, also from the thread that computes
    backward."""
    pretend_device.run(tmp_path, STEP)
    tape = (tmp_path / "step.tape").read_bytes()
    about = _native.tape_about(tape)
    assert about["devices"] == ["cpu", "pretend:0"] and about["gaps"] == []
    where = {name: device for kind, name, device in about["where"] if kind == "parameter"}
    assert set(where.values()) == {"pretend:0"} and len(where) == 4
    assert "cpu" in {device for _, _, device in about["where"]}, "the batch, and the counters of AdamW"
    assert play(tape)["identical"], "on a machine without that device"


def test_device_generators_are_restored_and_in_capsule(tmp_path):
    body = """
one, other = (torch.Generator(device="pretend") for _ in range(2))
_native.watch_device_generators([one, other, torch.Generator()])
one.manual_seed(7), other.manual_seed(9)
taken = _native.take_generators()
same = _native.Generators.from_bytes(taken.bytes())
assert same == taken and same.bytes() == taken.bytes() and taken.bytes()[0] == 2 and taken.bytes().count(b"pretend:0") == 2
one.manual_seed(8)
assert _native.take_generators() != taken
same.restore()
assert (one.initial_seed(), other.initial_seed()) == (7, 9)
_native.watch_device_generators([])
assert _native.take_generators().bytes()[0] == 1
"""
    pretend_device.run(tmp_path, body)


def test_too_large_draws_are_omitted_from_the_tape(tmp_path):
    body = """
big = torch.ones(1 << 18).to("pretend:0")
_native.tape_start(8 << 20)
total = sum(nn.functional.dropout(big, 0.5).sum() for _ in range(3))
_native.tape_stop()
assert _native.tape_outcome("value", "total", total)
open("step.tape", "wb").write(_native.tape_take())
"""
    pretend_device.run(tmp_path, body)
    tape = (tmp_path / "step.tape").read_bytes()
    about = _native.tape_about(tape)
    assert about["gaps"] == [] and dict(about["settings"])["draws_left_out"] == "2" and about["fills"] == 2
    assert play(tape)["why_not"] == ""
    code, out, *_ = _native.replay_command([str(tmp_path / "step.tape")])
    assert code == 1 and "what 2 calls drew was too large for the tape, and is drawn again: it differs" in out


def test_each_taped_step_has_a_fresh_draw_budget(tmp_path):
    body = """
big = torch.ones(1 << 17).to("pretend:0")
_native.set_tape_level(4 << 20)
for i in range(5):
    _native.tape_window_begins()
    total = nn.functional.dropout(big, 0.5).sum()
_native.tape_stop()
assert _native.tape_outcome("value", "total", total)
open("step.tape", "wb").write(_native.tape_take())
"""
    pretend_device.run(
        tmp_path, body.replace("_native.set_tape_level", "_native.set_on(True)\n_native.set_tape_level", 1)
    )
    about = _native.tape_about((tmp_path / "step.tape").read_bytes())
    assert "draws_left_out" not in dict(about["settings"]) and about["gaps"] == []


def test_renamed_device_is_recorded_under_its_generic_name(tmp_path):
    """torch allows an underscore in it."""
    body = (
        STEP.replace("pretend:0", "my_npu:0")
        + """
one = torch.Generator(device="my_npu")
_native.watch_device_generators([one])
taken = _native.take_generators()
assert _native.Generators.from_bytes(taken.bytes()) == taken
"""
    )
    pretend_device.run(tmp_path, body, name="my_npu")
    tape = (tmp_path / "step.tape").read_bytes()
    assert _native.tape_about(tape)["devices"] == ["cpu", "privateuseone:0"] and play(tape)["identical"]
