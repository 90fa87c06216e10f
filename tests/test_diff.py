"""finitude diff: where two recorded steps part first."""

import json
import pathlib
import shutil

import pytest
import torch

import diff_pairs
import helpers
from finitude import _native

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
    assert diff_pairs.wrong(name, found, before, program) == "", _native.render_comparison(json.dumps(found), False, 100, False)
    assert code == (diff_pairs.PAIRS[name][1].kind != "quiet")
    # The other way round, and without memory for values: the same verdict.
    assert compare(b, a)[1]["verdict"] == found["verdict"]
    less = compare(a, b, memory=0)[1]
    if found["verdict"] == "divergence":
        assert less["divergence"]["at"] == found["divergence"]["at"] and less["values_left_out"] > 0


@pytest.fixture(scope="module")
def capsules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diff")
    return diff_pairs.make("weight", 3, folder, _native)[:2]


def test_as_text_and_json_on_the_command_line(capsules, tmp_path):
    a, b = capsules
    text = helpers.finitude(tmp_path, "diff", a, b)
    assert text.code == 1 and text.out.startswith("finitude:") and "a parameter that the step begins with" in text.out, text.told()
    assert "weight" in text.out and "ulp of float32" in text.out
    told = helpers.finitude(tmp_path, "diff", "--json", a, b)
    document = json.loads(told.out)
    assert told.code == 1 and document["verdict"] == "divergence" and document["a"] == a
    same = helpers.finitude(tmp_path, "diff", a, a)
    assert same.code == 0 and "no difference" in same.out, same.told()


def test_usage_and_input_that_cannot_be_read(capsules, tmp_path):
    a, b = capsules
    told = helpers.finitude(tmp_path, "diff", "--help")
    assert told.code == 0 and "--memory-mb" in told.out and told.err == ""
    for words in ((), (a,), (a, b, b), (a, b, "--threads"), (a, b, "--threads", "none"), (a, b, "--what")):
        assert helpers.finitude(tmp_path, "diff", *words).code == 2, words
    damaged = tmp_path / "damaged"
    shutil.copytree(b, damaged)
    tape = damaged / "tape.bin"
    tape.write_bytes(tape.read_bytes()[:-3])
    (tmp_path / "text.json").write_text("{")
    for path in (damaged, tmp_path / "nowhere", tmp_path / "text.json", tmp_path):
        result = helpers.finitude(tmp_path, "diff", a, str(path))
        assert result.code == 3 and str(path) in result.err, result.told()


def test_redacted_capsules_cannot_be_compared(capsules, tmp_path):
    about = pathlib.Path(capsules[0], "capsule.json")
    copy = tmp_path / "copy"
    shutil.copytree(capsules[0], copy)
    (copy / "capsule.json").write_text(about.read_text().replace('"redacted": false', '"redacted": true'))
    result = helpers.finitude(tmp_path, "diff", capsules[0], str(copy))
    assert result.code == 4 and "redact" in result.err


def test_what_the_recordings_say_of_themselves(capsules, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(capsules[0], copy)
    about = json.loads((copy / "capsule.json").read_text())
    about.update(torch="2.99.0", command=["train.py", "--lr", "1"], git={"commit": "abc", "branch": None},
                 environment={"OMP_NUM_THREADS": "9"}, platform=["not", 3, "text"])
    (copy / "capsule.json").write_text(json.dumps(about))
    code, found = compare(capsules[0], copy)
    assert code == 0 and found["verdict"] == "same"
    told = {d["key"]: (d["a"], d["b"]) for d in found["about"]}
    assert told["torch"] == (torch.__version__, "2.99.0") and told["command"] == ("", "train.py --lr 1")
    assert told["git"] == ("", "commit abc") and told["OMP_NUM_THREADS"] == ("", "9")


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


def traced(folder, **words):
    folder.mkdir()
    result = helpers.run(folder, script(**words), "--level", "trace")
    assert result.report["trace"]["ops"], result.told()
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


def test_the_capsules_of_two_runs(tmp_path):
    """Both end in a division by zero; they part where the argument differs, and the line is told."""
    folders = []
    for name, eps in (("a", "1e-5"), ("b", "1e-1")):
        folder = tmp_path / name
        folder.mkdir()
        alarm = helpers.run(folder, script(EPS=eps)).the_alarm()
        folders.append(folder / alarm["capsule"])
    code, found = compare(*folders)
    there = found["divergence"]
    assert code == 1 and there["kind"] == "argument" and there["at"]["a"]["op"] == "aten::native_layer_norm", found["divergence"]
    line = FAILING.strip().splitlines().index("    h = F.layer_norm(h, (8,), eps=EPS)") + 1
    assert (there["at"]["a"]["line"], there["at"]["b"]["line"]) == (line, line)
    assert found["both_non_finite"]["a"]["op"] == "aten::div" or found["both_non_finite"]["a"]["op"] == "aten::div_"
    code, found = compare(folders[0], folders[0])
    assert (code, found["verdict"]) == (0, "same")


def test_a_capsule_and_a_trace(capsules, tmp_path):
    """One of each goes by statistics; of different programs it says so."""
    code, found = compare(capsules[0], traced(tmp_path / "t"))
    assert code == 1 and found["alignment"]["only_a"] > 0


def test_a_report_without_a_trace(capsules, tmp_path):
    report = helpers.run(tmp_path, script()).report
    (tmp_path / "plain.json").write_text(json.dumps(report))
    result = helpers.finitude(tmp_path, "diff", str(tmp_path / "plain.json"), capsules[0])
    assert result.code == 4 and "--level trace" in result.err
