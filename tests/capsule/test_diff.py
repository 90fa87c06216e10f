"""finitude diff: where two recorded steps part first."""

import json
import pathlib
import shutil

import pytest
import torch

import diff_pairs
import helpers
from finitude import _native
from finitude.capsules import capsule

MEMORY = 1 << 30


def compare(a, b, memory=MEMORY):
    code, why, document = _native.compare(str(a), str(b), ["aten"], 0, memory)
    assert not why, why
    return code, json.loads(document)


@pytest.mark.parametrize("name", diff_pairs.PAIRS)
def test_the_first_divergence_of_a_seeded_pair(name, tmp_path):
    seed = 100 + list(diff_pairs.PAIRS).index(name)
    a, b, before, program = diff_pairs.make(name, seed, tmp_path, _native)
    code, found = compare(a, b)
    assert diff_pairs.wrong(name, found, before, program) == "", _native.render_comparison(
        json.dumps(found), False, 100, False
    )
    assert code == (diff_pairs.PAIRS[name][1].kind != "quiet")
    # The other way round, and without memory for values: the same verdict.
    assert compare(b, a)[1]["verdict"] == found["verdict"]
    less = compare(a, b, memory=0)[1]
    if found["verdict"] == "divergence":
        assert less["divergence"]["at"] == found["divergence"]["at"] and less["values_left_out"] > 0


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = torch.nn.Linear(10, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 5)

    def forward(self, x, scale):
        x = torch.nn.functional.dropout(self.norm(torch.nn.functional.gelu(self.a(x))), 0.2)
        return self.b(torch.nn.functional.dropout(torch.relu(x) * scale, 0.1))


def recorded(folder, scale, backend=None):
    torch.manual_seed(3)
    model, x, y = Small(), torch.randn(12, 10), torch.randint(0, 5, (12,))
    forward = torch.compile(model, backend=backend) if backend else model
    loss_of = torch.nn.functional.cross_entropy
    loss_of(forward(x, scale), y).backward()  # compiles
    model.zero_grad()
    torch.manual_seed(7)
    _native.tape_start()
    loss = loss_of(forward(x, scale), y)
    loss.backward()
    _native.tape_stop()
    _native.tape_outcome("loss", "loss", loss.detach())
    for name, p in model.named_parameters():
        _native.tape_outcome("gradient", name, p.grad)
        _native.tape_name(p, "parameter", name)
    about = json.dumps({"kind": "finitude capsule", "torch": torch.__version__, "step": 1})
    why, replayed = _native.capsule_write(str(folder), about, MEMORY, False, MEMORY, capsule._source_of)
    assert not why and replayed == "identical", (why, replayed)
    return folder


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_step_with_dropout_matches_the_eager_one(backend, tmp_path):
    """Compiled, dropout is another operator in forward and backward; it draws the same numbers."""
    torch._dynamo.reset()
    eager = recorded(tmp_path / "eager", 0.5)
    code, found = compare(eager, recorded(tmp_path / "same", 0.5, backend))
    assert code == 0 and found["verdict"] == "same" and found["divergence"] is None
    lone = {call["op"] for part in found["unaligned"] for call in part["only_b"]}
    assert (backend == "aot_eager") == ("aten::native_dropout" in lone)
    torch._dynamo.reset()
    code, found = compare(eager, recorded(tmp_path / "other", 0.25, backend))
    there = found["divergence"]
    assert code == 1 and there["kind"] == "argument" and there["at"]["a"]["op"] == "aten::mul", there
    assert [(float(x["a"]), float(x["b"])) for x in there["arguments"]] == [(0.5, 0.25)]
    assert there["at"]["a"]["source"].endswith("* scale, 0.1))")


def test_what_is_said_of_numbers_drawn_otherwise(tmp_path):
    a, b, *_ = diff_pairs.make("dropout by rand", 5, tmp_path, _native)
    found = compare(a, b)[1]
    assert found["divergence"]["generator"] == "same"
    assert [c["op"] for c in found["divergence"]["only_b"]] == ["aten::rand_like", "aten::ge", "aten::_to_copy"]
    text = _native.render_comparison(json.dumps(found), False, 100, False)
    assert "random numbers are drawn: by other operators" in text and "in B by aten::rand_like" in text
    a, b, *_ = diff_pairs.make("dropout behind another", 5, tmp_path, _native)
    found = compare(a, b)[1]
    assert found["divergence"]["generator"] == "elsewhere" and [c["op"] for c in found["divergence"]["only_b"]] == [
        "aten::rand"
    ]
    text = _native.render_comparison(json.dumps(found), False, 100, False)
    assert (
        "the generator was in another state" in text
        and "drawn before in A alone: nothing" in text
        and "in B alone: aten::rand" in text
    )


@pytest.fixture(scope="module")
def capsules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diff")
    return diff_pairs.make("weight", 3, folder, _native)[:2]


def test_as_text_and_json_on_the_command_line(capsules, tmp_path):
    a, b = capsules
    text = helpers.finitude(tmp_path, "diff", a, b)
    assert (
        text.code == 1 and text.out.startswith("finitude:") and "in parameter, which the step begins with" in text.out
    ), text.text()
    assert "weight" in text.out and "ulp of float32" in text.out
    done = helpers.finitude(tmp_path, "diff", "--json", a, b)
    document = json.loads(done.out)
    assert done.code == 1 and document["verdict"] == "divergence" and document["a"] == a
    same = helpers.finitude(tmp_path, "diff", a, a)
    assert same.code == 0 and "no difference" in same.out, same.text()


def test_usage_and_input_that_cannot_be_read(capsules, tmp_path):
    a, b = capsules
    done = helpers.finitude(tmp_path, "diff", "--help")
    assert done.code == 0 and "--memory-mb" in done.out and done.err == ""
    assert helpers.finitude(tmp_path, "diff").code == 3  # no two recordings are there of which it would take the newest
    for words in ((a,), (a, b, b), (a, b, "--threads"), (a, b, "--threads", "none"), (a, b, "--what")):
        assert helpers.finitude(tmp_path, "diff", *words).code == 2, words
    damaged = tmp_path / "damaged"
    shutil.copytree(b, damaged)
    tape = damaged / "tape.bin"
    tape.write_bytes(tape.read_bytes()[:-3])
    (tmp_path / "text.json").write_text("{")
    for path in (damaged, tmp_path / "nowhere", tmp_path / "text.json", tmp_path):
        result = helpers.finitude(tmp_path, "diff", a, str(path))
        assert result.code == 3 and str(path) in result.err, result.text()


def test_redacted_capsules_without_statistics_cannot_be_compared(capsules, tmp_path):
    about = json.loads(pathlib.Path(capsules[0], "capsule.json").read_text())
    copy = tmp_path / "copy"
    shutil.copytree(capsules[0], copy)
    helpers.put_about(copy, {**about, "redacted": True})
    result = helpers.finitude(tmp_path, "diff", capsules[0], str(copy))
    assert result.code == 4 and "redact" in result.err and "no statistics" in result.err, result.text()


def test_what_the_recordings_say_of_themselves(capsules, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(capsules[0], copy)
    about = json.loads((copy / "capsule.json").read_text())
    about.update(
        torch="2.99.0",
        command=["train.py", "--lr", "1"],
        git={"commit": "abc", "branch": None},
        environment={"OMP_NUM_THREADS": "9"},
        platform=["not", 3, "text"],
    )
    first = json.loads((copy / "capsule.json").read_text())
    for document, lr, scale in ((first, 1e-3, 1024.0), (about, 2e-3, 512.0)):
        document["start"] = {
            "optimizers": [{"class": "AdamW", "groups": [{"lr": lr, "eps": 1e-8}], "state": {"w": "x"}}],
            "scaler": {"scale": scale},
            "schedulers": [{"class": "StepLR", "last_epoch": 3}],
        }
    shutil.copytree(copy, tmp_path / "first")
    helpers.put_about(tmp_path / "first", first)
    helpers.put_about(copy, about)
    code, found = compare(tmp_path / "first", copy)
    assert code == 0 and found["verdict"] == "same"
    changed = {d["key"]: (d["a"], d["b"]) for d in found["about"]}
    assert changed["torch"] == (torch.__version__, "2.99.0") and changed["command"] == ("", "train.py --lr 1")
    assert changed["optimizers[0].groups[0].lr"] == ("0.001", "0.002") and changed["scaler.scale"] == (
        "1024.0",
        "512.0",
    )
    assert not any("eps" in key or "schedulers" in key for key in changed)
    assert changed["git"] == ("", "commit abc") and changed["OMP_NUM_THREADS"] == ("", "9")


FAILING = """
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # else the step would begin with other weights
x, y = torch.randn(8, 6), torch.randint(0, 4, (8,))
for i in range(3):
    optimizer.zero_grad()
    h = ACT(model[0](x))
    h = F.layer_norm(h, (8,), eps=EPS)
    h = model[1](h)
    loss = F.cross_entropy(model[2](h), y) / (i < 2)
    loss.backward()
    optimizer.step()
"""


def script(**words):
    text = FAILING
    for word, value in {"EPS": "1e-5", "ACT": "torch.tanh", **words}.items():
        text = text.replace(word, value)
    return text


@pytest.mark.parametrize(
    ("key", "index", "was", "now"),
    [
        ("betas[0]", 0, "0.9", "0.8"),
        ("betas[1]", 1, "0.999", "0.99"),
        ("eps", 0, "1e-08", "1e-06"),
        ("weight_decay", 1, "0.01", "0.2"),
        ("lr", 1, "0.0", "1e-20"),
    ],
)
def test_settings_of_each_group_of_an_optimizer(tmp_path, key, index, was, now):
    name = key.partition("[")[0]
    numbers = {"betas[0]": "(0.8, 0.999)", "betas[1]": "(0.9, 0.99)"}
    sides = []
    for side, value in (("a", None), ("b", numbers.get(key, now))):
        extra = ["", ""]
        extra[index] = f", {name!r}: {value}" if value else ""
        groups = (
            f"torch.optim.AdamW([{{'params': model[0].parameters(){extra[0]}}}, {{'params': "
            f"model[1].parameters(){extra[1]}}}], lr=0.0)"
        )
        (tmp_path / side).mkdir()
        text = script().replace("torch.optim.SGD(model.parameters(), lr=0.0)", groups)
        sides.append(tmp_path / side / helpers.run(tmp_path / side, text).the_alarm()["capsule"])
    code, found = compare(*sides)
    changed = {d["key"]: (d["a"], d["b"]) for d in found["about"] if d["group"] == "update"}
    assert changed == {f"optimizers[0].groups[{index}].{key}": (was, now)} and code == 0, changed


def traced(folder, **words):
    folder.mkdir()
    result = helpers.run(folder, script(**words), "--level", "trace")
    assert result.report["trace"]["ops"], result.text()
    report = folder / "trace.json"
    report.write_text(json.dumps(result.report))
    return report


def test_two_traces(tmp_path):
    a, b = traced(tmp_path / "a"), traced(tmp_path / "b", EPS="1e-2")
    code, found = compare(a, b)
    there = found["divergence"]
    assert code == 1 and there["kind"] == "argument", found
    line = FAILING.strip().splitlines().index("    h = F.layer_norm(h, (8,), eps=EPS)") + 1
    assert there["at"]["a"]["op"] == "aten::native_layer_norm" and there["at"]["a"]["line"] == line
    assert {(x["arg"], float(x["a"]), float(x["b"])) for x in there["arguments"]} == {("eps", 1e-5, 1e-2)}
    assert compare(a, a)[0] == 0
    code, found = compare(a, traced(tmp_path / "c", ACT="torch.sigmoid"))
    assert code == 1 and found["divergence"]["kind"] == "operators"
    assert [c["op"] for c in found["divergence"]["only_a"]] == ["aten::tanh"]
    assert [c["op"] for c in found["divergence"]["only_b"]] == ["aten::sigmoid"]


@pytest.fixture(scope="module")
def healthy_and_bad(tmp_path_factory):
    """Called with a place and a seed: the two reports, and their documents."""
    made = {}

    def make(where, seed):
        if (where, seed) not in made:
            folder = tmp_path_factory.mktemp(f"{where}-{seed}")
            for name, bad in (("healthy", False), ("bad", True)):
                (folder / name).mkdir()
                result = helpers.run(folder / name, diff_pairs.steps(where, seed, bad), "--level", "trace")
                assert bool(result.report["alarms"]) == bad, result.text()
                (folder / f"{name}.json").write_text(json.dumps(result.report))
            made[where, seed] = folder / "healthy.json", folder / "bad.json"
        return made[where, seed]

    return make


@pytest.mark.parametrize("where", diff_pairs.TRACED)
def test_a_healthy_trace_against_a_bad_one(where, healthy_and_bad):
    a, b = healthy_and_bad(where, 40 + list(diff_pairs.TRACED).index(where))
    code, found = compare(a, b)
    assert code == 1 and diff_pairs.wrong_of_traces(where, found) == "", _native.render_comparison(
        json.dumps(found), False, 100, False
    )
    assert compare(b, a)[1]["divergence"]["kind"] == diff_pairs.TRACED[where][0]
    assert found["alignment"]["pairs"] > 20 and (compare(a, a)[0], compare(a, a)[1]["verdict"]) == (0, "same")


def test_healthy_trace_is_its_last_complete_step(healthy_and_bad):
    a, _ = healthy_and_bad("mean", 42)
    ops = json.loads(a.read_text())["trace"]["ops"]
    assert {"forward", "backward", "optimizer"} <= {op["phase"] for op in ops}
    assert sum(op["op"] == "aten::nll_loss_forward" for op in ops) == 1
    names = {t["text"] for op in ops for t in op["inputs"] if "text" in t}
    assert {"layers.0.weight", "head.bias"} <= names


def test_empty_or_tiny_traces_get_no_sameness_verdict(healthy_and_bad, tmp_path):
    a, b = healthy_and_bad("mean", 42)
    report = json.loads(a.read_text())
    ops = report["trace"]["ops"]

    def kept(name, some):
        (tmp_path / name).write_text(json.dumps({**report, "trace": {"ops": some}}))
        return str(tmp_path / name)

    for some in ([], [op for op in ops if op["op"] in ("aten::item", "aten::_local_scalar_dense")]):
        done = helpers.finitude(tmp_path, "diff", kept("none.json", some), str(b))
        assert done.code == 4 and "nothing to compare" in done.err and done.out == "", done.text()
    # A beginning of a step: what both have is the same, and B alone comes to gradients.
    forward = kept("forward.json", [op for op in ops if op["phase"] == "forward"])
    code, found = compare(forward, a)
    assert (
        code == 1
        and found["verdict"] == "incomplete"
        and found["unanswered"]["b"] > 0
        and found["unanswered"]["a"] == 0
    )
    text = _native.render_comparison(json.dumps(found), False, 100, False)
    assert text.startswith("finitude:   not known: gradients or NaN") and "no difference" not in text


def test_two_optimizers_come_to_other_weights(tmp_path):
    """What a step leaves in parameters is compared where traces know it, by whichever operators it was computed."""
    reports = []
    for name, text in (
        ("sgd", "SGD(model.parameters(), lr=0.01)"),
        ("adam", "AdamW(model.parameters(), lr=0.01)"),
        ("loop", "AdamW(model.parameters(), lr=0.01, foreach=False)"),
        ("foreach", "AdamW(model.parameters(), lr=0.01, foreach=True)"),
    ):
        (tmp_path / name).mkdir()
        text = script().replace("SGD(model.parameters(), lr=0.0)", text).replace("range(3)", "range(1)")
        reports.append(tmp_path / f"{name}.json")
        reports[-1].write_text(json.dumps(helpers.run(tmp_path / name, text, "--level", "trace").report))
    code, found = compare(*reports[:2])
    assert code == 1 and found["verdict"] == "divergence" and found["divergence"]["kind"] == "operators", found[
        "divergence"
    ]
    code, found = compare(*reports[2:])
    assert code == 0 and found["verdict"] in ("same", "noise"), found["divergence"]
    assert found["results"]["compared"] >= 6


def test_the_capsules_of_two_runs(tmp_path):
    """Both end in a division by zero; they part where the argument differs, and the line is reported."""
    folders = []
    for name, eps in (("a", "1e-5"), ("b", "1e-1")):
        folder = tmp_path / name
        folder.mkdir()
        alarm = helpers.run(folder, script(EPS=eps)).the_alarm()
        folders.append(folder / alarm["capsule"])
    code, found = compare(*folders)
    there = found["divergence"]
    assert code == 1 and there["kind"] == "argument" and there["at"]["a"]["op"] == "aten::native_layer_norm", found[
        "divergence"
    ]
    line = FAILING.strip().splitlines().index("    h = F.layer_norm(h, (8,), eps=EPS)") + 1
    assert (there["at"]["a"]["line"], there["at"]["b"]["line"]) == (line, line)
    # NaN is equal to nothing, and not counted as the same.
    assert found["results"]["same"] == 1 and found["results"]["nan_in_both"] > 0 and found["alignment"]["same_nan"] > 0
    text = _native.render_comparison(json.dumps(found), False, 200, False)
    assert "1 of 7 have the same bits, 5 of 7" in text and "hold NaN on both sides" in text, text
    assert found["both_non_finite"]["a"]["op"] == "aten::div" or found["both_non_finite"]["a"]["op"] == "aten::div_"
    code, found = compare(folders[0], folders[0])
    assert (code, found["verdict"]) == (0, "same")
    # Against the trace of that step: by what the capsule's run traced, in which operators are as they were called.
    (tmp_path / "trace").mkdir()
    assert helpers.run(tmp_path / "trace", script(EPS="1e-5"), "--level", "trace").the_alarm()
    code, found = compare(folders[0], tmp_path / "trace" / "report.json")
    assert (code, found["by_statistics"]) == (0, True), found["divergence"]
    assert not any(d["group"] in ("flags", "seeds") for d in found["about"]), found["about"]


def test_a_capsule_and_a_trace(capsules, tmp_path):
    """One of each goes by statistics; of different programs it says so."""
    code, found = compare(capsules[0], traced(tmp_path / "t"))
    assert code == 1 and found["alignment"]["only_a"] > 0


def test_a_report_without_a_trace(capsules, tmp_path):
    report = helpers.run(tmp_path, script()).report
    (tmp_path / "plain.json").write_text(json.dumps(report))
    result = helpers.finitude(tmp_path, "diff", str(tmp_path / "plain.json"), capsules[0])
    assert result.code == 4 and "--level trace" in result.err


LOSSES = """
import torch
torch.manual_seed(1)
model = torch.nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
x = torch.randn(3, 8, 6)
for i in range(3):
    optimizer.zero_grad()
    for k in range(3):  # three losses of one name
        h = torch.tanh(model(x[k])) * (SCALE if k == 1 else 1.5)
        (torch.log(h.abs() * (i < 2 or k < 2)).sum() / (k + 1)).backward()
    optimizer.step()
"""


def test_several_losses_of_one_step(tmp_path):
    """Each replaces the one at its place, and where results part that is done of a call."""
    sides = []
    for name, scale in (("a", 1.5), ("again", 1.5), ("b", 1.75)):
        (tmp_path / name).mkdir()
        sides.append(
            tmp_path / name / helpers.run(tmp_path / name, LOSSES.replace("SCALE", str(scale))).the_alarm()["capsule"]
        )
    assert [o["name"] for o in _outcomes(tmp_path, sides[0])].count("loss") == 3
    code, found = compare(*sides[:2])
    assert code == 0 and found["verdict"] == "same" and found["results"]["differing"] == [], found["results"]
    code, found = compare(sides[0], sides[2])
    assert (
        code == 1 and found["divergence"]["kind"] == "argument" and found["divergence"]["at"]["a"]["op"] == "aten::mul"
    )
    assert [r["name"] for r in found["results"]["differing"] if r["kind"] == "loss"] == ["loss"], found["results"]


def _outcomes(folder, capsule):
    file = folder / "results.safetensors"
    assert helpers.finitude(folder, "replay", str(capsule), "--save-tensors", str(file)).code == 0
    data = file.read_bytes()
    names = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return [{"name": name.partition("#")[0]} for name in names]
