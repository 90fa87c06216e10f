"""The variants of zoo cases: what they change, what they must leave alone, and what a case has to declare."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from zoo import cases, plain, variants

CASES = cases.load()
BY_ID = {case.id: case for case in CASES}


def numbers(tree):
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) in (int, float)]


def kinds(tree):
    return [type(n).__name__ for n in ast.walk(tree)]


def seeds(source):
    return [node.value for node in variants.seed_arguments(ast.parse(source))]


@pytest.mark.fast
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.slug)
def test_every_case_declares_what_may_vary(case):
    vary = case.expected["vary"]
    if "none" in vary:
        assert set(vary) == {"none"} and len(vary["none"]) > 20
        return
    assert {"seed", "sizes"} <= set(vary) <= {"seed", "sizes", "step", "rows"}
    reason = [value for value in (vary["seed"], vary["sizes"]) if isinstance(value, str)]
    assert len(reason) < 2 and all(len(text) > 20 for text in reason)
    assert vary["seed"] is True or type(vary["seed"]) in (int, str)
    assert vary["sizes"] and type(vary.get("step", 0)) is int
    assert vary.get("step") != case.expected.get("step") or "step" not in vary, "say only what differs"
    assert case.positive or "step" not in vary


@pytest.mark.fast
def test_most_cases_vary():
    sized = [case for case in CASES if isinstance(case.expected["vary"].get("sizes"), list)]
    seeded = [case for case in CASES if case.expected["vary"].get("seed", "") is True]
    assert sum(case.positive for case in sized) >= 60
    assert sum(not case.positive for case in sized) >= 20
    assert len(seeded) >= 0.85 * len(CASES)


@pytest.mark.fast
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.slug)
def test_varied_source_differs_only_in_what_is_declared(case):
    declared, old = case.expected["vary"], case.script.read_text()
    new, expected = variants.vary(case, 3)
    assert new.count("\n") == old.count("\n")
    moved = {key: declared[key] for key in ("step", "rows") if key in declared}
    assert expected == {**case.expected, **moved}
    assert expected["vary"] == declared
    if "none" in declared:
        assert new == old
        return
    if not isinstance(declared["seed"], str):
        assert len(seeds(old)) == len(seeds(new)) > 0
        assert not set(seeds(old)) & set(seeds(new))
    if isinstance(declared["sizes"], list):
        unseeded = replace(case, expected={**case.expected, "vary": {**declared, "seed": "as it was"}})
        same_seed = variants.vary(unseeded)[0]
        assert seeds(same_seed) == seeds(old)
        assert numbers(ast.parse(same_seed)) != numbers(ast.parse(old))
    called = [
        sorted(
            getattr(n.func, "attr", getattr(n.func, "id", ""))
            for n in ast.walk(ast.parse(s))
            if isinstance(n, ast.Call)
        )
        for s in (old, new)
    ]
    assert called[0] == called[1], "a variation changes numbers, not what is computed"


@pytest.mark.fast
@pytest.mark.parametrize(
    "replacements, problem",
    [
        ([["randn(9, 9)", "randn(8, 8)"]], "occurs 0 times, not 1"),
        ([["randn(4, 3)", "randn(5, 3)"]], "occurs 2 times, not 1"),
        ([["randn(4, 3)", "randn(5, 3)", 3]], "occurs 2 times, not 3"),
        ([["zeros(4)", "zeros(4)"]], "changes nothing"),
        ([["zeros(4)", "zeros(\n4)"]], "moves lines"),
        ([["zeros(4)", "zeros(5)"], ["x = zeros(4)", "x = zeros(6)"]], "overlaps"),
    ],
)
def test_replacement_that_does_not_fit_is_an_error(replacements, problem):
    source = "x = zeros(4)\na = randn(4, 3)\nb = randn(4, 3)\n"
    with pytest.raises(ValueError, match=problem):
        variants.change_sizes(source, replacements)


@pytest.mark.fast
def test_replacements_apply_to_the_original_text_at_once():
    source = "a = randn(4, 3)\nb = randn(3, 4)\n"
    changed = variants.change_sizes(source, [["randn(4, 3)", "randn(3, 4)"], ["randn(3, 4)", "randn(4, 3)"]])
    assert changed == "a = randn(3, 4)\nb = randn(4, 3)\n"
    assert variants.change_sizes("f(2), f(2)", [["f(2)", "f(30)", 2]]) == "f(30), f(30)"


@pytest.mark.fast
def test_only_calls_that_seed_are_found():
    source = (
        "torch.manual_seed(0)\nnp.random.seed(1)\nrandom.seed(a=2)\ng = torch.Generator().manual_seed(3)\n"
        "r = np.random.default_rng(seed=4)\ntorch.cuda.manual_seed_all(5); q = random.Random(6)\n"
        "s = np.random.RandomState(7)\nmanual_seed(8)\ntorch.manual_seed(step)\nseeds = 9\nplant(10)\n"
    )
    assert sorted(seeds(source)) == list(range(9))
    changed = variants.change_seeds(source, lambda old: old + 1000)
    assert sorted(seeds(changed)) == list(range(1000, 1009))
    assert changed.count("\n") == source.count("\n")
    assert changed.endswith("torch.manual_seed(step)\nseeds = 9\nplant(10)\n")
    assert "random.seed(a=1002)" in changed


@pytest.mark.fast
def test_variant_seeds_differ_unless_pinned():
    drawn = next(case for case in CASES if case.expected["vary"].get("seed") is True)
    assert seeds(variants.vary(drawn, 0)[0]) != seeds(variants.vary(drawn, 1)[0])
    pinned = replace(drawn, expected={**drawn.expected, "vary": {**drawn.expected["vary"], "seed": 41}})
    assert set(seeds(variants.vary(pinned, 0)[0])) == set(seeds(variants.vary(pinned, 1)[0])) == {41}


@pytest.mark.fast
def test_declared_step_applies_only_to_the_variant(tmp_path):
    case = next(case for case in CASES if "step" in case.expected["vary"])
    other = variants.variant(case, tmp_path)
    assert other.expected["step"] == case.expected["vary"]["step"] != case.expected["step"]


@pytest.mark.fast
def test_variants_move_and_rename_but_mean_the_same(tmp_path):
    moved = renamed = 0
    for case in CASES:
        other = variants.variant(case, tmp_path)
        old, new = variants.vary(case)[0], other.script.read_text()
        moved += other.lines != case.lines
        ids = [{n.id for n in ast.walk(ast.parse(s)) if isinstance(n, ast.Name)} for s in (old, new)]
        renamed += ids[0] != ids[1]
        assert kinds(ast.parse(old)) == kinds(ast.parse(new)), case.slug
        assert numbers(ast.parse(old)) == numbers(ast.parse(new)), case.slug
        assert len(other.lines) == len(case.lines)
    assert renamed == len(CASES)
    assert moved > len(CASES) / 2


@pytest.mark.fast
def test_renamed_script_prints_the_same_as_varied_one(tmp_path):
    case = BY_ID["N41"]
    outputs = [
        subprocess.run(
            [sys.executable, str(other.script)],
            capture_output=True,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ).stdout
        for other in (variants.plain_variant(case, tmp_path / "a"), variants.variant(case, tmp_path / "b"))
    ]
    assert outputs[0] == outputs[1] != b""


@pytest.mark.fast
def test_the_plain_witness_contradicts_a_false_declaration():
    expected = {"expect": "alarm", "step": 2, "sink": ["loss", "gradient"], "micro_batch": 1}
    truth = {"step": 2, "kinds": {"loss", "gradient"}, "made": set(), "micro_batch": 1}
    assert plain.objections(truth, expected) == []
    for false in ({"step": 1}, {"step": None, "kinds": set()}, {"kinds": {"loss"}}, {"micro_batch": 0}):
        assert plain.objections({**truth, **false}, expected), false
    assert plain.objections({"error": "SyntaxError"}, expected)
    assert plain.objections(truth, {"expect": "silent"})
    assert plain.objections({**truth, "kinds": set(), "step": None}, {"expect": "silent"}) == []


@pytest.mark.fast
def test_the_plain_witness_imports_nothing_of_ours():
    code = "import sys, zoo.plain; print(json.dumps([m for m in sys.modules if m.startswith('finitude')]))"
    run = subprocess.run(
        [sys.executable, "-c", "import json; " + code],
        cwd=cases.ROOT.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == []
