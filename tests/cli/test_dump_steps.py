"""--dump: statistics, checksums and values of chosen steps, and parts of them."""

import json
import re

import pytest
import torch

import finitude
import helpers
from finitude.base import compat, config, dump_plan
from finitude.doctor import measure
from finitude.report import not_reproduced

TRAINS = """
import os, torch
torch.manual_seed(int(os.environ.get("SEED", "0")))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        self.head = torch.nn.Linear(8, 1)
    def forward(self, x):
        return self.head(self.encoder(x))
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
for i in range(8):
    loss = net(torch.randn(5, 4)).pow(2).mean()
    if i == 6 and os.environ.get("BAD"):
        loss = loss * float("nan")
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i == 2 and os.environ.get("CONTROL"):
        with open("control.toml", "w") as f:
            f.write(os.environ["CONTROL"])
print(sum(p.double().sum().item() for p in net.parameters()))
"""


def dumped(folder, *options, **env):
    """{number of the step: its records}, and the run."""
    folder.mkdir(exist_ok=True)
    got = helpers.run(folder, TRAINS, "--runs", "runs", *options, env=env)
    files = sorted(folder.glob("runs/*/dumps/step-[0-9][0-9][0-9][0-9][0-9][0-9].json"))
    return {int(f.stem[5:]): json.loads(f.read_text())["trace"]["ops"] for f in files}, got


def test_operators_of_chosen_steps(tmp_path):
    plain = helpers.plain(tmp_path, helpers.write_script(tmp_path, TRAINS))
    steps, got = dumped(tmp_path / "a", "--dump", "statistics", "--dump-steps", "0,3-4,every=7")
    assert list(steps) == [0, 3, 4, 7] and got.out == plain.out, got.text()
    phases = {op["phase"] for op in steps[3]}
    assert phases == {"forward", "backward", "optimizer"} and len(steps[3]) > 100
    linear = [op for op in steps[3] if op["op"] == "aten::linear"]
    assert [op["module"] for op in linear] == ["Net.encoder.0", "Net.head"]
    assert linear[0]["inputs"][0]["shape"] == [5, 4] and linear[0]["outputs"][0]["absmax"] > 0
    other, _ = dumped(tmp_path / "b", "--dump", "statistics", "--dump-steps", "3", SEED="1")
    a, b = (next(tmp_path.glob(f"{x}/runs/*/dumps/step-000003.json")) for x in "ab")
    assert helpers.finitude(tmp_path, "diff", str(a), str(a)).code == 0
    compared = helpers.finitude(tmp_path, "diff", str(a), str(b))
    assert compared.code == 1 and "statistics differ" in compared.out, compared.text()
    assert helpers.finitude(tmp_path, "dump", str(a)).out.count("\n") == len(steps[3])


def test_a_filter_that_fits_nothing_is_named(tmp_path):
    only = "module=encoder,module=heat,op=linear,phase=forward"
    steps, got = dumped(tmp_path / "a", "--dump", "statistics", "--dump-steps", "2", "--dump-only", only)
    assert [op["op"] for op in steps[2]] == ["aten::linear"]
    assert got.err.count("--dump-only module=heat fits nothing in step 2; there are: Net.encoder.0, ") == 1, got.err


def test_a_filter_of_modules_that_fits_nothing_is_named(tmp_path):
    steps, got = dumped(tmp_path / "a", "--dump", "checksums", "--dump-steps", "2", "--dump-only", "module=heat")
    assert steps == {2: []} and "module=heat fits nothing in step 2; there are: Net.encoder.0, " in got.err, got.err


def test_from_one_module_to_another_with_operators_and_stacks(tmp_path):
    only = "scope=encoder.1..head,rows=1:3"
    options = "--dump", "tensors+operators+stacks", "--dump-steps", "2", "--dump-only", only
    plain = helpers.plain(tmp_path, helpers.write_script(tmp_path, TRAINS))
    steps, got = dumped(tmp_path / "a", *options)
    assert got.out == plain.out, got.text()
    calls = [(r["module"], r["phase"]) for r in steps[2] if r["op"] != "parameter"]
    forward = ["Net.encoder.1", "Net.head"]  # neither Net, which begins before, nor Net.encoder.0
    assert calls == [(m, "forward") for m in forward] + [(m, "backward") for m in reversed(forward)], calls
    assert {r["outputs"][0]["arg"] for r in steps[2] if r["op"] == "parameter"} == {
        "head.weight.grad",
        "head.bias.grad",
    }
    head = next(r for r in steps[2] if r["module"] == "Net.head")
    assert head["inputs"][0]["shape"] == [2, 8] and head["parameters"][0]["shape"] == [1, 8]
    assert [frame.partition(" in ")[2] for frame in head["stack"]][:2] == ["forward", "<module>"], head["stack"]
    (file,) = tmp_path.glob("a/runs/*/dumps/step-000002-operators.json")
    operators = json.loads(file.read_text())["trace"]["ops"]
    assert {op["module"] for op in operators} == set(forward) and {op["phase"] for op in operators} >= {"forward"}
    assert not any(op["op"] == "aten::detach" and op["phase"] == "forward" for op in operators)  # ours
    assert all("forward" in op["stack"][0] for op in operators if op["phase"] == "forward"), operators[0]
    assert helpers.finitude(tmp_path, "diff", str(file), str(file)).code == 0
    values = next(tmp_path.glob("a/runs/*/dumps/step-000002.json"))
    assert helpers.finitude(tmp_path, "diff", str(values), str(values)).code == 0


def test_a_scope_of_operators_and_one_that_is_not_there(tmp_path):
    options = "--dump", "statistics", "--dump-steps", "2", "--dump-only"
    steps, _ = dumped(tmp_path / "a", *options, "scope=encoder.0..encoder.1,phase=forward")
    assert {op["module"] for op in steps[2]} == {"Net.encoder.0", "Net.encoder.1"}
    steps, got = dumped(tmp_path / "b", *options, "scope=encoder.0..tail")
    assert "--dump-only module=tail fits nothing in step 2; there are: Net.encoder.0, " in got.err, got.err


@pytest.mark.parametrize(
    "kind, only, word",
    [
        ("statistics+operators", "", "statistics are of operators already"),
        ("off+stacks", "", "is one of statistics"),
        ("tensors+values", "", "+operators or +stacks can be added"),
        ("tensors", "scope=encoder", "FIRST..LAST"),
        ("tensors", "rows=4:2", "FIRST:END"),
    ],
)
def test_what_cannot_be_dumped_is_refused(kind, only, word):
    with pytest.raises(ValueError, match=re.escape(word)):
        dump_plan.parse(kind, "0", only)


def test_rows_of_operators_are_at_odds():
    asked = {"dump": "statistics", "dump_only": "rows=0:2"}
    assert "of whole tensors" in config.at_odds(config.load(asked, environ={}))[0]
    assert not config.at_odds(config.load({**asked, "dump": "checksums+operators"}, environ={}))


def test_a_watch_that_ends_within_a_dumped_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(3, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    only = "micro-batch=1,phase=forward"
    with finitude.watch(model, opt, dump="checksums", dump_steps="0-9", dump_only=only, runs="runs", quiet=True):
        for _ in range(3):
            model(torch.ones(2, 3)).sum().backward()
        opt.step()
        model(torch.ones(2, 3))
    assert not torch.nn.modules.module._global_forward_hooks
    (file,) = tmp_path.glob("runs/*/dumps/*.json")
    assert [r["micro_batch"] for r in json.loads(file.read_text())["trace"]["ops"]] == [1]


@pytest.mark.parametrize("passes_kwargs", [True, False])
def test_keyword_arguments_of_modules(tmp_path, monkeypatch, passes_kwargs):
    if not passes_kwargs:  # as an older torch
        monkeypatch.setattr(compat, "hooks_with_kwargs", dict)

    class Scaled(torch.nn.Linear):
        def forward(self, x, scale=None):
            return super().forward(x) * scale

    model = Scaled(3, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with finitude.watch(model, opt, dump="checksums", dump_steps="0", runs=str(tmp_path), quiet=True):
        model(torch.ones(2, 3), scale=torch.ones(3)).sum().backward()
        opt.step()
    (file,) = tmp_path.glob("*/dumps/*.json")
    record = json.loads(file.read_text())["trace"]["ops"][0]
    assert [one["arg"] for one in record["inputs"]] == ["input", "input.scale"][: 1 + passes_kwargs]
    assert [one["arg"] for one in record["parameters"]] == ["weight", "bias"] and "settings" not in record


@pytest.mark.parametrize("kind", ["checksums", "tensors"])
def test_modules_and_gradients(tmp_path, kind):
    plain = helpers.plain(tmp_path, helpers.write_script(tmp_path, TRAINS))
    steps, got = dumped(tmp_path / "a", "--dump", kind, "--dump-steps", "2")
    assert got.out == plain.out, got.text()
    records = {(r["module"], r["phase"]): r for r in steps[2]}
    head = records["Net.head", "forward"]
    assert head["op"] == "Linear" and re.fullmatch("[0-9a-f]{16}", head["outputs"][0]["checksum"])
    assert records["Net", "forward"]["outputs"][0]["checksum"] == head["outputs"][0]["checksum"]
    assert records["Net.encoder.0", "backward"]["outputs"][0]["arg"] == "output.grad"
    gradients = [r["outputs"][0]["arg"] for r in steps[2] if r["op"] == "parameter"]
    assert len(gradients) == 4 and all(arg.endswith(".grad") for arg in gradients)
    values = list(tmp_path.glob("a/runs/*/dumps/step-000002.safetensors"))
    assert len(values) == (kind == "tensors")
    if values:
        data = values[0].read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        names = {"Net.head.output", "Net.head.output.grad", "head.weight.grad", "Net.encoder.0.input"}
        assert names <= set(header) and header["Net.head.output"]["shape"] == [5, 1] and len(header) == 19, header


def test_a_control_file_changes_it_while_running(tmp_path):
    options = "--dump-control", "control.toml"
    steps, got = dumped(tmp_path / "a", *options, CONTROL='dump = "checksums"\nsteps = "next=2"\nonly = "module=head"')
    assert list(steps) == [4, 5] and {r["module"] for r in steps[4]} == {"Net.head"}, got.text()
    steps, got = dumped(tmp_path / "b", *options, "--dump", "checksums", "--dump-steps", "1-7", CONTROL='dump = "of"')
    assert list(steps) == [1, 2, 3, 4, 5, 6, 7] and "is not obeyed: is one of statistics, checksums" in got.err
    steps, got = dumped(tmp_path / "c", *options, "--dump", "checksums", "--dump-steps", "1-7", CONTROL='dump = "off"')
    assert list(steps) == [1, 2, 3], got.text()


@pytest.mark.parametrize("kind", ["statistics", "checksums"])
def test_a_bad_step_is_an_alarm_and_no_dump(tmp_path, kind):
    options = "--dump", kind, "--dump-steps", "every=1", "--on-alarm", "skip"
    steps, got = dumped(tmp_path / "a", *options, BAD="1")
    assert list(steps) == [0, 1, 2, 3, 4, 5, 7] and "step 6 is not dumped: it is an alarm" in got.err, got.text()
    assert got.the_alarm()["births"][0]["source"].startswith("loss = loss * float"), got.text()


def test_the_size_of_all_dumps_is_bounded(tmp_path):
    text = TRAINS.replace("Linear(8, 1)", "Linear(8, 200_000)").replace("range(8)", "range(4)")
    got = helpers.run(tmp_path, text, "--runs", "runs", "--dump", "tensors", "--dump-steps", "0-9", "--dump-mb", "25")
    assert len(list(tmp_path.glob("runs/*/dumps/*.json"))) == 1
    assert got.err.count("--dump-mb 25 is reached") == 1, got.err
    (size,) = [
        p.stat().st_size + p.with_suffix(".safetensors").stat().st_size for p in tmp_path.glob("runs/*/dumps/*.json")
    ]
    said = f"; the 9 that follow: about {9 * size / 1e6:.1f} MB, and --dump-mb 25 has room for about 0 of them)"
    assert said in got.err, got.err


def test_nothing_is_dumped_with_redact(tmp_path):
    steps, got = dumped(tmp_path / "a", "--dump", "tensors", "--dump-steps", "0", "--redact")
    assert not steps and got.err.count("--dump writes nothing with --redact") == 1, got.text()


@pytest.mark.parametrize(
    "steps, has, has_not",
    [("10", [10], [9, 11]), ("3-5,every=10", [3, 5, 20], [6]), ("next", [0], [1]), ("next=2, 7", [1, 7], [2])],
)
def test_numbers_of_steps(steps, has, has_not):
    chosen = dump_plan.parse_steps(steps)
    assert all(map(chosen.has, has)) and not any(map(chosen.has, has_not))


@pytest.mark.parametrize(
    "key, value, why",
    [
        ("dump", "stats", "is one of statistics"),
        ("dump_steps", "ten", "neither a step"),
        ("dump_steps", "5-3", "before the first"),
        ("dump_steps", "every=0", "1 or more"),
        ("dump_steps", "", "no step is named"),
        ("dump_only", "layer=a", "KEY=VALUE with the keys module"),
        ("dump_only", "phase=back", "phase is one of forward"),
        ("dump_only", "rank=a", "takes a number"),
    ],
)
def test_wrong_values_are_usage_errors(key, value, why):
    with pytest.raises(config.UsageError, match=why):
        config.load({key: value}, environ={})


def test_in_code_of_one_that_loops_over_a_module(tmp_path, monkeypatch):
    """A module that is called several times; one that raises."""
    monkeypatch.chdir(tmp_path)
    cell = torch.nn.Linear(3, 3)

    class Loops(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self, x):
            for _ in range(3):
                x = self.cell(x)
            return x

    model = Loops()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with finitude.watch(model, opt, dump="checksums", dump_steps="0", runs="runs", quiet=True):
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 7))
        model(torch.ones(2, 3)).sum().backward()
        opt.step()
    (file,) = tmp_path.glob("runs/*/dumps/step-000000.json")
    records = json.loads(file.read_text())["trace"]["ops"]
    assert sum(r["module"] == "Loops.cell" and r["phase"] == "forward" for r in records) == 3 + 1
    assert not torch.nn.modules.module._global_forward_hooks


def test_storages_that_were_dumped_can_be_resized(tmp_path):
    model = torch.nn.Linear(3, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(2, 3)
    with finitude.watch(model, opt, dump="tensors", dump_steps="0", runs=str(tmp_path), quiet=True):
        model(batch).sum().backward()
        opt.step()
    read = [batch, *model.parameters(), model.weight.grad]
    assert measure.fingerprint(batch) and not_reproduced.strange_bits(batch) == ""
    assert [t.untyped_storage().resizable() for t in read] == [True] * 4  # FSDP2 frees parameters so
    assert len(list(tmp_path.glob("*/dumps/step-000000.safetensors"))) == 1


def test_bits_that_no_arithmetic_makes_are_read_in_place():
    word = torch.tensor([[0, 0x7FABCDEF], [1, 2]], dtype=torch.int32).view(torch.float32).t()
    assert not_reproduced.strange_bits(word) == "7fabcdef" and not_reproduced.strange_bits(word[0]) == ""
    assert not_reproduced.strange_bits(torch.empty(0)) == ""


@pytest.mark.parametrize(
    "steps, after, count", [("0-9", 0, 9), ("3-5,4-8,20", 4, 5), ("every=10,3", 0, None), ("7", 7, 0)]
)
def test_how_many_steps_follow(steps, after, count):
    assert dump_plan.parse_steps(steps).how_many_after(after) == count
