"""Gradients that a script's own clipping has set to zero: everything is finite, and nothing is learned."""

import pytest

from helpers import training

CLIP = {
    "in Python": """
def clip():
    total = math.sqrt(sum(float(p.grad.pow(2).sum()) for p in model.parameters()))
    for p in model.parameters():
        p.grad.mul_(min(1.0, 1.0 / total))
""",
    "with tensors": """
def clip():
    total = sum(p.grad.pow(2).sum() for p in model.parameters()).sqrt()
    for p in model.parameters():
        p.grad *= (1.0 / total).clamp(max=1.0)
""",
}

LOOP = """
opt.param_groups[0]["lr"] = 1e-30
for i in range(30):
    opt.zero_grad()
    (model(batches[i % 6]).mean() * (1e25 if FIRST <= i < LAST else 1.0)).backward()
    clip()
    opt.step()
"""


def clipped(folder, clip, first, last):
    return training(folder, "import math\n" + clip + LOOP.replace("FIRST", str(first)).replace("LAST", str(last)))


@pytest.mark.parametrize("clip", CLIP.values(), ids=CLIP)
def test_a_run_that_stopped_learning_says_so(tmp_path, clip):
    done = clipped(tmp_path, clip, 12, 30)
    assert done.code == 0 and "all finite" not in done.err, done.text()
    assert "every gradient is zero since step 12" in done.err, done.text()
    (advisory,) = [a for a in done.report["advisories"] if a["kind"] == "zero-gradients"]
    assert (advisory["step"], "in the last 18 steps" in advisory["text"]) == (12, True)
    assert "the script set them to zero before the step" in advisory["text"]


def test_zeros_that_are_over_are_none(tmp_path):
    done = clipped(tmp_path, CLIP["in Python"], 2, 14)
    assert [a["kind"] for a in done.report["advisories"]] == [] and "all finite" in done.err, done.text()


@pytest.mark.parametrize(("first", "words"), [(27, "the last 3 steps had only"), (29, "the last step had only")])
def test_few_last_zeros_are_counted(tmp_path, first, words):
    done = clipped(tmp_path, CLIP["in Python"], first, 30)
    assert f"{words} zero gradients" in done.err and "all finite" not in done.err, done.text()
    assert done.watched["zero_gradients"] == 30 - first
