"""Checks of what a run left: reports, rings and capsules, good, bad and hostile."""

import json
import os
import pathlib
import struct

import pytest

from doctor_support import TRAINING, doctor, found
from helpers import run

WATCHED = {
    "optimizers": 1,
    "steps": 1000,
    "backward_calls": 1000,
    "gradients_scanned": 4000,
    "scaler_skips": 0,
    "handled_by_script": 0,
}


def report(folder, alarms=(), advisories=(), **watched):
    path = folder / "made.json"  # the helper that starts us removes report.json
    document = {
        "schema": 1,
        "outcome": "alarm" if alarms else "clean",
        "reason": "",
        "watched": {**WATCHED, **watched},
        "alarms": list(alarms),
        "advisories": list(advisories),
    }
    path.write_text(json.dumps(document))
    return str(path)


def alarm(cause="unknown", op="aten::mul", phase="forward", dtype="float32", largest=1.0, **more):
    statistic = {
        "arg": "self",
        "shape": [2, 2],
        "dtype": dtype,
        "min": 0.0,
        "max": largest,
        "absmax": largest,
        "nan": 0,
        "inf": 0,
        "pos_inf": 0,
        "neg_inf": 0,
        "zero": 0,
        "numel": 4,
    }
    birth = {
        "phase": phase,
        "op": op,
        "file": "/srv/fits/model.py",
        "line": 7,
        "source": "y = f(x)",
        "module": "",
        "node": "",
        "inputs": [statistic],
        "outputs": [],
        "rows": [1],
    }
    return {
        "step": 400,
        "micro_batch": 0,
        "rank": 0,
        "optimizer": "SGD",
        "sink": {"kind": "loss", "name": "loss"},
        "weights": "clean",
        "rerun": "persistent",
        "rerun_by": "rewind",
        "births": [birth],
        "fix": None,
        "capsule": None,
        "text": "loss is NaN",
        "cause": {"class": cause, "confidence": "proven", "text": "what happened", "experiments": []},
        **more,
    }


def check_word(seven):
    total, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    for word in seven:
        total = ((total ^ word) * 0xBF58476D1CE4E5B9) & mask
        total ^= total >> 29
    return total


def with_steps(path, steps):
    """Puts records (loss, largest gradient, learning rate, applied) into a ring that a run has made."""
    data = bytearray(path.read_bytes())
    for n, (loss, grad, lr, applied) in enumerate(steps):
        words = struct.unpack(
            "<7Q", struct.pack("<QQIIdddQ", n + 1, n, 0, 1 if applied else 2, loss, grad, lr, (n + 1) * 10**6)
        )
        struct.pack_into("<8Q", data, 4096 + 64 * n, *words, check_word(words))
    struct.pack_into("<Q", data, 56, len(steps))
    path.write_bytes(data)


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    """A run of one step: its directory, with a ring to be filled."""
    folder = tmp_path_factory.mktemp("ring")
    got = run(folder, TRAINING + "F.cross_entropy(model(x), y).backward()\nopt.step()\n")
    assert got.report["outcome"] == "clean", got.text()
    (path,) = pathlib.Path(folder).glob("finitude-runs/*/steps.ring")
    return path


ONSET = {"step": 64, "name": "emb.weight", "rate": 1.01, "lr": 0.1, "text": "the largest weight of emb.weight grew"}
SPEAKS = {
    "half-precision overflow": ("P1", "bad", dict(cause="half-precision-overflow", dtype="float16")),
    "a birth in float32": ("P1", "note", dict(cause="log-of-zero", op="aten::log")),
    "half-precision underflow": ("P5", "bad", dict(cause="half-precision-underflow", dtype="float16")),
    "log of zero": ("P8", "bad", dict(cause="log-of-zero", op="aten::log")),
    "a loss scale that collapsed": ("P10", "bad", dict(cause="loss-scale-misuse")),
    "a bad sample": ("P11", "bad", dict(cause="bad-data", phase="data")),
    "a learning rate": ("P12", "bad", dict(cause="learning-rate")),
    "an onset": ("P12", "warn", dict(cause="overflow", step=900, onset=ONSET)),
    "a norm that overflowed": ("P13", "bad", dict(cause="clipping")),
    "damaged weights": ("P14", "bad", dict(weights="damaged")),
    "exp of large logits": ("P15", "bad", dict(cause="exp-overflow", op="aten::exp", largest=200.0)),
    "a masked row": ("P16", "bad", dict(cause="fully-masked-softmax", op="aten::_softmax")),
    "an early overflow": ("P17", "note", dict(cause="overflow", step=3)),
    "exploding gradients": ("P18", "bad", dict(cause="exploding-gradient")),
    "a step that came only once": ("P19", "warn", dict(rerun="transient")),
}


@pytest.mark.parametrize("case", SPEAKS.values(), ids=SPEAKS)
def test_speaks_of(tmp_path, case):
    check, verdict, facts = case
    code, document, err = doctor(tmp_path, report(tmp_path, [alarm(**facts)]))
    (finding,) = found(document, check)
    assert finding["verdict"] == verdict and finding["seen_in"] == "run" and finding["text"], err
    assert (code == 1) == bool(found(document, verdicts=("bad",)))


@pytest.mark.parametrize("case", ["log of zero", "a bad sample", "a masked row", "an early overflow"])
def test_a_finding_is_said_once_with_its_repeats(tmp_path, case):
    check, verdict, facts = SPEAKS[case]
    first = alarm(**{"step": 3, **facts})
    rest = [
        alarm(**{**facts, "step": n, "births": [], "rerun": "not-run", "rerun_by": "none", "repeat_of": of})
        for n, of in ((4, 3), (5, 3), (6, 99))  # the last one's is no part of the report
    ]
    _, document, err = doctor(tmp_path, report(tmp_path, [first, *rest]))
    one, other = found(document, check)
    assert one["verdict"] == verdict and "of the data set" not in one["text"], err
    assert one["text"].startswith("step 3 ") and other["text"].startswith("step 6"), (one, other)
    assert check == "P17" or one["text"].startswith("step 3 and 2 like it: "), one


@pytest.mark.parametrize("watched, check", [({"scaler_skips": 300}, "P10"), ({"handled_by_script": 90}, "P14")])
def test_speaks_of_counts(tmp_path, watched, check):
    code, document, _ = doctor(tmp_path, report(tmp_path, **watched))
    assert code == 0 and [f["check"] for f in document["findings"]] == [check]


@pytest.mark.parametrize("watched", [{}, {"scaler_skips": 15}, {"scaler_skips": 40}, {"handled_by_script": 3}])
def test_silent_on_a_healthy_report(tmp_path, watched):
    advisory = {"kind": "handled-by-script", "step": 3, "text": "dropped", "births": [], "cause": None}
    assert doctor(tmp_path, report(tmp_path, advisories=[advisory], **watched))[:2][1]["findings"] == []


RINGS = {
    "gradients that explode": (
        "P12",
        [(1.0, 0.1, 1e-3, True)] * 30 + [(2.0, 0.1 * 3.0**i, 1e-3, True) for i in range(12)],
    ),
    "no gradients any more": ("P18", [(1.0, 0.1, 1e-3, True)] * 30 + [(0.7, 0.0, 1e-3, True)] * 25),
    "more and more steps skipped": (
        "P14",
        [(1.0, 0.1, 1e-3, True)] * 100 + [(1.0, 0.1, 1e-3, i % 4 > 0) for i in range(100)],
    ),
}


@pytest.mark.parametrize("case", RINGS.values(), ids=RINGS)
def test_speaks_of_a_ring_with(ring, tmp_path, case):
    check, steps = case
    path = tmp_path / "steps.ring"
    path.write_bytes(ring.read_bytes())
    with_steps(path, steps)
    code, document, err = doctor(tmp_path, str(path))
    assert code == 0 and [(f["check"], f["verdict"]) for f in document["findings"]] == [(check, "warn")], err


def test_silent_on_a_ring_that_learns(ring, tmp_path):
    path = tmp_path / "steps.ring"
    path.write_bytes(ring.read_bytes())
    with_steps(path, [(2.0 / (i + 1), 10.0 / (i + 1) * (1 + i % 7), 1e-3 * min(1, i / 50), i > 5) for i in range(300)])
    code, document, err = doctor(tmp_path, str(path))
    assert (code, document["findings"]) == (0, []), err


def test_a_real_run_and_its_capsule(tmp_path):
    text = (
        TRAINING + "x = x * 1e4\nfor _ in range(3):\n    (-torch.log(model(x).softmax(-1))[0, "
        "y[0]]).backward()\n    opt.step()\n"
    )
    text = text.replace("model(x).softmax", "(model(x) * torch.tensor([1.0, 0, 0, 0])).softmax")
    got = run(tmp_path, text)
    assert got.report["outcome"] == "alarm", got.text()
    (directory,) = (tmp_path / "finitude-runs").iterdir()
    code, document, err = doctor(tmp_path, str(directory))
    assert code == 1 and found(document, verdicts=("bad",)), err
    capsules = [p for p in directory.iterdir() if p.is_dir()]
    assert capsules
    of_capsule = doctor(tmp_path, str(capsules[0]))
    checks = [[f["check"] for f in found(d, verdicts=("bad", "warn"))] for d in (of_capsule[1], document)]
    assert of_capsule[0] == 1 and checks[0] == checks[1]
    (replayed,) = found(of_capsule[1], "P19")
    assert "replayed twice: identical" in replayed["text"] and replayed["evidence"]["reproducible"] is True
    (precision,) = found(of_capsule[1], "P1")
    assert "float32 is not finite either" in precision["text"] and "as recorded" in precision["evidence"]["replays"]
    assert not found(doctor(tmp_path, "--static", str(capsules[0]))[1], "P19")


def test_a_run_that_was_killed_has_a_ring(ring, tmp_path):
    (tmp_path / "steps.ring").write_bytes(ring.read_bytes())
    code, document, err = doctor(tmp_path, str(tmp_path))
    assert code == 0 and document["findings"] == [] and "killed" in err


def test_a_run_that_was_not_watched_is_said_to_be_unseen(tmp_path):
    sample = pathlib.Path(__file__).parents[1] / "data" / "reports" / "unwatched.json"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.json").write_bytes(sample.read_bytes())
    code, document, err = doctor(tmp_path, "run")
    assert code == 0 and document["not_looked_at"][0]["what"] == "steps", document
    assert f"was not watched: {json.loads(sample.read_text())['reason']}" in err, err


HOSTILE = {
    "empty": b"",
    "cut off": b'{"schema": 1, "outcome": "al',
    "not an object": b"[1, 2]",
    "deeply nested": b'{"a": ' + b"[" * 100_000,
    "wrong types": json.dumps(
        {
            "schema": 1,
            "outcome": "alarm",
            "reason": "",
            "watched": WATCHED,
            "alarms": [{"step": {}, "births": 7}],
            "advisories": "none",
        }
    ).encode(),
    "no text": b"\xff\xfe\x00",
    "a capsule without an alarm": b'{"kind": "finitude capsule", "schema": 1}',
    "a capsule with a strange alarm": b'{"kind": "finitude capsule", "schema": 1, "alarm": '
    b'{"births": [3, {"forward": 1}], "step": "x"}}',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_input_is_unreadable(tmp_path, content):
    (tmp_path / "other.json").write_bytes(content)
    code, document, err = doctor(tmp_path, "other.json")
    assert (code, document) == (3, None) and err.startswith("finitude doctor: ") and "Traceback" not in err


def test_a_damaged_ring_is_unreadable(ring, tmp_path):
    (tmp_path / "steps.ring").write_bytes(b"\0" * 40 + os.urandom(60))
    assert doctor(tmp_path, "steps.ring")[0] == 3


def test_report_text_is_escaped_on_the_terminal(tmp_path):
    from helpers import finitude

    one = alarm(cause="log-of-zero", op="aten::log")
    one["cause"]["text"] = "red \x1b[31m"
    done = finitude(tmp_path, "doctor", report(tmp_path, [one]))
    assert done.code == 1 and "\x1b" not in done.out and "red" in done.out


def test_a_redacted_capsule_is_read_without_its_sources(tmp_path):
    one = alarm(cause="log-of-zero", op="aten::log")
    one["births"] = [{k: v for k, v in b.items() if k not in ("file", "source")} for b in one["births"]]
    (tmp_path / "capsule.json").write_text(
        json.dumps({"schema": 1, "kind": "finitude capsule", "redacted": True, "alarm": one})
    )
    code, document, err = doctor(tmp_path, str(tmp_path))
    assert code == 1 and found(document, "P8", ("bad",)), err


def test_each_process_of_a_run_is_examined(ring, tmp_path):
    for name, steps in (("rank-0", RINGS["no gradients any more"][1]), ("rank-1", RINGS["gradients that explode"][1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "steps.ring").write_bytes(ring.read_bytes())
        with_steps(tmp_path / name / "steps.ring", steps)
    code, document, err = doctor(tmp_path, str(tmp_path))
    assert code == 0 and [f["check"] for f in document["findings"]] == ["P12", "P18"], err
