"""--dump checksums and tensors of operators: what they read and gave, bit by bit, with filters and bounds."""

import json
import re

import pytest
import torch

import finitude
import helpers

TRAINS = """
import os, torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(4, 8)
        self.head = torch.nn.Linear(8, 1)
    def forward(self, x):
        hidden = self.encoder(x).t() * (float(os.environ["SCALE"]) if i == 2 else 1.0)
        return self.head(hidden.exp().t())
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=1e-2, foreach=False)
for i in range(4):
    loss = net(torch.randn(5, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(sum(p.double().sum().item() for p in net.parameters()))
"""


def dumped(folder, *options, end=".json", scale="1"):
    """The file of step 2, its operators, and the run."""
    folder.mkdir(exist_ok=True)
    got = helpers.run(folder, TRAINS, "--runs", "runs", "--dump-steps", "2", *options, env={"SCALE": scale})
    (file,) = folder.glob(f"runs/*/dumps/step-000002{end}")
    return file, json.loads(file.read_text())["trace"]["ops"], got


def values_in(file):
    """{name: tensor} of a file of safetensors."""
    data = file.with_suffix(".safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    dtypes = {"F32": torch.float32, "I64": torch.int64, "F64": torch.float64, "BOOL": torch.bool}
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        begin, end = (8 + size + at for at in entry["data_offsets"])
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=dtypes[entry["dtype"]])
        found[name] = flat.reshape(entry["shape"])
    return found


def diff(folder, a, b):
    return helpers.finitude(folder, "diff", "--json", str(a), str(b))


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    return dumped(tmp_path_factory.mktemp("tensors"), "--dump", "tensors+operators-only")


def test_values_are_those_of_each_outermost_operator(tmp_path, tensors):
    file, ops, got = tensors
    assert got.out == helpers.plain(tmp_path, helpers.write_script(tmp_path, TRAINS), env={"SCALE": "1"}).out
    values = values_in(file)
    compared = set()
    for op in ops:
        named = [t for side in ("inputs", "outputs") for t in op[side] if "values" in t]
        assert not named or op["depth"] == 0, op
        for t in named:
            value = values[t["values"]]
            assert list(value.shape) == t["shape"]
            if "max" in t:  # of a view with other strides too
                assert value.max().item() == t["max"] and value.min().item() == t["min"], t
        if op["depth"] == 0 and op["op"] in ("aten::exp", "aten::pow", "aten::mean") and op["phase"] == "forward":
            inputs, output = (values[op[side][0]["values"]] for side in ("inputs", "outputs"))
            arguments = [2] if op["op"] == "aten::pow" else []
            assert torch.equal(getattr(torch, op["op"][6:])(inputs, *arguments), output)
            compared.add(op["op"])
    (squared,) = [op for op in ops if op["op"] == "aten::pow" and op["depth"] == 0 and op["phase"] == "forward"]
    (head,) = [op for op in ops if op["op"] == "aten::linear" and op["module"] == "Net.head"]
    assert squared["inputs"][0]["values"] == head["outputs"][0]["values"]  # it is written once
    assert len(compared) == 3 and {"backward", "optimizer"} <= {op["phase"] for op in ops}
    written = next(op for op in ops if op["op"] == "aten::add_" and op["phase"] == "optimizer")
    before, after = values[written["inputs"][0]["values"]], values[written["outputs"][0]["values"]]
    grad = values[written["inputs"][1]["values"]]
    assert torch.equal(before.add(grad, alpha=-1e-2), after) and not torch.equal(before, after)


def test_checksums_show_what_statistics_do_not(tmp_path, tensors):
    a, ops, _ = dumped(tmp_path / "a", "--dump", "checksums+operators-only")
    assert not a.with_suffix(".safetensors").exists()
    sums = [[t.get("checksum") for side in ("inputs", "outputs") for t in op[side]] for op in ops]
    assert sums == [[t.get("checksum") for side in ("inputs", "outputs") for t in op[side]] for op in tensors[1]]
    assert all(re.fullmatch("[0-9a-f]{16}", s) for op in sums for s in op if s) and any(map(any, sums))
    assert diff(tmp_path, a, tensors[0]).code == 0
    again, _, _ = dumped(tmp_path / "again", "--dump", "checksums+operators-only")
    assert json.loads(diff(tmp_path, a, again).out)["verdict"] == "same"


def test_values_are_compared_element_by_element(tmp_path, tensors):
    b, _, _ = dumped(tmp_path / "b", "--dump", "tensors+operators-only", scale="1.001")
    compared = diff(tmp_path, tensors[0], b)
    found = json.loads(compared.out)["divergence"]
    assert compared.code == 1 and found["kind"] == "argument" and found["at"]["a"]["op"] == "aten::mul", compared.out
    assert found["distance"]["exact"] and found["distance"]["differing"] == 40, found


ATTENDS = """
import os, torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(8, 8) for _ in range(3))
    def forward(self, x):
        made = {name: getattr(self, name)(x) for name in os.environ["ORDER"]}
        read = {name: made[name] for name in "qkv"} if os.environ["MEANT"] else dict(zip("qkv", made.values()))
        return torch.softmax(read["q"] @ read["k"].t(), -1) @ read["v"]
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=float(os.environ["RATE"]), foreach=False)
for i in range(3):
    loss = net(torch.randn(5, 8)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    "order, meant, rate, step, kind, of",
    [
        ("kqv", "yes", "0.1", 1, None, None),
        ("vkq", "yes", "0.1", 1, None, None),
        ("kvq", "", "0.1", 0, "wiring", "aten::mm"),
        ("kvq", "", "0.1", 1, "input", "q.bias"),
        ("qkv", "yes", "0.2", 1, "input", "q.bias"),
    ],
)
def test_another_order_wiring_or_weight(tmp_path, order, meant, rate, step, kind, of):
    """Independent calls in another order are no divergence; the same order of calls that are read otherwise is one. A
    parameter is named, not called data."""
    files = []
    for name, env in (("a", ("qkv", "yes", "0.1")), ("b", (order, meant, rate))):
        (tmp_path / name).mkdir()
        options = "--runs", "runs", "--dump", "checksums+operators-only", "--dump-steps", str(step)
        helpers.run(tmp_path / name, ATTENDS, *options, env=dict(zip(("ORDER", "MEANT", "RATE"), env)))
        files += (tmp_path / name).glob(f"runs/*/dumps/step-{step:06d}.json")
    compared = diff(tmp_path, *files)
    shown = helpers.finitude(tmp_path, "diff", *map(str, files)).out
    found = json.loads(compared.out)["divergence"]
    assert (found and found["kind"]) == kind and compared.code == (kind is not None), shown
    assert of is None or f"first       {of} " in shown, shown


def test_filters_choose_whose_values_are_kept(tmp_path):
    only = "op=addmm,op=linear,module=head,side=outputs,phase=forward"
    file, ops, _ = dumped(tmp_path, "--dump", "tensors+operators-only", "--dump-only", only)
    assert {(op["op"], op["module"]) for op in ops} == {("aten::linear", "Net.head"), ("aten::addmm", "Net.head")}
    assert list(values_in(file)) == ["0.aten::linear.output.0"]


def test_modules_and_operators_together_within_the_limit(tmp_path):
    file, ops, got = dumped(tmp_path, "--dump", "tensors+operators", "--dump-mb", "1", end="-operators.json")
    assert "checksum" in ops[-1]["inputs"][0] and len(values_in(file)) > 20
    program = TRAINS.replace("Linear(4, 8)", "Linear(4, 20000)").replace("Linear(8, 1)", "Linear(20000, 1)")
    got = helpers.run(
        tmp_path, program, "--runs", "r", "--dump", "tensors+operators-only", "--dump-mb", "1", env={"SCALE": "1"}
    )
    (lack,) = [one for one in got.report["watched"]["not_watched"] if "values of operators" in one]
    assert "step 0 is not dumped whole, without " in lack and "beyond --dump-mb" in lack
    assert sum(f.stat().st_size for f in tmp_path.glob("r/*/dumps/*")) < 1 << 20


def test_a_golden_dump_of_operators(tmp_path, tensors):
    got = helpers.run(tmp_path, TRAINS, "--runs", "runs", "--golden", str(tensors[0]), env={"SCALE": "1"})
    assert "1 of 1 steps agree with --golden" in got.err, got.text()
    (file,) = tmp_path.glob("runs/*/dumps/*.json")
    assert [t.get("checksum") for op in json.loads(file.read_text())["trace"]["ops"] for t in op["outputs"]] == [
        t.get("checksum") for op in tensors[1] for t in op["outputs"]
    ]
    got = helpers.run(tmp_path, TRAINS, "--runs", "other", "--golden", str(tensors[0]), env={"SCALE": "1.01"})
    assert "differs from --golden" in got.err and "aten::mul" in got.err, got.text()


def test_with_the_trace_of_every_step(tmp_path, tensors):
    file, ops, _ = dumped(tmp_path, "--dump", "tensors+operators-only", "--level", "trace")
    assert values_in(file).keys() == values_in(tensors[0]).keys()


def test_values_without_room_are_counted_for_their_own_step(tmp_path):
    """The next step is dumped by another plan, as `finitude ctl` asks for, or another watch of the process."""
    model = torch.nn.Linear(2, 400_000)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    lacks = []
    for kind in ("tensors+operators-only", "statistics"):
        options = {"dump": kind, "dump_steps": "0", "dump_mb": 1, "runs": str(tmp_path / kind), "quiet": True}
        with finitude.watch(model, opt, **options):
            model(torch.ones(2, 2)).sum().backward()
            opt.step()
        (report,) = tmp_path.glob(f"{kind}/*/report.json")
        lacks.append(json.loads(report.read_text())["watched"].get("not_watched", []))
    assert len(lacks[0]) == 1 and "values of operators beyond --dump-mb" in lacks[0][0], lacks
    assert not lacks[1], lacks
