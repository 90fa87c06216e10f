"""What the doctor reads of half precision in a run that is over: the loss scale by step, and a capsule computed in
bfloat16."""

import json
import pathlib
import struct

import pytest
from test_doctor_runs import check_word, ring  # noqa: F401  ring is a fixture

import helpers
from doctor_support import doctor

APPLIED, SKIPPED = 1, 4

SCALED = """
import torch
torch.manual_seed(0)
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 20, growth_interval=3)
for step in range(14):
    loss = (layer(torch.rand(8, 4)) * (1e35 if 4 <= step < 7 else 1)).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(scaler.get_scale())
"""


def read(path):
    import torch  # noqa: F401  the engine's libraries

    from finitude import _native

    return _native.read_ring(str(path))["steps"]


def with_scales(path, steps):
    """Puts records (scale, flags) into a ring that a run has made."""
    data = bytearray(path.read_bytes())
    for n, (scale, flags) in enumerate(steps):
        upper = struct.unpack("<I", struct.pack("<f", scale))[0] & 0xFFFF0000
        words = struct.unpack(
            "<7Q", struct.pack("<QQIIdddQ", n + 1, n, 0, flags | upper, 1.0, 0.1, 1e-3, (n + 1) * 10**6)
        )
        struct.pack_into("<8Q", data, 4096 + 64 * n, *words, check_word(words))
    struct.pack_into("<Q", data, 56, len(steps))
    path.write_bytes(data)


def test_ring_keeps_scale_and_outcome_of_each_step(tmp_path):
    got = helpers.run(tmp_path, SCALED)
    (path,) = tmp_path.glob("finitude-runs/*/steps.ring")
    steps = read(path)
    after = [float(line) for line in got.out.split()]
    assert [s["scale"] for s in steps] == [2.0**20, *after[:-1]], "as it was when the step was taken"
    assert [s["scaler_skip"] for s in steps] == [4 <= i < 7 for i in range(14)]
    assert [s["applied"] for s in steps] == [not 4 <= i < 7 for i in range(14)]
    assert not any(s["vetoed"] or s["alarm"] or s["handled_by_script"] for s in steps)


def test_an_alarm_is_in_the_ring(tmp_path):
    plain = (
        SCALED[: SCALED.index("scaler =")]
        + """for step in range(6):
    optimizer.zero_grad()
    (layer(torch.rand(8, 4)) * (float("nan") if step == 3 else 1)).mean().backward()
    optimizer.step()
"""
    )
    helpers.run(tmp_path, plain, "--on-alarm", "skip")
    (path,) = tmp_path.glob("finitude-runs/*/steps.ring")
    steps = read(path)
    assert [(s["alarm"], s["vetoed"], s["applied"]) for s in steps] == [(i == 3, i == 3, i != 3) for i in range(6)], (
        steps
    )
    assert not any(s["scaler_skip"] or s["handled_by_script"] or s["scale"] for s in steps)


def test_a_ring_without_a_scaler_has_none(ring):  # noqa: F811
    (step,) = read(ring)
    assert step["scale"] is None and step["applied"]


FALLING = [(1024.0, APPLIED)] * 30 + [(2.0 ** (9 - i / 2), SKIPPED) for i in range(18)]
RINGS = {
    "a scale below 1": (
        "P10",
        "bad",
        "as low as 0.5: no scale makes room",
        [(2.0 ** (10 - i), SKIPPED) for i in range(12)] + [(4.0, APPLIED)] * 40,
    ),
    "a scale that falls with every step": ("P10", "bad", "the last 18 steps skipped", FALLING),
    "a scale that nothing ever overflows at": (
        "P6",
        "note",
        "nothing is computed in float16",
        [(2.0 ** (38 + i // 20), APPLIED) for i in range(80)],
    ),
}
SILENT = {
    "a search for the scale": [(2.0 ** (20 - i), SKIPPED) for i in range(10)] + [(1024.0, APPLIED)] * 300,
    "growth and a skip now and then": [
        (2.0 ** (15 + i % 3), SKIPPED if i % 100 == 99 else APPLIED) for i in range(400)
    ],
    "a large scale that overflows at times": [(2.0**41, APPLIED)] * 200
    + [(2.0**42, SKIPPED)]
    + [(2.0**41, APPLIED)] * 200,
    "a ring of before, without scales": [(0.0, APPLIED)] * 100,
}


@pytest.mark.parametrize("name", RINGS)
def test_speaks_of(ring, tmp_path, name):  # noqa: F811
    check, verdict, word, steps = RINGS[name]
    path = tmp_path / "steps.ring"
    path.write_bytes(ring.read_bytes())
    with_scales(path, steps)
    code, document, err = doctor(tmp_path, str(path))
    found = [f for f in document["findings"] if f["check"] == check]
    assert [f["verdict"] for f in found] == [verdict], (document, err)
    assert word in found[0]["text"], found


@pytest.mark.parametrize("name", SILENT)
def test_silent_on(ring, tmp_path, name):  # noqa: F811
    path = tmp_path / "steps.ring"
    path.write_bytes(ring.read_bytes())
    with_scales(path, SILENT[name])
    code, document, err = doctor(tmp_path, str(path))
    assert [f for f in document["findings"] if f["check"] in ("P6", "P10")] == [], (document, err)


# float16 autocast; the product of activations is beyond 65504, or a logarithm is at 0 whatever the format is.
HALF = """
import torch
torch.manual_seed(0)
layer = torch.nn.Linear(6, 6)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
for step in range(4):
    x = torch.rand(8, 6) * (SIZE if step == 2 else 1)
    with torch.autocast("cpu", dtype=torch.AUTOCAST):
        h = layer(x)
        y = EXPRESSION
    loss = y.float().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def diagnosed(folder, size, expression, autocast="float16"):
    script = HALF.replace("SIZE", size).replace("EXPRESSION", expression).replace("AUTOCAST", autocast)
    alarm = helpers.run(folder, script).the_alarm()
    code, document, err = doctor(folder, str(folder / alarm["capsule"]))
    return [f for f in document["findings"] if f["check"] == "P1"], alarm, err


def test_bfloat16_cures_what_left_the_range_of_float16(tmp_path):
    (finding,), alarm, err = diagnosed(tmp_path, "30000", "(h @ h.T) / h.shape[0]")
    assert finding["verdict"] == "bad" and "with bfloat16 in place of float16 it is finite" in finding["text"], (
        finding,
        err,
    )
    assert finding["evidence"]["replays"]["bfloat16"].startswith("finite in bfloat16")
    assert "bfloat16" in finding["advice"]


def test_bfloat16_is_not_tried_where_nothing_is_float16(tmp_path):
    findings, alarm, err = diagnosed(tmp_path, "0", "torch.log(x.sum(1, keepdim=True)) * h", "bfloat16")
    assert all("bfloat16 in place" not in f["text"] and "bfloat16" not in f["evidence"]["replays"] for f in findings), (
        err
    )


def test_replay_in_bfloat16_needs_a_step_with_float16(tmp_path):
    script = (
        HALF.replace("SIZE", "0")
        .replace("EXPRESSION", "torch.log(x.sum(1, keepdim=True)) * h")
        .replace("AUTOCAST", "bfloat16")
    )
    alarm = helpers.run(tmp_path, script).the_alarm()
    replayed = helpers.finitude(tmp_path, "replay", alarm["capsule"], "--dtype", "bfloat16")
    assert replayed.code == 4 and "takes the place of float16, which this step does not have" in replayed.err, (
        replayed.text()
    )
    assert (
        json.loads(pathlib.Path(tmp_path, alarm["capsule"], "capsule.json").read_text())["kind"] == "finitude capsule"
    )
