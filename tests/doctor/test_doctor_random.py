"""--random lists who draws random numbers; --repeat runs the first steps more than twice."""

import textwrap

from doctor_support import TRAINING, examine, found, line_of

DRAWS = TRAINING + textwrap.dedent("""
    import random
    import numpy
    own = torch.Generator().manual_seed(5)
    drop = nn.Dropout(0.5)
    for i in range(3):
        order = random.sample(range(16), 16)  # python
        noise = numpy.random.rand(2)  # numpy
        z = drop(x) + torch.randn(16, 8, generator=own)  # own
        if i == 1:
            torch.rand(1), torch.rand(1)  # later
        opt.zero_grad()
        F.cross_entropy(model(z), y).backward()
        opt.step()
""")


def test_random_lists_calls_in_their_order(tmp_path):
    code, document, err = examine(tmp_path, DRAWS, "--random")
    calls = document["random"]
    assert code == 0 and not document["trouble"], err
    assert calls[0]["op"] == "torch.manual_seed(0)" and calls[0]["by_step"] == {"0": 1}
    by_line = {one["at"][1]: one for one in calls}
    python, numpy, own, later = (by_line[line_of(DRAWS, f"# {mark}")] for mark in ("python", "numpy", "own", "later"))
    assert (python["op"], python["generator"]) == ("random.sample", "random, global")
    assert (numpy["op"], numpy["generator"]) == ("numpy.random.rand", "numpy.random, global")
    assert numpy["by_step"] == {"0": 1, "1": 1} and later["by_step"] == {"1": 2}
    at_own = {one["generator"] for one in calls if one["at"][1] == own["at"][1]}
    assert at_own == {"torch, default of cpu", "torch.Generator of cpu, seed 5"}  # dropout, and randn
    lines = [one["at"][1] for one in calls]
    assert lines.index(python["at"][1]) < lines.index(numpy["at"][1]) < lines.index(own["at"][1])


def test_repeat_compares_every_run_with_the_first(tmp_path):
    # The third run and no other differs: each leaves a file.
    text = DRAWS + ""
    text = text.replace(
        "for i in range(3):",
        "import os, glob\nopen(f'ran-{os.getpid()}', 'w').close()\n"
        "x = x + (len(glob.glob('ran-*')) > 2)\nfor i in range(3):",
    ).replace("numpy.random.rand(2)", "0")
    text = text.replace("random.sample(range(16), 16)", "0")
    _, document, _ = examine(tmp_path, text, "--twice")
    (same,) = [f for f in found(document, "P19") if "two runs" in f["text"]]
    assert same["evidence"]["reproducible"] is True
    for left in tmp_path.glob("ran-*"):
        left.unlink()
    _, document, _ = examine(tmp_path, text, "--repeat", "3")
    (differs,) = [f for f in found(document, "P19") if "3 runs differ" in f["text"]]
    assert differs["evidence"]["reproducible"] is False
