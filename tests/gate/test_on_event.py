"""--on-event and watch(on_event=): every event is delivered once it is on disk, and nothing that goes wrong there reaches the
training. finitude.metrics(): the newest values."""

import json
import sys
import textwrap
import threading
import time

import pytest

import helpers
from finitude.report import on_event

TRAIN = """
for i in range(4):
    opt.zero_grad()
    (loss_of(batches[i]) * (NAN if i == 2 else 1.0)).backward()
    opt.step()
print("trained")
"""


def listeners(command="", said=None):
    said = [] if said is None else said
    return on_event.Listeners(command, lambda text, about: said.append(text) if text not in said else None)


def line(number):
    return json.dumps({"kind": "warning", "step": number}).encode() + b"\n"


@pytest.mark.fast
def test_a_function_gets_each_event_in_order():
    delivered = []
    one = listeners()
    one.listen(lambda event: delivered.append((event["step"], threading.current_thread().name)))
    for number in range(5):
        one.deliver(line(number))
    one.close()
    assert delivered == [(number, "finitude-events") for number in range(5)]


@pytest.mark.fast
def test_a_command_gets_the_line(tmp_path):
    code = "import sys; open('out.txt', 'a').write(sys.stdin.read()); print('noise'); print('noise', file=sys.stderr)"
    (tmp_path / "listener.py").write_text(code.replace("out.txt", str(tmp_path / "out.txt")))
    one = listeners(f"{sys.executable} {tmp_path / 'listener.py'}")
    one.deliver(line(1))
    one.deliver(line(2))
    one.close()
    assert [json.loads(text)["step"] for text in (tmp_path / "out.txt").read_text().splitlines()] == [1, 2]


@pytest.mark.fast
def test_failures_are_said_once():
    def fails(event):
        raise SystemExit("of the user's")

    for command, function, says in (
        ("", fails, "on_event failed: SystemExit: of the user's"),
        (
            "no-such-program-here x",
            None,
            "--on-event no-such-program-here cannot be started: No such file or directory",
        ),
        (f"{sys.executable} -c 'raise SystemExit(3)'", None, f"--on-event {sys.executable} ended with 3"),
    ):
        said = []
        one = listeners(command, said)
        if function:
            one.listen(function)
        one.deliver(line(1))
        one.deliver(line(2))
        one.close()
        assert said == [says]


@pytest.mark.fast
def test_a_slow_listener_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(on_event, "MOST_WAITING", 3)
    monkeypatch.setattr(on_event, "END_SECONDS", 0.1)
    said, release = [], threading.Event()
    one = listeners(said=said)
    one.listen(lambda event: release.wait(20))
    began = time.monotonic()
    for number in range(10):
        one.deliver(line(number))
    one.close()
    assert time.monotonic() - began < 5
    assert len(said) == 2 and "too slow" in said[0] and "not done" in said[1]
    release.set()


@pytest.mark.fast
def test_a_command_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(on_event, "COMMAND_SECONDS", 0.2)
    said = []
    one = listeners(f"{sys.executable} -c 'import time; time.sleep(30)'", said)
    one.deliver(line(1))
    one.close()
    assert said == [f"--on-event {sys.executable} took longer than 0 s"]


def test_a_run_reports_what_its_file_holds(tmp_path):
    (tmp_path / "listener.py").write_text("import sys; open('copy.jsonl', 'a').write(sys.stdin.read())\n")
    got = helpers.training(tmp_path, TRAIN, "--on-alarm", "skip", "--on-event", f"{sys.executable} listener.py")
    assert got.code == 0 and got.out == "trained\n", got.text()
    delivered = (tmp_path / "copy.jsonl").read_text()
    (events,) = tmp_path.glob("finitude-runs/*/events.jsonl")
    assert delivered == events.read_text()
    kinds = [json.loads(text)["kind"] for text in delivered.splitlines()]
    assert kinds[0] == "start" and kinds[-1] == "end" and kinds.count("alarm") == 2


def test_a_command_that_fails_changes_nothing(tmp_path):
    got = helpers.training(tmp_path, TRAIN, "--on-alarm", "skip", "--on-event", "no-such-program-here")
    assert got.code == 0 and got.out == "trained\n" and len(got.alarms) == 1
    assert got.err.count("no-such-program-here") == 1, got.err
    wrong = helpers.finitude(tmp_path, "run", "--on-event", "a 'b", "train.py")
    assert wrong.code == 2 and "on_event cannot be split" in wrong.err


def test_watch_takes_a_function_and_metrics_are_known(tmp_path):
    text = """
    import finitude
    assert finitude.metrics() == {}
    delivered = []
    with finitude.watch(model, opt, on_alarm="skip", on_event=delivered.append):
        assert finitude.metrics()["step"] is None
        for i in range(4):
            opt.zero_grad()
            (loss_of(batches[i]) * (NAN if i == 3 else 1.0)).backward()
            opt.step()
        found = finitude.metrics()
    assert finitude.metrics() == {}
    print(found["step"], found["alarms"], found["warnings"], found["skips"], found["learning_rate"])
    print(0 < found["loss"] < 100, 0 < found["gradient_absmax"] < 100, sorted(found))
    print([event["kind"] for event in delivered if event["kind"] != "start"], delivered[-1]["outcome"])
    """
    helpers.write_script(tmp_path, helpers.TRAINING + textwrap.dedent(text))
    got = helpers.plain(tmp_path, "train.py")
    assert got.code == 0, got.text()
    lines = got.out.splitlines()
    assert lines[0].startswith("2 1 0 0 0.1")
    keys = ["alarms", "gradient_absmax", "learning_rate", "loss", "skips", "step", "warnings"]
    assert lines[1] == f"True True {keys}"
    assert lines[2] == "['alarm', 'alarm', 'end'] alarm"
