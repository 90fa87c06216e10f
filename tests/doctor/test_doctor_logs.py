"""What `finitude doctor` says of the logs of other tools: each format, each check, healthy curves, and hostile files."""

import json
import math
import pathlib
import random
import struct

import pytest

import helpers
import mutations
from finitude.base.crc32c import masked_crc
from finitude.doctor import after, log_files, tfevents
from finitude.doctor.command import _logs_of


def doctor(folder, *words):
    done = helpers.finitude(folder, "doctor", "--json", *map(str, words))
    return done, json.loads(done.out) if done.out else None


def names(answer):
    return [(f["check"], f["verdict"]) for f in answer["findings"]]


def record(data):
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data))


def varint(value):
    out = bytearray()
    while True:
        out.append(value & 127 | (128 if value > 127 else 0))
        value >>= 7
        if not value:
            return bytes(out)


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(step, tag, value, tensor=False):
    """As tensorboard writes it: version 1 has simple_value, version 2 a tensor."""
    if tensor:
        number = field(8, varint(1 << 3) + varint(1) + field(5, struct.pack("<f", value)))
    else:
        number = varint(2 << 3 | 5) + struct.pack("<f", value)
    summary = field(1, field(1, tag.encode()) + number)
    return record(
        struct.pack("<B", 1 << 3 | 1) + struct.pack("<d", 1.0) + varint(2 << 3) + varint(step) + field(5, summary)
    )


def version():
    return record(struct.pack("<B", 1 << 3 | 1) + struct.pack("<d", 1.0) + field(3, b"brain.Event:2"))


def curve(count=60, broken=None):
    """(step, loss, gradient norm, learning rate): healthy, or NaN from a step on."""
    draw = random.Random(7)
    for i in range(count):
        loss = 2.5 * math.exp(-i / 40) + 0.3 + draw.random() * 0.05
        bad = broken is not None and i >= broken
        yield i * 10, math.nan if bad else loss, math.inf if bad else 1.0 + draw.random(), 3e-4


def as_trainer_state(folder, points):
    history = [{"step": s, "epoch": s / 100, "loss": a, "grad_norm": g, "learning_rate": lr} for s, a, g, lr in points]
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"best_metric": None, "log_history": history, "global_step": 590}))
    return path


def as_csv(folder, points):
    rows = ["epoch,step,train_loss,grad_2.0_norm_total,lr-AdamW,val_loss"]
    rows += [f"0,{s},{a},{g},{lr}," for s, a, g, lr in points] + ["0,590,,,,0.5"]
    path = folder / "metrics.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def as_events(folder, points, tensor=False):
    path = folder / "events.out.tfevents.1700000000.host.1.0"
    data = [version()]
    for s, a, g, lr in points:
        data += [
            event(s, tag, v, tensor)
            for tag, v in (("train/loss", a), ("train/grad_norm", g), ("train/learning_rate", lr))
        ]
    path.write_bytes(b"".join(data))
    return path


def as_events_of_tensors(folder, points):
    return as_events(folder, points, tensor=True)


def as_lines(folder, points):
    path = folder / "log.jsonl"
    rows = [
        {"global_step": s, "train": {"loss": a}, "optim": {"grad_norm": g, "lr": lr}, "note": "x"}
        for s, a, g, lr in points
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def as_records(folder, points):
    path = folder / "history.json"
    path.write_text(
        json.dumps([{"step": s, "a": {"b": {"loss": a}, "grad_norm": g}, "lr": lr} for s, a, g, lr in points])
    )
    return path


def as_tabs(folder, points):
    path = folder / "metrics.tsv"
    rows = [f"{s}\t{a}\t{g}\t{lr}\n" for s, a, g, lr in points]
    path.write_text("\ufeffstep\tloss\tgrad_norm\tlr\n" + "".join(rows))
    return path


def as_printed(folder, points):
    """With a progress bar in the same lines."""
    path = folder / "train.log"
    rows = [{"loss": a, "grad_norm": g, "learning_rate": lr, "step": s, "last": None} for s, a, g, lr in points]
    path.write_text("INFO begins {}\n" + "".join(f" 10%|#   | 5/50 [00:01<00:09]\r{{}} {row} {{'a\n" for row in rows))
    return path


FORMATS = [as_trainer_state, as_csv, as_events, as_events_of_tensors, as_lines, as_records, as_tabs, as_printed]


@pytest.mark.parametrize("write", FORMATS)
def test_first_nonfinite_value_in_each_format(tmp_path, write):
    path = write(tmp_path, curve(broken=40))
    done, answer = doctor(tmp_path, path)
    assert done.code == 1 and answer["looked_at"] == ["log"], done.text()
    loss = next(f for f in answer["findings"] if "loss" in f["evidence"]["name"])
    assert ("P20", "bad") == (loss["check"], loss["verdict"])
    assert "is NaN at step 400 (learning rate 0.0003)" in loss["text"] and "at step 390" in loss["text"], loss["text"]
    gradient = next(f for f in answer["findings"] if "grad" in f["evidence"]["name"])
    assert gradient["verdict"] == "bad" and "is Inf at step 400" in gradient["text"]
    assert answer["logs"][0]["numbers"] >= 180
    assert not [f for f in answer["findings"] if f["check"] == "P23"], "a value that is not finite is no plateau"


@pytest.mark.parametrize("write", FORMATS)
def test_healthy_curve_is_silent_in_each_format(tmp_path, write):
    done, answer = doctor(tmp_path, write(tmp_path, curve()))
    assert (done.code, answer["findings"], answer["not_looked_at"]) == (0, [], []), done.text()


def test_event_files_of_the_package_itself(tmp_path):
    writer = pytest.importorskip("torch.utils.tensorboard", exc_type=ImportError).SummaryWriter(str(tmp_path))
    for step, loss, _, rate in curve(broken=30):
        writer.add_scalar("loss", loss, step)
        writer.add_scalar("lr", rate, step)
    writer.close()
    done, answer = doctor(tmp_path, tmp_path)
    assert done.code == 1 and ("P20", "bad") in names(answer), done.text()


def lines(folder, **series):
    count = len(next(iter(series.values())))
    path = folder / "log.jsonl"
    path.write_text(
        "".join(json.dumps({"step": i, **{k: v[i] for k, v in series.items()}}) + "\n" for i in range(count))
    )
    return path


LOSS = [a for _, a, _, _ in curve(80)]
RATE = [1e-3] * 80
ONE_CHECK = {
    "a spike": ({"loss": [*LOSS[:50], 30.0, *LOSS[51:]], "lr": RATE}, ("P21", "warn"), "step 50: 30"),
    "a spike of the gradient": ({"loss": LOSS, "grad_norm": [1.0 + i % 3 * 0.1 if i != 60 else 90.0 for i in range(80)]},
                                ("P21", "note"), "step 60: 90"),
    "growth": ({"loss": [*LOSS[:40], *(LOSS[40] * 1.1**i for i in range(40))], "lr": RATE}, ("P22", "warn"), "(learning rate 0.001)"),
    "growth without end": ({"loss": [1.3**i for i in range(80)]}, ("P22", "bad"), "grew from"),
    "a scale that collapsed": ({"loss": LOSS, "loss_scale": [2.0 ** (16 - i) for i in range(80)]}, ("P23", "bad"), "GradScaler"),
    "a scale that falls": ({"loss": LOSS, "scale/loss_scale": [2.0 ** max(4, 16 - i) for i in range(80)]}, ("P23", "warn"),
                           "12 records in a row"),
    "a plateau of skipped steps": ({"loss": [*LOSS[:40], *[LOSS[39]] * 40], "lr": RATE}, ("P23", "warn"), "41 records from step 39"),
    "a NaN that was logged as 0": ({"loss": [*LOSS[:40], *[0.0] * 40], "grad_norm": [*[1.0] * 40, *["NaN"] * 40]},
                                   ("P23", "bad"), "logged as 0"),
    "held-out data": ({"loss": LOSS, "eval_loss": [*LOSS[:70], *["nan"] * 10]}, ("P20", "warn"), "eval_loss is NaN at step 70"),
    "null, as JSON has no NaN": ({"loss": [*LOSS[:60], *[None] * 20], "acc": [0.5] * 80}, ("P20", "warn"),
                                 "null from step 60 to the end, in 20 records"),
    "another quantity": ({"loss": LOSS, "accuracy": [*[0.5] * 70, *["nan"] * 10]}, ("P20", "note"), "accuracy is NaN"),
}  # fmt: skip


@pytest.mark.parametrize("what", ONE_CHECK)
def test_each_check_speaks(tmp_path, what):
    series, expected, words = ONE_CHECK[what]
    done, answer = doctor(tmp_path, lines(tmp_path, **series))
    assert expected in names(answer), done.text()
    assert words in next(f["text"] for f in answer["findings"] if (f["check"], f["verdict"]) == expected)
    assert done.code == any(v == "bad" for _, v in names(answer))


HEALTHY = {
    "a warm-up at rate 0": {"loss": [2.5] * 10 + LOSS[10:], "lr": [0.0] * 10 + RATE[10:]},
    "a loss that meets its bound": {"hinge_loss": [*LOSS[:70]] + [LOSS[70] + i * 0.001 for i in range(10)]},
    "noise": {
        "loss": [2 + math.sin(i * 12.9) for i in range(80)],
        "grad_norm": [3 + 2 * math.sin(i * 7.7) for i in range(80)],
    },
    "a scale that grows": {"loss": LOSS, "loss_scale": [65536.0 * 2 ** (i // 20) for i in range(80)]},
    "null between numbers": {"loss": [v if i % 4 == 0 else None for i, v in enumerate(LOSS)], "acc": [0.5] * 80},
    "null in the last two": {"loss": [*LOSS[:78], None, None], "acc": [0.5] * 80},
    "null always": {"loss": [None] * 80, "acc": [0.5] * 80},
    "a few records": {"loss": [3.0, 2.0, 2.5], "lr": [1e-3] * 3},
}


@pytest.mark.parametrize("what", HEALTHY)
def test_healthy_curves_have_no_finding(tmp_path, what):
    done, answer = doctor(tmp_path, lines(tmp_path, **HEALTHY[what]))
    assert (done.code, answer["findings"]) == (0, []), done.text()


def test_directories(tmp_path):
    for number, broken in ((5, None), (100, 30), (20, None)):
        folder = tmp_path / "out" / f"checkpoint-{number}"
        folder.mkdir(parents=True)
        as_trainer_state(folder, curve(broken=broken))
    assert [p.split("/")[-2] for p in log_files.below(str(tmp_path / "out"))] == ["checkpoint-100"]
    done, answer = doctor(tmp_path, "out")
    assert done.code == 1 and answer["logs"][0]["file"].endswith("checkpoint-100/trainer_state.json")
    version_0 = tmp_path / "lightning_logs" / "version_0"
    version_0.mkdir(parents=True)
    as_csv(version_0, curve())
    (version_0 / "events.out.tfevents.2").write_bytes(b"garbage" * 9)
    done, answer = doctor(tmp_path, "lightning_logs")
    assert done.code == 0 and "is no event file" in done.err, done.text()
    (tmp_path / "empty").mkdir()
    assert helpers.finitude(tmp_path, "doctor", "empty").code == 3


def test_other_files_of_a_directory_are_no_logs(tmp_path):
    """But each is read where it is named."""
    as_lines(tmp_path, curve())
    as_records(tmp_path, curve(broken=40))
    as_printed(tmp_path, curve(broken=40))
    done, answer = doctor(tmp_path, tmp_path)
    assert done.code == 0 and [pathlib.Path(one["file"]).name for one in answer["logs"]] == ["log.jsonl"], done.text()


def test_directory_of_a_run_is_one_run(tmp_path):
    as_lines(tmp_path, curve())
    (tmp_path / "run.json").write_text("{}")
    assert not _logs_of(str(tmp_path)) and after.holds_a_run(str(tmp_path))


def test_a_file_whose_writer_is_still_at_work(tmp_path):
    path = as_events(tmp_path, curve(broken=40))
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    assert doctor(tmp_path, path)[0].code == 1
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 255
    path.write_bytes(bytes(broken))
    done, _ = doctor(tmp_path, path)
    assert "what follows was not read" in done.err and done.code == 0


@pytest.mark.parametrize(
    "name, data",
    [
        ("metrics.csv", b""),
        ("metrics.csv", b"a,b\nx,y\n"),
        ("metrics.csv", b"0,2.5\n1,2.4\n"),
        ("train.log", b"step 1 {x}\n"),
        ("train.txt", b"raise SystemExit(5)\n"),
        ("history.json", b'[{"loss": '),
        ("log.jsonl", b"not json\n" * 50),
        ("log.jsonl", b"[1]\n" + b"x" * (2 << 20)),
        ("trainer_state.json", b'{"log_history": 5}'),
        ("trainer_state.json", b'{"log_history": [' + b"[" * 100_000),
        ("events.out.tfevents.1", b"\0" * 64),
        ("events.out.tfevents.1", b""),
    ],
)
def test_what_is_no_log_is_unreadable(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    done = helpers.finitude(tmp_path, "doctor", name)
    assert done.code == 3 and len(done.err.splitlines()) == 1 and not done.out, done.text()


def test_pipes_and_links_to_nothing(tmp_path):
    import os

    os.mkfifo(tmp_path / "log.jsonl")
    (tmp_path / "metrics.csv").symlink_to("nowhere")
    for name in ("log.jsonl", "metrics.csv"):
        assert helpers.finitude(tmp_path, "doctor", name).code == 3


def test_what_a_log_says_reaches_no_terminal(tmp_path):
    series = {"\x1b[31mloss\u202e": [*LOSS[:70], *["nan"] * 10]}
    done = helpers.finitude(tmp_path, "doctor", str(lines(tmp_path, **series)))
    assert done.code == 1 and all(c.isprintable() or c == "\n" for c in done.out), repr(done.out)


@pytest.mark.slow
@pytest.mark.parametrize("write", FORMATS)
def test_damaged_files_are_read_or_refused(tmp_path, write, monkeypatch):
    """1500 of each, in bounded time."""
    from finitude.doctor import registry

    sound = write(tmp_path, curve(broken=40))
    data, taken = sound.read_bytes(), []

    def one(draw):
        sound.write_bytes(mutations.damaged_bytes(data, draw))
        try:
            log = log_files.read(str(sound))
        except log_files.Unreadable:
            return
        taken.append(1)
        assert log.points <= log_files.MOST_POINTS and len(log.series) <= log_files.MOST_SERIES
        for check in registry.all_checks():
            if check.looks_at == "log":
                assert len(list(check.function(log))) <= 4 * log_files.MOST_SERIES

    mutations.tries(1500, 11, one)
    assert taken


@pytest.mark.slow
def test_bytes_at_random_are_no_event(tmp_path):
    draw = random.Random(3)
    for _ in range(3000):
        data = draw.randbytes(draw.randrange(200))
        try:
            list(tfevents.scalars(data))
        except ValueError:
            pass


def test_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(log_files, "MOST_POINTS", 50)
    log = log_files.read(str(lines(tmp_path, loss=LOSS, lr=RATE)))
    assert log.points == 50 and "more than 50 numbers" in log.trouble
    monkeypatch.setattr(log_files, "MOST_SERIES", 1)
    assert len(log_files.read(str(lines(tmp_path, loss=LOSS, lr=RATE))).series) == 1


def test_checksums_are_those_of_the_format():
    assert masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
