"""--on-event and watch(on_event=): every event is delivered once it is on disk, and nothing that goes wrong there reaches the
training. finitude.metrics(): the newest values."""

import base64
import http.server
import json
import socket
import sys
import textwrap
import threading
import time

import pytest

import helpers
from finitude.base import config
from finitude.report import on_event, webhook

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


class Hook(http.server.BaseHTTPRequestHandler):
    """Answers with server.status, and keeps what was posted."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((self.path, self.headers["Content-Type"], self.headers["Authorization"], body))
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def hook(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        server.posted, server.status = [], 204
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.fast
def test_an_address_gets_the_event_posted(hook):
    said = []
    one = listeners(f"http://me:p%40ss@127.0.0.1:{hook.server_port}/T0/secret?x=1", said)
    one.deliver(line(1))
    one.deliver(line(2))
    one.close()
    path, kind, user, _ = hook.posted[0]
    assert (path, kind, base64.b64decode(user.split()[1])) == ("/T0/secret?x=1", "application/json", b"me:p@ss")
    assert [json.loads(body)["step"] for *_, body in hook.posted] == [1, 2] and said == []


@pytest.mark.fast
@pytest.mark.parametrize("status", [404, 302, 500])
def test_an_address_that_refuses_is_said_once(hook, status):
    said, hook.status = [], status
    one = listeners(f"http://127.0.0.1:{hook.server_port}/T0/secret", said)
    one.deliver(line(1))
    one.deliver(line(2))
    one.close()
    assert said == [f"--on-event http://127.0.0.1:{hook.server_port}/*** answered {status}"]
    assert [path for path, *_ in hook.posted] == ["/T0/secret"] * 2


@pytest.mark.fast
def test_an_address_that_never_answers_is_left(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(webhook, "SECONDS", 0.1)
    said = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/secret"
        begun = time.monotonic()
        one = listeners(address, said)
        one.deliver(line(1))
        assert time.monotonic() - begun < 0.1
        one.close()
    assert len(said) == 1 and "did not answer" in said[0] and "secret" not in said[0]
    one = listeners(address, said)
    one.deliver(line(1))
    one.close()
    assert len(said) == 2 and "refused" in said[1] and "secret" not in said[1]


@pytest.mark.fast
@pytest.mark.parametrize("value", ["https://", "http://:80/x", "https://host:port/"])
def test_an_address_without_host_is_refused(value):
    with pytest.raises(config.UsageError, match="an address with a host"):
        config.load({"on_event": value}, environ={})


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
    second = torch.optim.SGD(model.parameters(), lr=0.1)
    with finitude.watch(model, second):
        for i in range(2):
            second.zero_grad()
            loss_of(batches[i]).backward()
            second.step()
        again = finitude.metrics()
    assert again["step"] == 1 and again["loss"] > 0 and again["headroom_bits"] > 100, again
    print(found["step"], found["alarms"], found["warnings"], found["skips"], found["learning_rate"])
    print(0 < found["loss"] < 100, 0 < found["gradient_absmax"] < 100, sorted(found))
    print(0 < found["gradient_norm"] < 100, 100 < found["headroom_bits"] < 140, found["gradient_growth"])
    print([event["kind"] for event in delivered if event["kind"] != "start"], delivered[-1]["outcome"])
    """
    helpers.write_script(tmp_path, helpers.TRAINING + textwrap.dedent(text))
    got = helpers.plain(tmp_path, "train.py")
    assert got.code == 0, got.text()
    lines = got.out.splitlines()
    assert lines[0].startswith("2 1 0 0 0.1")
    keys = ["alarms", "gradient_absmax", "gradient_growth", "gradient_norm", "headroom_bits", "learning_rate"]
    assert lines[1] == f"True True {[*keys, 'loss', 'skips', 'step', 'warnings']}"
    assert lines[2] == "True True None"
    assert lines[3] == "['alarm', 'alarm', 'end'] alarm"


def test_a_function_is_not_called_while_a_step_runs_again():
    """What it changes would be put back with the other objects of the program."""
    complaints, called, is_busy = [], [], [True]
    listeners = on_event.Listeners("", lambda *words: complaints.append(words))
    listeners.listen(called.append, lambda: is_busy[0])
    listeners.deliver(b'{"kind": "alarm"}\n')
    time.sleep(0.1)
    assert not called
    is_busy[0] = False
    listeners.close()
    assert called == [{"kind": "alarm"}] and not complaints


def test_functions_of_watch_are_gone_after_it_and_in_forked_processes(tmp_path):
    text = """
    import finitude, gc, os, threading, weakref
    class Function:
        def __init__(self, name): self.name, self.called = name, 0
        def __call__(self, given):
            self.called += 1
            if os.getpid() != PARENT: print("called in the child:", self.name, flush=True)
            return "skip"
    def step(factor):
        opt.zero_grad()
        (loss_of(batches[0]) * factor).backward()
        opt.step()
    PARENT, event, alarm = os.getpid(), Function("on_event"), Function("on_alarm")
    with finitude.watch(model, opt, on_event=event, on_alarm=alarm, capsules=0) as watch:
        step(1.0)
        step(NAN)
        child = os.fork()
        if child == 0:
            step(1.0)
            step(NAN)
            watch.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        step(1.0)
    print("called", event.called >= 3, alarm.called)
    print([one.name for one in threading.enumerate()])
    left = [weakref.ref(event), weakref.ref(alarm)]
    del event, alarm
    gc.collect()
    print("left", [one() for one in left], finite())
    """
    helpers.write_script(tmp_path, helpers.TRAINING + textwrap.dedent(text))
    got = helpers.plain(tmp_path, "train.py")
    assert got.code == 0, got.text()
    assert got.out == "called True 1\n['MainThread']\nleft [None, None] True\n"
