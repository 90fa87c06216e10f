"""--dump: what is asked for and not there is refused or said; sides, ranks and the bound of one step."""

import json

import pytest
import torch
from test_dump_steps import TRAINS, dumped

import finitude
import helpers
from finitude.base import dump_plan
from finitude.base.config import UsageError
from finitude.report import incident
from process_support import SCHEMA, launched


@pytest.mark.parametrize(
    "options, said",
    [
        (("--dump-steps", "2,500,600-700"), ["--dump-steps 500,600-700: the training made 8 steps"]),
        (("--dump-steps", "2-3", "--dump-only", "rank=5"), ["--dump-only rank=5: this run has one rank, 0"]),
        (("--dump-steps", "2-3", "--dump-only", "op=Heat"), ["--dump-only op=Heat: it fits nothing in 2 dumped steps"]),
        (
            ("--dump-steps", "2", "--dump-only", "phase=backward,op=parameter,module=head"),
            ["--dump-only phase=backward,op=parameter,module=head: no record fits all of it in 1 dumped step"],
        ),
        (("--dump-steps", "2", "--dump-only", "module=head,phase=forward"), []),
    ],
)
def test_what_comes_to_nothing_is_in_the_report_and_the_closing_line(tmp_path, options, said):
    _, got = dumped(tmp_path / "a", "--dump", "checksums", *options)
    assert got.code == 0 and got.watched["not_watched"] == said, got.text()
    assert all(text in " ".join(got.err.split()) for text in said), got.err


def test_a_program_without_an_optimizer(tmp_path):
    text = "import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()"
    got = helpers.run(tmp_path, text, "--dump", "checksums")
    assert got.watched["not_watched"] == ["--dump-steps every=100: the training made 0 steps"], got.text()


def test_a_rank_that_the_launcher_did_not_start(tmp_path):
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    got = helpers.run(tmp_path, "print(1)", "--dump", "checksums", "--dump-only", "rank=1,rank=2", env=place)
    assert got.code == 2 and "--dump-only rank=2: this run has the ranks 0 to 1" in got.err, got.text()
    assert not got.out


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(4, 8)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.encoder(x))


@pytest.mark.parametrize("only", ["module=heat", "scope=encoder..tail"])
def test_a_module_that_the_model_does_not_have(tmp_path, only):
    with pytest.raises(UsageError, match="fits no module; there are: encoder, head"):
        finitude.watch(Net(), dump="checksums", dump_only=only, runs=str(tmp_path), quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("only", ["module=Net.enc*", "module=module.head", "module=MSELoss", "scope=encoder..head"])
def test_modules_of_the_model_its_wrappers_and_its_loss(tmp_path, only):
    model, _loss = Net(), torch.nn.MSELoss()
    finitude.watch(model, dump="checksums", dump_only=only, runs=str(tmp_path), quiet=True).close()


def test_a_rank_of_two(tmp_path):
    text = TRAINS + "import torch.distributed as d\n"
    text = text.replace("net = Net()", "torch.distributed.init_process_group('gloo')\nnet = Net()")
    options = "--dump", "checksums", "--dump-steps", "2", "--dump-only", "rank=1,rank=7"
    got = launched(tmp_path, text, *options)
    assert [p.parent.parent.name for p in tmp_path.glob("finitude-runs/*/*/dumps/*.json")] == ["rank-1"], got.text()
    missing = "--dump-only rank=7: this run has the ranks 0 to 1"
    assert got.watched["not_watched"] == [missing] and got.err.count(f"finitude: {missing}\n") == 1, got.text()


@pytest.mark.parametrize("side", dump_plan.SIDES)
def test_one_side_of_modules(tmp_path, side):
    options = "--dump", "tensors", "--dump-steps", "2", "--dump-only", f"side={side}"
    steps, got = dumped(tmp_path / "a", *options)
    other = dump_plan.SIDES[side == "inputs"]
    assert steps[2] and not any(r[other] for r in steps[2]) and all(r[side] for r in steps[2]), got.text()
    assert {r["phase"] for r in steps[2]} == ({"forward"} if side == "inputs" else {"forward", "backward"})
    (values,) = tmp_path.glob("a/runs/*/dumps/*.safetensors")
    data = values.read_bytes()
    names = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert ("Net.head.input" in names, "Net.head.output" in names) == (side == "inputs", side == "outputs")


@pytest.mark.parametrize("side", dump_plan.SIDES)
def test_one_side_of_operators(tmp_path, side):
    options = "--dump", "statistics", "--dump-steps", "2", "--dump-only", f"side={side},op=linear"
    steps, got = dumped(tmp_path / "a", *options)
    other = dump_plan.SIDES[side == "inputs"]
    assert len(steps[2]) == 2 and all(r[side] and not r[other] for r in steps[2]), got.text()


@pytest.mark.parametrize(
    "kind, what", [("tensors", "values beyond --dump-mb"), ("statistics", "operations beyond --dump-mb")]
)
def test_the_first_dump_is_bounded_too(tmp_path, kind, what):
    text = TRAINS.replace("Linear(8, 1)", "Linear(8, 100_000)").replace("range(8)", "range(2)")
    if kind == "statistics":
        text = text.replace(
            "    opt.zero_grad()", "    loss = sum(loss * 1.0 for _ in range(900))\n    opt.zero_grad()"
        )
    got = helpers.run(tmp_path, text, "--runs", "runs", "--dump", kind, "--dump-steps", "0-9", "--dump-mb", "1")
    sizes = [p.stat().st_size for p in tmp_path.glob("runs/*/dumps/*")]
    assert sum(sizes) <= 1 << 20, sizes
    (file,) = tmp_path.glob("runs/*/dumps/step-000000.json")
    document = json.loads(file.read_text())
    assert [error.message for error in SCHEMA.iter_errors(document)] == []
    trace = document["trace"]
    assert trace["truncated"] and trace["ops"] and helpers.finitude(tmp_path, "dump", str(file)).code == 0
    said = [one for one in got.watched["not_watched"] if one.startswith("step 0 is not dumped whole, without ")]
    assert len(said) == 1 and what in said[0] and got.err.count("is not dumped whole") == 1, got.text()


@pytest.mark.parametrize("level", ["gate", "trace"])
def test_a_step_of_more_operations_than_a_file_holds(tmp_path, monkeypatch, level):
    finitude.explain(lambda: torch.ones(2).log())  # under a watch of its own, with every step recorded
    monkeypatch.setattr(incident, "MAX_OPS", 5)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"dump": "statistics", "dump_steps": "1,2,900", "level": level}
    with finitude.watch(model, opt, runs=str(tmp_path), quiet=True, **options):
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            opt.step()
    for file in tmp_path.glob("*/dumps/*.json"):
        trace = json.loads(file.read_text())["trace"]
        assert len(trace["ops"]) == 5 and trace["truncated"]
    (report,) = tmp_path.glob("*/report.json")
    first, last = json.loads(report.read_text())["watched"]["not_watched"]
    assert first.startswith("step 1 is not dumped whole, without ") and first.endswith(" operations beyond 5"), first
    assert last == "--dump-steps 900: the training made 3 steps"
