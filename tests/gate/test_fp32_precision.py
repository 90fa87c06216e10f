"""torch.backends.*.fp32_precision, of torch 2.9 on: once a program has set one, torch refuses to return its old name for
it."""

import pytest
import torch

import helpers
from finitude import _native

pytestmark = pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="this torch does not have it")

ADVICE = """
def advice():
    b = torch.backends
    return [b.fp32_precision, b.cuda.matmul.fp32_precision, b.cudnn.conv.fp32_precision, b.cudnn.rnn.fp32_precision,
            b.mkldnn.matmul.fp32_precision, b.mkldnn.conv.fp32_precision, b.mkldnn.rnn.fp32_precision]
"""
BAD = (
    helpers.TRAINING
    + ADVICE
    + """
SET
before = advice()
for i in range(5):
    opt.zero_grad()
    loss = loss_of(batches[i])
    if i == 3: loss = loss * NAN
    loss.backward()
    opt.step()
assert advice() == before, (advice(), before)
print("ended", finite())
"""
)
SETTINGS = [
    'torch.backends.fp32_precision = "ieee"',
    'torch.backends.cuda.matmul.fp32_precision = "tf32"',
    'torch.backends.mkldnn.matmul.fp32_precision = "bf16"',
    'torch.backends.cudnn.conv.fp32_precision = "ieee"',
    "torch.backends.cuda.matmul.allow_tf32 = True",
    'torch.set_float32_matmul_precision("high")',
    'torch.set_float32_matmul_precision("medium"); torch.backends.cuda.matmul.fp32_precision = "ieee"',
]


@pytest.mark.parametrize("level", ["gate", "tape", "trace"])
@pytest.mark.parametrize("precision", SETTINGS)
def test_bad_step_is_explained_and_precision_kept(tmp_path, precision, level):
    got = helpers.run(tmp_path, BAD.replace("SET", precision), "--on-alarm", "skip", "--level", level)
    assert (got.code, got.out) == (0, "ended True\n"), got.text()
    alarm = got.the_alarm()
    assert (alarm["births"][0]["op"], alarm["rerun_verified"]) == ("aten::mul", True), got.text()
    assert "internal failure" not in got.err, got.text()


def test_a_second_process_records_with_it(tmp_path):
    text = BAD.replace("SET", SETTINGS[1]).replace(
        "for i in range(5)", "import socket\nonce = socket.socketpair()\nfor i in range(5)"
    )
    alarm = helpers.run(tmp_path, text).the_alarm()
    assert (alarm["rerun_by"], alarm["rerun_verified"], alarm["births"][0]["op"]) == ("restart", True, "aten::mul"), (
        alarm["rerun_text"]
    )


def test_tape_records_precision_and_replay_restores_it():
    kept = torch.backends.mkldnn.matmul.fp32_precision
    try:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        _native.tape_start()
        result = torch.ones(4, 4) @ torch.full((4, 4), 1 / 3)
        _native.tape_stop()
        assert _native.tape_outcome("value", "result", result)
        tape = _native.tape_take()
        assert "mkldnn.matmul=bf16" in dict(_native.tape_about(tape)["settings"])["fp32_precision"].split()
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"
        assert (
            _native.tape_play(tape, ["aten"], 0)["identical"] and torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        )
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = kept
