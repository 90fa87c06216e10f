"""--dump on a device that is none: nothing of a dump waits for it inside the step, and what is dumped is right."""

import json

import pytest

import pretend_device

PROGRAM = """
import finitude
from torch.cuda import _gpu_trace

waits = []
_gpu_trace.register_callback_for_stream_synchronization(waits.append)
_gpu_trace.register_callback_for_device_synchronization(lambda: waits.append("device"))
torch._C._activate_gpu_trace()
for place in ("cpu", "pretend"):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(place)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.arange(20.0).view(5, 4).sin().to(place)
    with finitude.watch(net, opt, runs=place, dump=os.environ["KIND"], dump_steps="1-2", dump_mb=MB, on_alarm="warn"):
        for i in range(4):
            waits.clear()
            net(data).pow(2).mean().backward()
            print("step", i, len(waits))
            opt.step()
            opt.zero_grad(set_to_none=False)
"""


def dump(folder, place, end, step=2):
    (file,) = folder.glob(f"{place}/*/dumps/step-{step:06d}{end}")
    return file.read_bytes()


def records(folder, place):
    ops = json.loads(dump(folder, place, ".json"))["trace"]["ops"]
    return [(op["module"], op["op"], op["phase"], op.get("inputs"), op["outputs"], op.get("parameters")) for op in ops]


@pytest.mark.parametrize("kind, pinned", [("tensors", True), ("checksums", False)])
def test_modules_are_copied_off_without_waiting(tmp_path, monkeypatch, kind, pinned):
    monkeypatch.setenv("KIND", kind)
    if not pinned:
        monkeypatch.setenv("PRETEND_NO_PINNED", "1")
    out = pretend_device.run(tmp_path, PROGRAM.replace("MB", "64"))
    *_, first, second, _ = [int(line.split()[2]) for line in out.splitlines() if line.startswith("step")]
    assert first == second == 0, out
    assert records(tmp_path, "pretend") == records(tmp_path, "cpu")
    if kind == "tensors":
        assert dump(tmp_path, "pretend", ".safetensors") == dump(tmp_path, "cpu", ".safetensors")


def test_what_is_beyond_the_limit_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("KIND", "checksums")
    program = PROGRAM.replace("MB", "1").replace("4, 8", "4, 60000").replace("8, 1", "60000, 1")
    pretend_device.run(tmp_path, program)
    (report,) = tmp_path.glob("pretend/*/report.json")
    lacks = json.loads(report.read_text())["watched"]["not_watched"]
    assert any("step 1 is not dumped whole" in one and "tensors of a device beyond --dump-mb" in one for one in lacks)
    assert not any("step 2 " in one for one in lacks)  # said once


READ = """
from finitude.base import dump_plan
from finitude.program.module_calls import ModuleCalls

made = []
for place in ("cpu", "pretend"):
    torch.manual_seed(0)
    net, data = nn.Linear(4, 8).to(place), torch.ones(5, 4).to(place)
    calls = ModuleCalls(lambda f, *args: f(*args), dump_plan.parse("tensors", "0", ""), 1 << 20)
    calls.begin()
    out = net(data)
    calls.end()
    with torch.no_grad():
        out.zero_()  # the memory is used again
    if place == "pretend":
        assert not calls.values["Linear.output"].equal(made[0][1])  # nobody has waited for it
    calls.read_devices()
    made.append((calls.records, calls.values["Linear.output"]))
assert made[0][0] == made[1][0] and made[0][1].equal(made[1][1])
"""


def test_copies_are_read_once_the_device_was_waited_for(tmp_path):
    pretend_device.run(tmp_path, READ)
