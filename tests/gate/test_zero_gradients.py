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


CLIPPED_FOR_A_WHILE = {
    "swallowed-overflow": CLIP["with tensors"],
    "clipping": "\ndef clip(): nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
}


@pytest.mark.parametrize("bad, words", [("2, 3", "2 to 3"), ("2, 3, 5", "3 of the steps 2 to 5")], ids=["row", "gap"])
@pytest.mark.parametrize(("kind", "clip"), CLIPPED_FOR_A_WHILE.items(), ids=CLIPPED_FOR_A_WHILE)
def test_steps_with_zeros_are_counted_and_have_an_end(tmp_path, kind, clip, bad, words):
    done = training(tmp_path, clip + LOOP.replace("FIRST <= i < LAST", f"i in ({bad})"), "--on-alarm", "stop")
    found = [a for a in done.report["advisories"] if a["kind"] == kind]
    rows = [(a["step"], a["last_step"], a["times"]) for a in found]
    if kind == "clipping":  # one for each row
        assert rows == [(2, 3, 2), (5, 5, 1)][: len(rows)] and len(rows) == bad.count(",") and "2 to 3" in str(found)
    else:
        assert rows == [(2, int(bad[-1]), bad.count(",") + 1)] and words in found[0]["text"], done.text()
        assert "since this step" not in done.err and "in step 2 aten::" in found[0]["text"], done.text()
