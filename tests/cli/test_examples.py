"""The programs in examples/: healthy ones train as if nobody watched, faulty ones are stopped and explained."""

import functools
import pathlib
import re

import pytest

import helpers
from plain_runs import plain_runs

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"

# name: script, its arguments, options of `finitude run`, what the birth must be: op, source text, module, cause class.
# Where a half precision is involved its own class wins (1 - p rounds to zero there long before float32 would).
PROGRAMS = {
    "plain_loop": ("plain_loop.py", [], [], "aten::div", "return rows / length", "Sequential.0", "division-by-zero"),
    "trainer": ("trainer.py", [], [], "aten::div", "mean = total / count", "", "division-by-zero"),
    "bare_loop": (
        "bare_loop.py",
        [],
        [],
        "aten::_softmax",
        "weights = F.softmax(scores, dim=-1)",
        "Model.blocks.0.attention",
        "fully-masked-softmax",
    ),
    "gan": ("gan.py", [], [], "aten::div", "spread = x.var(dim=0).sqrt()", "Discriminator.spread", "domain-edge"),
    "gan-traced": (
        "gan.py",
        [],
        ["--level", "trace"],
        "aten::div",
        "spread = x.var(dim=0).sqrt()",
        "Discriminator.spread",
        "domain-edge",
    ),
    "rnn": (
        "rnn.py",
        [],
        [],
        "aten::exp",
        "fading = torch.exp(-rate * gaps[:, t, None])",
        "Forecaster.memory",
        "exp-overflow",
    ),
    "bfloat16": (
        "mixed_precision.py",
        [],
        [],
        "aten::log",
        "return -(labels * torch.log(p) + (1 - labels) * torch.log(rest)).mean()",
        "HandMade",
        "half-precision-underflow",
    ),
    "float16": (
        "mixed_precision.py",
        ["--dtype", "float16"],
        [],
        "aten::log",
        "return -(labels * torch.log(p) + (1 - labels) * torch.log(rest)).mean()",
        "HandMade",
        "half-precision-underflow",
    ),
}


def first_bad_step(out):
    """The step of the first printed value that is not finite."""
    for line in out.splitlines():
        if re.search(r"\b(nan|inf)\b", line):
            return int(line.split()[1])
    return None


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The same programs unwatched: healthy, faulty to the end, and faulty until just before the bad step."""
    folder = tmp_path_factory.mktemp("plain")
    jobs = {"digits": [EXAMPLES / "digits.py"]}
    for name, (script, arguments, *_) in PROGRAMS.items():
        jobs[name, "healthy"] = [EXAMPLES / script, "--hash", *arguments]
        jobs[name, "faulty"] = [EXAMPLES / script, "--fault", *arguments]
    found = unkeyed(folder, jobs)
    before = {}
    for name, (script, arguments, *_) in PROGRAMS.items():
        bad = first_bad_step(found[name, "faulty"][1])
        assert bad, f"the fault of {name} has to show after the first step: {bad}"
        before[name, "before"] = [EXAMPLES / script, "--fault", "--hash", "--steps", bad, *arguments]
    return {**found, **unkeyed(folder, before)}


def unkeyed(folder, jobs):
    """plain_runs with any keys."""
    found = plain_runs(folder, {str(key): words for key, words in jobs.items()})
    return {key: found[str(key)] for key in jobs}


def watched(folder, name, *more):
    script, arguments, options, *_ = PROGRAMS[name]
    return helpers.finitude(
        folder, "run", "--report", "report.json", *options, str(EXAMPLES / script), "--hash", *arguments, *more
    )


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A faulty program under watch, run once: faulty(name)."""
    return functools.cache(lambda name: watched(tmp_path_factory.mktemp(name), name, "--fault"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_healthy_program_is_silent_and_bit_identical(tmp_path, plain, name):
    run = watched(tmp_path, name)
    run.assert_silent()
    assert run.watched["steps"] >= 20 and run.watched["gradients_scanned"] > run.watched["steps"], run.text()
    code, out = plain[name, "healthy"]
    assert code == 0 and out.splitlines()[-1].startswith("weights "), out
    assert run.out == out  # every loss, and the hash of the weights


@pytest.mark.parametrize("name", PROGRAMS)
def test_faulty_program_is_stopped_and_explained(faulty, plain, name):
    _, _, _, op, source, module, cause = PROGRAMS[name]
    run = faulty(name)
    assert run.code == 1 and "NonFiniteError" in run.err, run.text()
    alarm = run.the_alarm()
    assert alarm["step"] == first_bad_step(plain[name, "faulty"][1])
    birth = alarm["births"][0]
    assert (birth["op"], birth["source"], birth["module"]) == (op, source, module), birth
    assert pathlib.Path(birth["file"]) == EXAMPLES / PROGRAMS[name][0]
    assert source in pathlib.Path(birth["file"]).read_text().splitlines()[birth["line"] - 1]
    assert alarm["cause"]["class"] == cause, alarm["cause"]
    if name == "gan-traced":  # nothing had to be run again
        assert (alarm["rerun"], alarm["rerun_by"]) == ("not-run", "trace"), alarm["rerun_text"]
    else:
        assert (alarm["rerun"], alarm["rerun_verified"]) == ("persistent", True), alarm["rerun_text"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_stopped_program_keeps_weights_before_the_bad_step(faulty, plain, name):
    run = faulty(name)
    assert run.the_alarm()["weights"] == "clean"
    code, out = plain[name, "before"]
    assert code == 0
    assert run.out.splitlines()[-1] == out.splitlines()[-1]  # "weights HASH"


def test_gan_fault_is_gradient_birth_in_discriminator(faulty):
    alarm = faulty("gan").the_alarm()
    birth = alarm["births"][0]
    assert (birth["phase"], birth["node"]) == ("backward", "SqrtBackward0"), birth
    assert birth["forward"]["op"] == "aten::sqrt", birth
    assert alarm["sink"]["kind"] == "gradient" and alarm["sink"]["name"].startswith("first."), alarm["sink"]


def test_demo_on_real_data_names_logarithm_in_head(tmp_path, plain):
    run = helpers.finitude(tmp_path, "run", "--report", "report.json", str(EXAMPLES / "digits.py"))
    assert run.code == 1, run.text()
    alarm = run.the_alarm()
    assert 20 <= alarm["step"] < 450, "the bug is to show after tens or hundreds of steps"
    birth = alarm["births"][0]
    assert (birth["op"], birth["source"], birth["module"]) == ("aten::log", "logp = torch.log(p)", "Classifier.head")
    assert (alarm["cause"]["class"], alarm["cause"]["confidence"]) == ("log-of-zero", "proven")
    assert "log_softmax" in alarm["fix"]["text"] and alarm["fix"]["line"] in (birth["line"], birth["line"] - 1)
    assert alarm["weights"] == "clean"
    # The unwatched run: the same words up to the alarm, and its first NaN printed just after it.
    assert plain["digits"][1].startswith(run.out) and "nan" not in run.out
    assert first_bad_step(plain["digits"][1]) in range(alarm["step"], alarm["step"] + 10)


def test_the_examples_are_ordinary_programs():
    for script in sorted(EXAMPLES.glob("*.py")):
        text = script.read_text(encoding="ascii")
        assert not re.search(r"import finitude|from finitude|float\(.nan.\)|torch\.nan|math\.nan", text), script


def test_a_mean_of_nothing_has_no_limit(faulty):
    alarm = faulty("trainer").the_alarm()
    shown = alarm["cause"]["text"] + alarm["fix"]["text"]
    assert "limit" not in shown and ".clamp(min=1)" in shown, shown
    assert alarm["fix"]["verified"] and "+        mean = total / count.clamp(min=1)" in alarm["fix"]["diff"], alarm[
        "fix"
    ]
