"""`finitude replay CAPSULE --with PROGRAM`: the captured step in the program's own code, changed or not."""

import json
import pathlib
import shutil
import sys

import pytest
import torch  # noqa: F401  its libraries

import helpers
from finitude import _native
from inject_support import FIXED, LOADER, Captured, steps, without_rate


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    return Captured(tmp_path_factory.mktemp("loader"), LOADER.replace("WORKERS", "0"))


def assert_the_very_step_is_put_in_place(captured):
    same = captured.with_changes()
    assert same.code == 1 and same.out.startswith("not fixed: the same birth  aten::log  train.py:"), same.text()
    assert captured.alarm["step"] > 1
    failed = captured.printed[captured.alarm["step"]]
    assert steps(same.err) == [failed], (
        "weights, buffers, state, generators, rate and batch are those of the recorded step"
    )


def assert_the_guilty_rows_are_samples_of_the_data_set(captured):
    birth = captured.alarm["births"][0]
    assert birth["samples"] == [17] and len(birth["rows"]) == 1, birth
    (samples,) = captured.about["samples"]
    assert len(samples) == 4 and samples[birth["rows"][0]] == 17
    shown = helpers.finitude(captured.folder, "report", str(pathlib.Path(captured.capsule).parent))
    assert f"row {birth['rows'][0]} of the batch = sample 17 of the data set" in " ".join(shown.out.split()), (
        shown.text()
    )


def test_the_very_step_is_put_in_place(captured):
    assert_the_very_step_is_put_in_place(captured)
    assert_the_guilty_rows_are_samples_of_the_data_set(captured)


def test_workers_of_a_loader(tmp_path):
    captured = Captured(tmp_path, LOADER.replace("WORKERS", "2"))
    assert_the_very_step_is_put_in_place(captured)
    assert_the_guilty_rows_are_samples_of_the_data_set(captured)


def test_a_fix_is_found_to_be_one(captured):
    fixed = captured.with_changes(FIXED, words=["--json"])
    document = json.loads(fixed.out)
    assert (fixed.code, document["verdict"], document["way"], document["recorded"]["op"]) == (
        0,
        "fixed",
        "batch",
        "aten::log",
    ), fixed.text()
    assert 0 < document["loss"] < 1e6 and document["grad_absmax"] > 0
    # At the first step of the program, and once more where the program itself had come to that step.
    printed = captured.printed[captured.alarm["step"]]
    assert (
        steps(fixed.err)[0] == steps(fixed.err)[-1] == printed and len(steps(fixed.err)) == captured.alarm["step"] + 2
    )
    assert document["notes"] == [f"and so it is as step {captured.alarm['step']} of the program itself"]


@pytest.mark.thorough
def test_variables_may_stand_before_the_command(captured):
    text = "import os\n" + captured.script.replace(
        FIXED[0], f"({FIXED[1]} if os.environ.get('EPS') == 'a b' else {FIXED[0]})"
    )
    helpers.write_script(captured.folder, text)
    verdicts = [
        helpers.finitude(captured.folder, "replay", captured.capsule, "--with", f"{before}train.py").code
        for before in ("", "EPS='a b' ")
    ]
    assert verdicts == [1, 0]


def test_a_change_that_fails_elsewhere_is_none(captured):
    other = captured.with_changes((FIXED[0], "(1 / x.sum(1, keepdim=True))"))
    assert other.code == 1 and "not fixed: another birth  aten::reciprocal" in other.out, other.text()
    assert "recorded: aten::log" in other.out


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            (("Linear(6, 8)", "Linear(6, 9)"), ("Norm1d(8)", "Norm1d(9)"), ("Linear(8, 1)", "Linear(9, 1)")),
            "0.weight is float32 [8, 6] in the capsule and float32 [9, 6] in the program",
        ),
        ((("nn.BatchNorm1d(8), ", ""),), "the program has no 1.bias, 1.weight, 3.bias, 3.weight"),
        ((("nn.Linear(8, 1))", "nn.Linear(8, 1), nn.PReLU())"),), "the capsule has no 4.weight"),
    ],
    ids=["shape", "missing", "more"],
)
def test_what_does_not_fit_is_named(captured, change, named):
    result = captured.with_changes(*change)
    assert result.code == 4 and named in result.out and "leave the model as recorded for this trial" in result.out, (
        result.text()
    )


def test_other_optimizer_starts_without_state_from_packed_capsule(captured):
    packed = str(captured.folder / "a.zip")
    assert helpers.finitude(captured.folder, "pack", captured.capsule, packed).code == 0
    result = captured.with_changes(FIXED, ("torch.optim.AdamW", "torch.optim.SGD"), capsule=packed)
    assert result.code == 0 and result.out.startswith("fixed: loss ") and "no place in SGD" in result.out, result.text()


def test_refusals_state_the_reason(captured, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(captured.capsule, copy)
    start = copy / "start.safetensors"
    start.write_bytes(start.read_bytes()[:-1] + b"\x55")
    damaged = captured.with_changes(capsule=str(copy))
    assert damaged.code == 3 and "start.safetensors is damaged" in damaged.err, damaged.text()
    about = json.loads((copy / "capsule.json").read_text())
    del about["start"]
    helpers.put_about(copy, about)
    old = captured.with_changes(capsule=str(copy))
    assert old.code == 4 and "does not hold what the program held" in old.err, old.text()
    helpers.put_about(copy, {**about, "schema": 2})
    later = captured.with_changes(capsule=str(copy))
    assert later.code == 3 and "is a capsule of schema 2; this program reads 1" in later.err, later.text()
    assert helpers.finitude(tmp_path, "replay", str(copy), "--with").code == 2
    assert helpers.finitude(tmp_path, "replay", str(copy), "--with", "x.py", "--threads", "99999").code == 2
    assert helpers.finitude(tmp_path, "replay", str(copy), "--with", "x.py", "--dtype", "float64").code == 2
    (tmp_path / "none.py").write_text("print('nothing trains')\n")
    strange = tmp_path / "strange"  # as a file from elsewhere may say
    shutil.copytree(captured.capsule, strange)
    helpers.put_about(strange, {**captured.about, "flags": {"threads": -3}})
    nothing = helpers.finitude(tmp_path, "replay", str(strange), "--with", "none.py")
    assert nothing.code == 4 and "undecided: " in nothing.out and "has no torch" not in nothing.out, nothing.text()
    assert "nothing trains" in nothing.err and "Traceback" not in nothing.err, nothing.text()
    bare = tmp_path / "python3"  # another Python than this one, as where an environment is not active
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    elsewhere = helpers.finitude(tmp_path, "replay", captured.capsule, "--with", f"{bare} none.py")
    assert (
        elsewhere.code == 4
        and f"{bare} has no torch: without a Python in front, or with {sys.executable}," in elsewhere.out
    ), elsewhere.text()
    for how in ("torch.func.grad(lambda w: (w * w).sum())(w)", "torch.autograd.grad((w * w).sum(), w)[0]"):
        (tmp_path / "none.py").write_text(
            f"import torch\nw = torch.ones(3, requires_grad=True)\nfor i in range(3):\n    g = {how}\n"
        )
        by_hand = helpers.finitude(tmp_path, "replay", captured.capsule, "--with", "none.py")
        assert by_hand.code == 4 and "the program has no optimizer" in by_hand.out, by_hand.text()


# Two micro-batches of dicts.
MICRO = """
import torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(5)
data = [{"x": torch.rand(6), "name": f"sample {i}"} for i in range(40)]
data[11]["x"] = torch.zeros(6)
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loader = DataLoader(data, batch_size=2, shuffle=True)
def loss_of(batch):
    x = batch["x"]
    g = torch.get_rng_state()
    print("step", [x.sum().item(), torch.rand(1).item(), model[0].weight.sum().item(), batch["name"]], flush=True)
    torch.set_rng_state(g)
    return (torch.log(x.sum(1, keepdim=True)) * model(x)).mean() / 2
def train():
    i = 0
    for epoch in range(2):
        for batch in loader:
            loss_of(batch).backward()
            i += 1
            if i % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
train()
"""


def test_micro_batches(tmp_path):
    captured = Captured(tmp_path, MICRO)
    same = captured.with_changes()
    assert same.code == 1 and "the same birth" in same.out, same.text()
    step = captured.alarm["step"]
    assert steps(same.err) == captured.printed[2 * step : 2 * step + 2]
    assert captured.alarm["births"][0].get("samples") == [11]
    assert captured.with_changes(FIXED).code == 0


# A framework's loop, which holds everything and asks its loader for a batch ahead. It has the name of one that we know.
TRAINER = """
class Trainer:
    def __init__(self, model, optimizer, loader):
        self.model, self.optimizer, self.loader = model, optimizer, loader
    def ahead(self):
        batches = iter(self.loader)
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch
    def training_step(self, model, inputs, count=None):
        loss = self.compute_loss(model, inputs)
        loss.backward()
        return loss.detach()
    def train(self):
        for epoch in range(3):
            for batch in self.ahead():
                self.training_step(self.model, batch)
                self.optimizer.step()
                self.optimizer.zero_grad()
"""
TRAINS = (
    MICRO[: MICRO.index("def loss_of")]
    + """
from transformers.trainer import Trainer
class Mine(Trainer):
    def compute_loss(self, model, inputs):
        x = inputs["x"]
        print("step", [x.sum().item(), model[0].weight.sum().item(), inputs["name"]], flush=True)
        return (torch.log(x.sum(1, keepdim=True)) * model(x)).mean()
Mine(model, optimizer, loader).train()
"""
)


def test_the_batch_that_a_framework_gave(tmp_path):
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("")
    (tmp_path / "transformers" / "trainer.py").write_text(TRAINER)
    captured = Captured(tmp_path, TRAINS)
    step = captured.alarm["step"]
    assert captured.alarm["rerun_by"] == "closure" and step > 1
    assert [sorted(key for key, _ in b["batch"]["dict"]) for b in captured.about["start"]["batches"]] == [["name", "x"]]
    same = captured.with_changes(words=["--json"])
    assert (same.code, json.loads(same.out)["way"]) == (1, "batch"), same.text()
    assert steps(same.err)[-1] == captured.printed[step]
    assert captured.with_changes(FIXED).code == 0


# No loader: batches drawn by a generator, or taken by the number of the step.
BY_HAND = (
    LOADER.replace("for x, y in loader:", "for i in range(16):\n            x, y = BATCH")
    .replace("loader = DataLoader", "unused = DataLoader")
    .replace("WORKERS", "0")
)
DRAWN = BY_HAND.replace("BATCH", "(lambda at: (X[at], Y[at]))(torch.randint(64, (4,)))")
COUNTED = BY_HAND.replace("BATCH", "X[4 * i:4 * i + 4].clone(), Y[4 * i:4 * i + 4].clone()")


@pytest.mark.parametrize(
    ("script", "way"),
    [pytest.param(DRAWN, "first", id="drawn", marks=pytest.mark.thorough), pytest.param(COUNTED, "step", id="counted")],
)
def test_without_a_loader(tmp_path, script, way):
    captured = Captured(tmp_path, script)
    assert captured.alarm["step"] > 1
    result = captured.with_changes(FIXED, words=["--json"])
    document = json.loads(result.out)
    assert (result.code, document["verdict"], document["way"]) == (0, "fixed", way), result.text()
    # The rate is set where the optimizer steps: a scheduler of the step before still moves what was put in place with
    # the state.
    assert without_rate(steps(result.err)[-1]) == without_rate(captured.printed[captured.alarm["step"]])
    assert captured.with_changes().code == 1


def test_batch_that_does_not_occur_is_reported(tmp_path):
    captured = Captured(tmp_path, COUNTED)
    result = captured.with_changes(FIXED, ("X[17] = 0", "X = torch.rand(64, 6)"))
    assert result.code == 4 and "made another one" in result.out, result.text()


def test_program_can_build_the_whole_first_step_itself(tmp_path):
    captured = Captured(tmp_path, COUNTED.replace("X[17] = 0", "X[2] = 0"))
    assert captured.alarm["step"] == 0
    same = captured.with_changes()
    assert same.code == 1 and "the same birth" in same.out, same.text()
    fixed = captured.with_changes(FIXED, words=["--json"])
    assert fixed.code == 0 and json.loads(fixed.out)["way"] == "start", fixed.text()
    other = captured.with_changes(FIXED, ("manual_seed(3)", "manual_seed(4)"))
    assert other.code == 4 and "begins with other values" in other.out, other.text()


BY_NUMBER = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(2)
w = torch.nn.Parameter(torch.rand(6))
optimizer = torch.optim.SGD([w], lr=0.1)
data = DataLoader(TensorDataset(torch.rand(12, 6)), batch_size=2)
def batches():
    for i in range(6):
        yield i, torch.rand(2, 6)
for i, x in BATCHES:
    x = x if isinstance(x, torch.Tensor) else x[0]
    optimizer.zero_grad()
    p = torch.softmax(x * w, -1)
    if i == 3:
        p = p * (p > p.median())
    loss = -LOG.sum()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("batches", ["batches()", pytest.param("enumerate(data)", marks=pytest.mark.thorough)])
def test_dependence_on_step_number_is_no_fix(tmp_path, batches):
    """The program as it was is finite wherever it counts another step: that is no fix."""
    made = helpers.run(tmp_path, BY_NUMBER.replace("BATCHES", batches).replace("LOG", "torch.log(p)"))
    folder = str(tmp_path / made.the_alarm()["capsule"])
    same = helpers.finitude(tmp_path, "replay", folder, "--with", "train.py")
    assert (
        same.code == 1
        and same.out.startswith("not fixed: the same birth  aten::log")
        and "count of its steps, 3" in same.out
    ), same.text()
    helpers.write_script(tmp_path, BY_NUMBER.replace("BATCHES", batches).replace("LOG", "torch.log(p.clamp(min=1e-6))"))
    fixed = helpers.finitude(tmp_path, "replay", folder, "--with", "train.py")
    assert fixed.code == 0 and "and so it is as step 3 of the program itself" in fixed.out, fixed.text()


SPARSE = """
import torch
torch.manual_seed(0)
table = torch.nn.Embedding(20, 4, sparse=True)
optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=0.01)
for i in range(5):
    words = torch.randint(0, 20, (6,))
    optimizer.zero_grad()
    x = table(words).sum(1)
    loss = torch.atan(x).sum()
    if i == 3:   # the loss stays finite
        loss = loss + torch.sqrt((x * 0).sum())
    loss.backward()
    optimizer.step()
"""


@pytest.mark.thorough
def test_a_sparse_gradient_is_seen(tmp_path):
    """Its values are not those of a dense tensor, and are what makes the step bad."""

    def sparse(indices, values):
        return torch.sparse_coo_tensor([indices], values, (3,), check_invariants=True)

    assert not _native.is_finite(sparse([0, 1], [1.0, float("nan")])) and _native.is_finite(sparse([0, 1], [1.0, 2.0]))
    assert not _native.is_finite(sparse([1, 1], [3e38, 3e38])), "summed, it overflows"
    assert _native.statistics(sparse([0, 1], [1.0, float("inf")]))["inf"] == 1
    made = helpers.run(tmp_path, SPARSE)
    alarm = made.the_alarm()
    assert alarm["sink"]["kind"] == "gradient" and alarm["births"][0]["op"] == "aten::div", alarm["births"]
    replayed = helpers.finitude(tmp_path, "replay", str(tmp_path / alarm["capsule"]))
    assert replayed.code == 0 and replayed.out.startswith("identical: 2 of 2 results"), replayed.text()
    assert [bad["name"] for bad in alarm["gradients"]["bad"]] == [alarm["sink"]["name"]], alarm["gradients"]
    same = helpers.finitude(tmp_path, "replay", str(tmp_path / alarm["capsule"]), "--with", "train.py")
    assert same.code == 1 and same.out.startswith("not fixed: the same birth"), same.text()


OBJECTS = """
import dataclasses, torch
torch.manual_seed(3)
X = torch.rand(48, 6)
X[28] = 0
@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    more: dict
def collate(samples):
    return Batch(torch.stack([X[i] for i in samples]), {"y": torch.tensor(samples) % 3})
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for batch in torch.utils.data.DataLoader(range(48), batch_size=8, collate_fn=collate, shuffle=True):
    optimizer.zero_grad()
    x = batch.x / batch.x.norm(dim=1, keepdim=True)
    torch.nn.functional.cross_entropy(model(x), batch.more["y"]).backward()
    optimizer.step()
"""


def test_batches_that_are_objects(tmp_path):
    captured = Captured(tmp_path, OBJECTS)
    same = captured.with_changes()
    assert same.code == 1 and same.out.startswith("not fixed: the same birth  aten::div  train.py:"), same.text()
    fixed = captured.with_changes(("keepdim=True)", "keepdim=True).clamp(min=1e-6)"))
    assert fixed.code == 0 and fixed.out.startswith("fixed: loss "), fixed.text()
