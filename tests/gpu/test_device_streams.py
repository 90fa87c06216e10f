"""Two streams of a device that use the same memory in no order: a second process names both operations, also where the
step comes out finite there. On a make-believe device, which reports events and memory as CUDA does."""

import pytest
import torch

import pretend_device
from device_support import build
from helpers import run

FAR = 1 << 62  # as tests/native/pretend_device.cpp has it

pytestmark = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12),
    reason="before 2.12 torch returns the handle of a stream of CUDA only",
)

# A race that shows once: in the first process of the program, in step 3.
PROGRAM = """
import pathlib
here = pathlib.Path(MARKER)
shows = not here.exists()
here.touch()
torch.manual_seed(0)
model = nn.Linear(4, 4).to("pretend")
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
usual, side = torch.accelerator.current_stream(), torch.Stream(device="pretend")
set_stream = torch.accelerator.set_stream
for i in range(6):
    h = model(torch.rand(8, 4).to("pretend"))
    side.wait_stream(usual)
BODY
    loss = (y - 1).pow(2).mean()
    if i == 3 and shows:
        loss = loss * float("nan")
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
BEFORE_ITS_EVENT = """
    set_stream(side)
    y = h * 2
    set_stream(usual)
"""
ITS_EVENT = "    usual.wait_stream(side)\n"
GIVEN_BACK = """
    shift = torch.full((1000,), 2.0, device="pretend")
    side.wait_stream(usual)
    set_stream(side)
    y = h + shift[:32].view(8, 4)
    set_stream(usual)
    # said
    del shift
    other = torch.zeros(1000, device="pretend")
    usual.wait_stream(side)
"""


@pytest.fixture(scope="module")
def begin():
    return (
        pretend_device.BEGIN.format(library=pretend_device.library(), name="pretend")
        + f'\nassert _native.open_device_library({build(far=FAR)!r}, "pretend") == ""\n'
    )


@pytest.fixture
def marker(tmp_path_factory):
    return tmp_path_factory.mktemp("elsewhere") / "ran before"


def cause_of(tmp_path, begin, body, marker):
    """marker: a path elsewhere. What the program made in its own folder the second process does not see."""
    text = PROGRAM.replace("BODY\n", body).replace("MARKER", repr(str(marker)))
    script = (begin + text + pretend_device.END).strip() + "\n"
    alarm = run(tmp_path, script).the_alarm()
    assert (alarm["step"], alarm["rerun"], alarm["rerun_by"]) == (3, "transient", "restart"), alarm
    marks = [mark for mark in ("y = h", "loss = (y", "other =") if mark in script]
    line = {mark: 1 + script[: script.index(mark)].count("\n") for mark in marks}
    return alarm["cause"], line


def test_use_before_the_event_of_the_other_stream(tmp_path, begin, marker):
    cause, line = cause_of(tmp_path, begin, BEFORE_ITS_EVENT, marker)
    assert cause["class"] == "memory-corruption", cause
    said = f"aten::mul at train.py:{line['y = h']} writes it on stream 0x1; aten::sub at train.py:{line['loss = (y']} reads"
    assert said in cause["text"] and "on the default stream; no event" in cause["text"], cause


def test_memory_handed_out_while_the_other_stream_uses_it(tmp_path, begin, marker):
    cause, line = cause_of(tmp_path, begin, GIVEN_BACK, marker)
    assert cause["class"] == "memory-corruption", cause
    said = f"aten::add at train.py:{line['y = h']} reads it on stream 0x1, it was given back"
    assert (
        said in cause["text"] and f"at train.py:{line['other =']} writes it on the default stream" in cause["text"]
    ), cause


@pytest.mark.parametrize(
    "body",
    [BEFORE_ITS_EVENT + ITS_EVENT, GIVEN_BACK.replace("# said", "shift.record_stream(side)")],
    ids=["event", "record_stream"],
)
def test_ordered_streams_are_no_cause(tmp_path, begin, body, marker):
    cause, _ = cause_of(tmp_path, begin, body, marker)
    assert cause["class"] != "memory-corruption", cause
