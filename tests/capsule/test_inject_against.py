"""`finitude replay CAPSULE --with CHANGED --against UNCHANGED`: a change is a fix only where the values that the birth
did not touch keep their bits."""

import json
import random
import shlex

import pytest
import torch
from torch import nn

import helpers
from finitude.cli import untouched
from finitude.launch import aligned, step_values
from inject_support import FIXED, LOADER, Captured

BIRTH = "weight = torch.log(x.sum(1, keepdim=True))"
RETURNED = "return (weight * model(x) - y).pow(2).mean()"


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    return Captured(tmp_path_factory.mktemp("against"), LOADER.replace("WORKERS", "0"))


def against(captured, old, new, *words):
    assert captured.script.count(old) == 1
    helpers.write_script(captured.folder, captured.script.replace(old, new), "changed.py")
    helpers.write_script(captured.folder, captured.script)
    words = ("--with", "changed.py", "--against", "train.py", "--json", *words)
    done = helpers.finitude(captured.folder, "replay", captured.capsule, *words)
    return done.code, json.loads(done.out), done


def test_change_that_keeps_other_values_fixes(captured):
    code, answer, done = against(captured, BIRTH, "weight = torch.log(x.sum(1, keepdim=True).clamp(min=1e-30))")
    assert (code, answer["verdict"], answer["fix"], answer["objection"]) == (0, "fixed", True, ""), done.text()
    values = answer["values"]
    assert values["kept"] > 400 and values["changed"] == values["not_compared"] == 0, values
    assert "aten::clamp" in values["added"] and not values["missing"] and not values["hidden"]


CHANGES = {
    "an epsilon in every sample": (BIRTH, "weight = torch.log(x.sum(1, keepdim=True) + 0.01)", "changed"),
    "the value is replaced behind its birth": (BIRTH, BIRTH[:-1].replace("torch.log", "torch.nan_to_num(torch.log")
                                               + "), neginf=0.)", "hides them"),
    "the loss is replaced": (RETURNED, RETURNED + ".nan_to_num(posinf=0.)", "not fixed"),
    "the computation is taken out": (BIRTH, "weight = x.sum(1, keepdim=True)", "changed"),
    "the computation is another": (RETURNED, "return (model(x) - y).abs().mean()", "hides them"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_finite_step_alone_is_no_fix(captured, what):
    old, new, why = CHANGES[what]
    code, answer, done = against(captured, old, new)
    assert (code, answer["fix"]) == (1, False), done.text()
    assert why in answer["objection"] if answer["verdict"] == "fixed" else why == answer["verdict"], done.text()


def test_what_it_prints(captured):
    against(captured, *FIXED)
    words = ("--with", "changed.py", "--against", "train.py")
    done = helpers.finitude(captured.folder, "replay", captured.capsule, *words)
    assert done.code == 1 and done.out.startswith("no fix: loss "), done.text()
    assert "values that the birth did not touch changed" in done.out


def test_a_program_that_does_not_fail_proves_nothing(captured):
    helpers.write_script(captured.folder, captured.script.replace(*FIXED), "changed.py")
    words = ("--with", "changed.py", "--against", "changed.py", "--json")
    done = helpers.finitude(captured.folder, "replay", captured.capsule, *words)
    answer = json.loads(done.out)
    assert (done.code, answer["verdict"], answer["fix"]) == (4, "refused", False), done.text()
    assert "the unchanged program does not fail here" in answer["text"]


def test_a_change_that_does_not_help(captured):
    code, answer, done = against(captured, BIRTH, BIRTH + " * 1.0")
    assert (code, answer["verdict"], answer["fix"]) == (1, "not fixed", False), done.text()


FIRST = """
import torch
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.rand(6, 4)
x[2] = 0
opt.zero_grad()
(model(x) * torch.log(x.sum(1, keepdim=True))).sum().backward()
opt.step()
"""


def test_first_step_without_a_loader(tmp_path):
    captured = Captured(tmp_path, FIRST)
    assert captured.alarm["step"] == 0
    code, answer, done = against(
        captured, "torch.log(x.sum(1, keepdim=True))", "torch.log(x.sum(1, keepdim=True).clamp(min=1e-9))"
    )
    assert (code, answer["fix"], answer["way"]) == (0, True, "start"), done.text()
    code, answer, done = against(
        captured, "torch.log(x.sum(1, keepdim=True))", "torch.log(x.sum(1, keepdim=True).clamp(min=1.7))"
    )
    assert (code, answer["fix"]) == (1, False) and "aten::log" in answer["objection"], done.text()


def test_a_copy_that_is_not_the_one_imported(captured):
    """The file that was changed is a copy, and the program imports the original all the same."""
    helpers.write_script(captured.folder, captured.script)
    original = str(captured.folder / "train.py")
    words = ("--with", "train.py", "--against", shlex.quote(original), "--instead-of", original, "--json")
    done = helpers.finitude(captured.folder, "replay", captured.capsule, *words)
    assert done.code == 4 and "itself and not its changed copy" in json.loads(done.out)["text"], done.text()


# -- the parts, in this process ----------------------------------------------------------------


def recorded(path, step):
    recorder = step_values.Recorder(str(path))
    recorder.start()
    try:
        step()
    finally:
        recorder.end()
    assert not recorder.trouble
    return recorder


def judged(tmp_path, before, after, birth=None):
    recorded(tmp_path / "a", before)
    recorded(tmp_path / "b", after)
    values = step_values.Held(str(tmp_path / "a"), str(tmp_path / "b")).compared(birth)
    return values, untouched.objection(values)


X = torch.arange(15.0).reshape(5, 3) / 10 + 0.5
X[3, 1] = 0


def backward_of(function):
    def step():
        torch.manual_seed(4)
        model = nn.Linear(3, 3)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(0.25)
        function(model, X.clone()).backward()

    return step


def test_the_same_step_has_the_same_values(tmp_path):
    step = backward_of(lambda model, x: (model(x) * x.log()).sum())
    values, why = judged(tmp_path, step, step)
    assert values["changed"] == 0 and not values["missing"] and not values["added"]
    assert why == "", "without the birth, all that is compared is as before"


def test_only_values_in_touched_rows_may_change(tmp_path):
    before = backward_of(lambda model, x: (model(x) * x.log()).sum())
    for floor, changed in ((1e-6, False), (0.7, True)):
        values, why = judged(tmp_path, before, backward_of(lambda m, x, f=floor: (m(x) * x.clamp(min=f).log()).sum()))
        assert bool(values["changed"]) == changed == bool(why), (floor, why)


def test_result_of_absorbing_operation_is_touched(tmp_path):
    """-Inf becomes a finite 0 in exp: a fix may change it, in its row; not what lies in other rows."""
    before = backward_of(lambda model, x: (model(x) * x.log().exp() / x.log()).sum() * float("nan"))
    after = backward_of(
        lambda model, x: (model(x) * x.clamp(min=1e-3).log().exp() / x.clamp(min=1e-3).log()).sum() * float("nan")
    )
    values, _ = judged(tmp_path, before, after)
    assert values["changed"] == 0 and values["kept"] > 20


def test_integers_made_of_bad_values_are_touched(tmp_path):
    def before():
        bad = X.log()
        return torch.isfinite(bad).sum() + bad.argmin()

    def after():
        good = X.clamp(min=1e-3).log()
        return torch.isfinite(good).sum() + good.argmin()

    assert judged(tmp_path, before, after)[0]["changed"] == 0


def test_removed_computation_is_not_compared(tmp_path):
    before = backward_of(lambda model, x: (model(x) * x.log()).sum() + (x * 3).exp().sum())
    after = backward_of(lambda model, x: (model(x) * x.clamp(min=1e-3).log()).sum())
    values, why = judged(tmp_path, before, after)
    assert "aten::exp" in values["missing"] and "aten::exp" in why and "not in the changed program" in why


def test_values_beyond_the_limit_are_not_vouched_for(tmp_path, monkeypatch):
    monkeypatch.setattr(step_values, "MOST_BYTES", 100)
    step = backward_of(lambda model, x: (model(x) * x.log()).sum())
    _, why = judged(tmp_path, step, step)
    assert "could not be compared" in why


def test_rounding_is_said_to_be_rounding(tmp_path):
    def sums(order):
        return lambda: torch.rand(64, 64, generator=torch.Generator().manual_seed(1))[:, order].sum(1)

    values, why = judged(tmp_path, sums(torch.arange(64)), sums(torch.arange(63, -1, -1)))
    assert values["changed"] and "changed" in why  # the indexed copies differ, and not by rounding


def test_a_longest_common_subsequence_is_found():
    draw = random.Random(5)
    for _ in range(500):
        a, b = ([draw.choice("abc") for _ in range(draw.randrange(10))] for _ in range(2))
        pairs = aligned._common(a, b, 100)
        assert all(a[i] == b[j] for i, j in pairs)
        assert all(i < k and j < m for (i, j), (k, m) in zip(pairs, pairs[1:]))
        table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
        assert len(pairs) == table[-1][-1]


def test_equal_values_are_paired_before_equal_forms():
    form, values_a, values_b = ["f"] * 3, [1, 2, 3], [9, 1, 2, 3]
    assert aligned.aligned(values_a, values_b, form, ["f"] * 4) == [(0, 1), (1, 2), (2, 3)]
    assert aligned.aligned([1, 2, 3], [1, 5, 3], form, form) == [(0, 0), (1, 1), (2, 2)]


def test_unrelated_programs_are_aligned_in_bounded_time():
    a, b = [*range(20_000)], [*range(20_000, 40_000)]
    assert aligned._common(a, b, 50) == []
