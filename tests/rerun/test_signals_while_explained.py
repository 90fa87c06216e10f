"""What a handler of a signal of the program's raises while a step is explained is the program's: it is raised out of
`optimizer.step`, the explanation gives way, and the steps after it are watched as before."""

import pytest

import helpers

# The signal comes while our function runs, once; an OSError is what code of ours is likely to catch.
PROGRAM = (
    helpers.TRAINING
    + """
import fcntl, os, signal, termios
import finitude.{module} as module
there, here = os.pipe()
os.write(here, b"x" * {times})
def hear(*_):
    if fcntl.ioctl(there, termios.FIONREAD, bytes(4))[0]: raise ({error}, os.read(there, 1))[0]("watchdog")
signal.signal(signal.SIGUSR1, hear)
original = module.{name}
def interrupted(*words, **more):
    if k >= 2: os.kill(os.getpid(), signal.SIGUSR1)  # a healthy step may call it too
    return original(*words, **more)
module.{name} = interrupted
for k, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x / (0 if k in (2, 4) else 1))
    loss.backward()
    try:
        opt.step()
    except {error} as e:
        print("heard at", k, e, finite())
print("ended", model.weight.sum().item(), signal.getsignal(signal.SIGUSR1) is hear)
"""
)
PLAIN = """
for k, x in enumerate(batches):
    opt.zero_grad()
    loss_of(x).backward()
    if k not in (2, 4): opt.step()
print("ended", model.weight.sum().item(), True)
"""
PLACES = [
    ("rerun.rewind", "begin"),
    ("rerun.rewound", "Rewound._end"),
    ("report.incident", "Analysis.findings"),
    ("program.optimizer_members", "names"),
    ("capsules.capsule", "Capsules.write"),
    ("report.document", "Report.begin"),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
def test_its_exception_reaches_the_program(tmp_path, place):
    got = helpers.run(
        tmp_path, PROGRAM.format(module=place[0], name=place[1], error="TimeoutError", times=1), "--on-alarm", "skip"
    )
    helpers.write_script(tmp_path, helpers.TRAINING + PLAIN, "plain.py")
    assert got.out == "heard at 2 watchdog True\n" + helpers.plain(tmp_path, "plain.py").out and got.code == 0, (
        got.text()
    )
    assert [a["step"] for a in got.alarms] == [2, 4] and got.alarms[1]["births"], got.text()
    assert got.report["failures"] == [] and got.report["unwatched_from"] is None, got.report["failures"]
    assert got.alarms[0]["births"] or "TimeoutError, raised by a handler of a signal" in got.alarms[0]["rerun_text"], (
        got.text()
    )


@pytest.mark.parametrize("level", ["gate", "tape", "trace"])
@pytest.mark.parametrize("policy", ["stop", "skip", "warn"])
def test_what_is_said_of_the_step_is_what_was_done(tmp_path, policy, level):
    """The program's exception leaves the call: the step is not applied, whatever the policy, and nobody knows whether
    training continues."""
    text = PROGRAM.format(module="report.incident", name="Analysis.findings", error="TimeoutError", times=1)
    got = helpers.run(tmp_path, text.replace("k in (2, 4)", "k == 2"), "--on-alarm", policy, "--level", level)
    assert got.code == 0 and got.out.startswith("heard at 2 watchdog True\nended"), got.text()
    alarm = got.the_alarm()
    assert alarm["action"] == "not applied: the program's own exception (TimeoutError) ended the explanation"
    assert alarm["weights"] == "clean" and got.report["failures"] == [], got.text()
    said = " ".join(got.err.split())
    assert "step 2 ended by the script's own exception: loss is NaN" in said, got.text()
    assert "training continues" not in said and "was applied" not in said and "stopped before" not in said, got.text()


@pytest.mark.parametrize(
    "error, code", [("class Own(BaseException): pass", 1), ("Own = SystemExit", 1), ("Own = KeyboardInterrupt", -2)]
)
def test_one_that_ends_the_program_is_its_end(tmp_path, error, code):
    text = PROGRAM.format(module="report.incident", name="Analysis.findings", error="Own", times=1).replace(
        "except Own as e", "except ZeroDivisionError as e"
    )
    got = helpers.run(tmp_path, text.replace("import fcntl", f"{error}\nimport fcntl", 1))
    assert got.code == code and "NonFiniteError" not in got.err and got.out == "", got.text()
    assert got.the_alarm()["step"] == 2 and got.the_alarm()["weights"] == "clean", got.text()


def test_a_handler_that_raises_nothing_interrupts_nothing(tmp_path):
    text = PROGRAM.format(module="report.incident", name="Analysis.findings", error="TimeoutError", times=0)
    got = helpers.run(tmp_path, text, "--on-alarm", "skip")
    assert got.out.startswith("ended") and got.out.endswith("True\n") and all(a["births"] for a in got.alarms), (
        got.text()
    )


# Within the second run in place the program itself runs: what lies in a pipe distinguishes it from the first, and the process
# from its rehearsal.
IN_PLACE = (
    helpers.TRAINING
    + """
import fcntl, os, signal, termios
def hear(*_): raise TimeoutError("watchdog")
signal.signal(signal.SIGUSR1, hear)
me, (there, here) = os.getpid(), os.pipe()
def train():
    for k, x in enumerate(batches):
        if k == 3 and os.getpid() == me:
            os.write(here, b"x")
            if fcntl.ioctl(there, termios.FIONREAD, bytes(4))[0] == 2: os.kill(me, signal.SIGUSR1)
        opt.zero_grad()
        loss = loss_of(x) * (NAN if k in (3, 5) else 1)
        loss.backward()
        opt.step()
try:
    train()
except TimeoutError as e:
    print("heard", finite())
{more}
"""
)


def test_signal_during_rerun_reaches_program_which_ends_normally(tmp_path):
    got = helpers.run(tmp_path, IN_PLACE.format(more=""))
    assert (got.code, got.out) == (0, "heard True\n"), got.text()
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun"]) == (3, "not-run") and "TimeoutError" in alarm["rerun_text"], got.text()
    assert "step 3 ended by the script's own exception" in got.err and "exception (TimeoutError)" in alarm["action"]


def test_and_the_steps_that_follow_are_watched(tmp_path):
    more = (
        "for k in range(4):\n    opt.zero_grad()\n    (loss_of(batches[k]) * (NAN if k == 2 else "
        "1)).backward()\n    opt.step()\nprint(finite())"
    )
    got = helpers.run(tmp_path, IN_PLACE.format(more=more), "--on-alarm", "skip")
    assert (got.code, got.out) == (0, "heard True\nTrue\n"), got.text()
    assert len(got.alarms) == 2 and got.alarms[0]["rerun"] == "not-run", got.text()


def test_handler_writes_during_a_rerun_are_kept(tmp_path):
    """As a scheduler of jobs asks a training to stop: the second run is put back, that is not."""
    text = IN_PLACE.replace(
        'def hear(*_): raise TimeoutError("watchdog")', "state = {{'stop': False}}\ndef hear(*_): state['stop'] = True"
    )
    got = helpers.run(tmp_path, text.format(more="print(state, finite())"), "--on-alarm", "skip")
    assert (got.code, got.out) == (0, "{'stop': True} True\n"), got.text()
    assert got.alarms[0]["rerun"] == "persistent" and len(got.alarms) == 2, got.text()


# As the handler of a pool of workers.
OF_CHILDREN = (
    helpers.TRAINING
    + """
import os, signal, time
me = os.getpid()
def hear(*_):
    with open("heard", "a") as file: file.write(f"{os.getpid()} called\\n")
signal.signal(signal.SIGCHLD, hear)
for k, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x) * (NAN if k in (0, 3) else 1)
    loss.backward()
    opt.step()
    if k == 4:
        child = os.fork()
        if not child: os._exit(0)
        while not (os.path.exists("heard") and f"{os.getpid()} called" in open("heard").read()): time.sleep(0.01)
        os.waitpid(child, 0)
print(me)
"""
)


def test_a_handler_of_children_hears_of_the_programs_own_alone(tmp_path):
    """Finitude starts some of its own: the rehearsal of a second run, a restart, the replay of a capsule, commands."""
    got = helpers.run(tmp_path, OF_CHILDREN, "--on-alarm", "skip", "--on-event", "false")
    me = got.out.strip()
    heard = (tmp_path / "heard").read_text().splitlines()
    assert [line for line in heard if line.startswith(me)] == [f"{me} called"], got.text()
    assert got.code == 0 and [a["rerun"] for a in got.alarms] == ["persistent", "persistent"], got.text()
    assert "--on-event false ended with 1" in got.err and got.report["failures"] == [], got.text()
