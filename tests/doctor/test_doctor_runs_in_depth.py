"""What the checks report of a run in depth: experiments of its alarms, descriptions of its capsules, the course of its
steps."""

import json
import random

import pytest
from test_doctor_runs import alarm, report, ring, with_steps  # noqa: F401  ring is a fixture

from doctor_support import TRAINING, doctor, found
from helpers import finitude, run

FLAGS = {
    "matmul_precision": "highest",
    "tf32_matmul": False,
    "tf32_cudnn": True,
    "deterministic": False,
    "anomaly_mode": False,
    "fill_uninitialized_memory": True,
    "cudnn_benchmark": False,
}


def with_experiments(one, *experiments):
    one["cause"]["experiments"] = [{"name": name, "outcome": outcome} for name, outcome in experiments]
    return one


def capsule(folder, one=None, **more):
    """A description of a capsule: what the doctor reads of one; without a tape."""
    folder.mkdir(parents=True)
    one = one or alarm()
    about = {
        "schema": 1,
        "kind": "finitude capsule",
        "step": one["step"],
        "rank": 0,
        "optimizer": "SGD",
        "alarm": one,
        "files": {},
        "flags": FLAGS,
        "start": {"scaler": None},
        **more,
    }
    (folder / "capsule.json").write_text(json.dumps(about))
    return str(folder)


FINITE, NOT = "loss and gradients finite", "not finite: loss"
ALARMS = {
    "half precision that more precision cures": (
        "P1",
        "bad",
        "in float64 is finite",
        lambda: with_experiments(
            alarm(cause="half-precision-overflow", dtype="float16"), ("whole step in float64", FINITE)
        ),
    ),
    "half precision that more precision does not cure": (
        "P1",
        "note",
        "the model or the data",
        lambda: with_experiments(
            alarm(cause="half-precision-overflow", dtype="float16"), ("whole step in float64", NOT)
        ),
    ),
    "bfloat16 where the cause is another, cured by precision": (
        "P1",
        "warn",
        "in float64 is finite",
        lambda: with_experiments(alarm(cause="division-by-zero", dtype="bfloat16"), ("whole step in float64", FINITE)),
    ),
    "what the birth was given, and a remedy": (
        "P8",
        "bad",
        "self 0 to 1",
        lambda: alarm(cause="log-of-zero", op="aten::log"),
    ),
    "a birth in backward": (
        "P9",
        "note",
        "forward hooks are not called",
        lambda: alarm(cause="domain-edge", phase="backward"),
    ),
    "a birth outside of modules": ("P9", "note", "outside of any module", lambda: alarm(cause="log-of-zero")),
    "samples without which the birth is": (
        "P11",
        "note",
        "single samples make it fail",
        lambda: with_experiments(
            alarm(cause="log-of-zero"),
            ("step up to the birth, sample 1 of 4 replaced by a copy of sample 0", "what is born there is finite"),
        ),
    ),
    "samples of a batch without which it is finite": (
        "P11",
        "note",
        "single samples make it fail, samples 1, 3 of the batch; without them: loss",
        lambda: with_experiments(
            alarm(cause="overflow"), ("whole step, samples 1, 3 of 4 replaced by a copy of sample 0", FINITE)
        ),
    ),
    "samples without which it is finite": (
        "P11",
        "note",
        "single samples make it fail, sample 1 of the batch; without them: loss",
        lambda: with_experiments(
            alarm(cause="overflow"), ("whole step, sample 1 of 4 replaced by a copy of sample 0", FINITE)
        ),
    ),
    "other bits when computed again": (
        "P19",
        "warn",
        "other bits in 2 runs",
        lambda: with_experiments(alarm(), ("whole step, again as it was, 3 times", "other bits in 2 runs")),
    ),
}


@pytest.mark.parametrize("case", ALARMS.values(), ids=ALARMS)
def test_speaks_of_an_alarm_with(tmp_path, case):
    check, verdict, word, made = case
    code, document, err = doctor(tmp_path, report(tmp_path, [made()]))
    (finding,) = found(document, check)
    assert finding["verdict"] == verdict and word in finding["text"], (finding, err)
    assert check != "P8" or finding["advice"] and finding["evidence"]["inputs"][0]["dtype_max"] > 3e38


def test_module_birth_with_reproducible_bits_gives_no_finding(tmp_path):
    one = with_experiments(
        alarm(),
        ("whole step, again as it was, 3 times", "the same bits each time"),
        (
            "whole step, samples 0, 1 of 4 replaced by a copy of sample 3",
            FINITE + "; none of them alone makes the step fail",
        ),
    )
    one["births"][0]["module"] = "Net.head"
    assert doctor(tmp_path, report(tmp_path, [one]))[1]["findings"] == []


def test_a_sample_that_fails_again_is_the_data(tmp_path):
    alarms = [alarm(step=n) for n in (3, 90, 91)]
    for one, samples in zip(alarms, ([17, 4], [17], [8])):
        one["births"][0].update(samples=samples, rows=list(range(len(samples))), module="Net")
    code, document, _ = doctor(tmp_path, report(tmp_path, alarms))
    (finding,) = found(document, "P11", ("bad",))
    assert any("in sample 17 of the data set" in one["text"] for one in found(document, "P11", ("note",)))
    assert (
        code == 1
        and "sample 17" in finding["text"]
        and "3, 90" in finding["text"]
        and finding["evidence"]["samples"] == [17]
    )
    assert len(found(document, "P11", ("note",))) == 3  # each names the samples of its birth
    _, document, _ = doctor(tmp_path, report(tmp_path, alarms[1:]))
    assert not found(document, "P11", ("bad",))


CAPSULES = {
    "ranks with other settings": (
        "P2",
        "warn",
        "tf32_matmul was False",
        [{}, {"flags": {**FLAGS, "tf32_matmul": True}, "rank": 1}],
    ),
    "settings that torch could not report": ("P2", "warn", "could not report", [{"flags": {"deterministic": False}}]),
    "a scale beside bfloat16": (
        "P6",
        "note",
        "bfloat16",
        [{"start": {"scaler": {"scale": 65536.0}}, "flags": {**FLAGS, "autocast": "bfloat16"}}],
    ),
    "anomaly mode": ("P9", "warn", "anomaly mode was on", [{"flags": {**FLAGS, "anomaly_mode": True}}]),
    "a loss scale that has fallen": ("P10", "bad", "fallen to 0.25", [{"start": {"scaler": {"scale": 0.25}}}]),
    "a scale that nothing lowers": (
        "P14",
        "warn",
        "did not lower it",
        [{"step": 3, "start": {"scaler": {"scale": 1024.0}}}, {"step": 4, "start": {"scaler": {"scale": 1024.0}}}],
    ),
}


@pytest.mark.parametrize("case", CAPSULES.values(), ids=CAPSULES)
def test_speaks_of_a_run_whose_capsules_have(ring, tmp_path, case):  # noqa: F811
    check, verdict, word, capsules = case
    folder = tmp_path / "run"
    for i, more in enumerate(capsules):
        one = alarm()
        one["births"][0]["module"] = "Net"
        capsule(folder / f"rank-{i}" / f"step-{i:06d}", one, **more)
        (folder / f"rank-{i}" / "steps.ring").write_bytes(ring.read_bytes())
    (folder / "report.json").write_text(open(report(tmp_path)).read())
    code, document, err = doctor(tmp_path, str(folder))
    (finding,) = document["findings"]
    assert (finding["check"], finding["verdict"]) == (check, verdict) and word in finding["text"], err


def test_settings_with_new_names_are_recognised(tmp_path):
    capsule(tmp_path / "run/step-000001", flags={"fp32_precision_cuda_matmul": "tf32"}, step=1)
    (tmp_path / "run/report.json").write_text(open(report(tmp_path)).read())
    assert doctor(tmp_path, str(tmp_path / "run"))[1]["findings"] == []


def test_silent_on_capsules_of_a_healthy_loop(tmp_path):
    folder = tmp_path / "run"
    for i, scale in enumerate((65536.0, 32768.0)):
        capsule(
            folder / f"step-{i:06d}", step=i, start={"scaler": {"scale": scale}}, flags={**FLAGS, "autocast": "float16"}
        )
    (folder / "report.json").write_text(open(report(tmp_path)).read())
    (folder / "step-000009.partial-1").mkdir()
    (folder / "step-000010").mkdir()
    (folder / "step-000010/capsule.json").write_text("{")
    code, document, err = doctor(tmp_path, str(folder))
    assert (code, document["findings"]) == (0, []), err


@pytest.mark.parametrize(
    "more",
    [
        {"flags": 7, "start": [1], "files": "x", "step": None, "rank": {}},
        {"files": {"tape.bin": {"bytes": "many"}}},
        {"files": {"tape.bin": {"bytes": 1 << 60}}},
        {"start": {"scaler": {"scale": "NaN"}}},
    ],
)
def test_a_strange_description_of_a_capsule_is_borne(tmp_path, more):
    code, document, err = doctor(tmp_path, capsule(tmp_path / "step-000400", **more))
    assert code in (0, 1) and not document["trouble"] and "replay" in err and "Traceback" not in err


def rings():
    draw = random.Random(0)
    usual = [(1.0, 0.1 * draw.uniform(0.3, 3), 1e-3, True) for _ in range(300)]
    warm = [(1.0, g, 1e-3 * min(1, i / 100), a) for i, (_, g, _, a) in enumerate(usual)]
    rise = [(1.0, 0.1 * 1.5**i * draw.uniform(0.5, 2), 1e-3, True) for i in range(40)]
    return {
        "gradients that explode with noise": ("P12", "warn", "steps after it had risen to 0.001", warm + rise),
        "single spikes": (
            "P13",
            "note",
            "2 single steps",
            [(1.0, 90.0 if i in (50, 200) else g, lr, a) for i, (_, g, lr, a) in enumerate(usual)],
        ),
        "a tenth left out all the time": (
            "P14",
            "warn",
            "30 of 300 steps",
            [(*s[:3], i % 10 > 0) for i, s in enumerate(usual)],
        ),
    }


@pytest.mark.parametrize("name", rings())
def test_speaks_of_a_ring_with(ring, tmp_path, name):  # noqa: F811
    check, verdict, word, steps = rings()[name]
    path = tmp_path / "steps.ring"
    path.write_bytes(ring.read_bytes())
    with_steps(path, steps)
    code, document, err = doctor(tmp_path, str(path))
    assert [(f["check"], f["verdict"]) for f in document["findings"]] == [(check, verdict)], err
    assert word in document["findings"][0]["text"]


def test_the_onset_is_the_last_usual_step(ring, tmp_path):  # noqa: F811
    path = tmp_path / "steps.ring"
    path.write_bytes(ring.read_bytes())
    with_steps(path, rings()["gradients that explode with noise"][3])
    (finding,) = doctor(tmp_path, str(path))[1]["findings"]
    assert 297 <= finding["evidence"]["step"] <= 304


def test_silent_on_a_ring_that_is_noisy(ring, tmp_path):  # noqa: F811
    draw = random.Random(1)
    path = tmp_path / "steps.ring"
    path.write_bytes(ring.read_bytes())
    with_steps(path, [(1.0, 10 ** draw.uniform(-2, 0), 1e-3, i % 50 > 0) for i in range(400)])
    code, document, err = doctor(tmp_path, str(path))
    assert (code, document["findings"]) == (0, []), err


def test_skips_in_a_row_under_a_scaler(ring, tmp_path):  # noqa: F811
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "steps.ring").write_bytes(ring.read_bytes())
    with_steps(folder / "steps.ring", [(1.0, 0.1, 1e-3, not 100 <= i < 125) for i in range(1000)])
    (folder / "report.json").write_text(open(report(tmp_path, scaler_skips=25)).read())
    (finding,) = doctor(tmp_path, str(folder))[1]["findings"]
    assert (finding["check"], finding["verdict"]) == ("P10", "warn") and finding["evidence"]["in_a_row"] == 25


def test_the_process_is_named(ring, tmp_path):  # noqa: F811
    folder = tmp_path / "rank-3"
    folder.mkdir()
    (folder / "steps.ring").write_bytes(ring.read_bytes())
    with_steps(
        folder / "steps.ring", [(1.0, 0.1, 1e-3, True)] * 100 + [(1.0, 0.1, 1e-3, i % 4 > 0) for i in range(100)]
    )
    (finding,) = found(doctor(tmp_path, str(tmp_path))[1], "P14")
    assert finding["text"].startswith("rank-3: ")


def test_half_precision_capsule_is_replayed_in_float32(tmp_path):
    text = TRAINING + (
        "scale = 1.0\nfor _ in range(3):\n    h = (model(x).half() * scale)\n    h.float().square().mean().backward()\n"
        "    opt.step()\n    scale = 6e4\n    x = x * 1e3\n"
    )
    got = run(tmp_path, text)
    assert got.report["outcome"] == "alarm", got.text()
    ((directory, *_),) = [list((tmp_path / "finitude-runs").iterdir())]
    (folder,) = [p for p in directory.iterdir() if p.is_dir()]
    code, document, err = doctor(tmp_path, str(folder))
    (finding,) = found(document, "P1")
    assert code == 1 and "the whole step in float32 is finite" in finding["text"], err
    assert finding["evidence"]["replays"]["float32"].startswith("finite in float32")
    assert finitude(tmp_path, "pack", str(folder), "one.zip").code == 0
    packed = doctor(tmp_path, "one.zip")
    assert (packed[0], packed[1]["findings"]) == (code, document["findings"])
    (tmp_path / "cut.zip").write_bytes((tmp_path / "one.zip").read_bytes()[:-40])
    assert doctor(tmp_path, "cut.zip")[0] == 3
