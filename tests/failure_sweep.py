"""Makes one function of ours raise in a run of a program of two bad steps, and says how that run ended: for
test_failure_sweep.py."""

import pathlib
import re

import helpers

BAD = (3, 5)
# What calls the rest: how a watched process begins and ends, and the outermost function of each call, which catches
# what the others raise. So does the guard around each part, one function. The method that is held in the place of a
# scheduler's step is what the program itself calls.
OUTSIDE = "launch/", "session/native_callbacks.py"
GUARD = re.compile(r"session/(failures\.py:\d+:part|skipped_steps\.py:\d+:method)$")
# BREAK: "record" writes down which functions of ours run from the first bad step on; else which one raises ERROR,
# whenever it is called.
PROGRAM = """
import os, sys
import torch

def arm():
    import gc, types
    import finitude
    home = os.path.dirname(finitude.__file__) + os.sep
    wanted, name = os.environ["BREAK"], os.environ.get("ERROR", "ZeroDivisionError")
    error = {"ZeroDivisionError": ZeroDivisionError, "MemoryError": MemoryError, "RecursionError": RecursionError}[name]
    me = os.getpid()
    seen = set()

    def key_of(code):
        return f"{code.co_filename[len(home):]}:{code.co_firstlineno}:{code.co_name}"

    def record(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(home) and code not in seen and os.getpid() == me:
            seen.add(code)
            out = os.open(os.environ["CALLS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(out, (key_of(code) + "\\n").encode())
            os.close(out)

    def fail(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(home) and key_of(code) == wanted:
            raise error("swept")

    def broken(*words, **more):
        raise error("swept")

    if wanted == "record":
        sys.setprofile(record)
        return
    broken_code = broken.__code__
    for it in gc.get_objects():
        if isinstance(it, types.FunctionType) and it.__code__.co_filename.startswith(home) and key_of(it.__code__) == wanted:
            if not it.__code__.co_freevars:
                keep.append(it)
                it.__code__ = compiled(name)
    if not keep:
        sys.setprofile(fail)

def compiled(name):
    space = {}
    exec(f"def broken(*words, **more):\\n    raise {name}('swept')", space)
    return space["broken"].__code__

keep = []
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1.0)
for k in range(7):
    x = torch.randn(4, 4)
    if k in (3, 5): x = x / 0
    opt.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    if k == 3 and os.environ.get("BREAK"): arm()
    PLAIN opt.step()
    PLAIN schedule.step()
# A scheduler that could not be held has taken its step; it never stands still. A failing profile function fails once:
# then the scheduler was held at one of the two.
moves = (5, 7) if keep else (5, 6, 7)
print("ended", model.weight.sum().item().hex(), "moves" if schedule.last_epoch in moves else schedule.last_epoch)
"""
WATCHED = PROGRAM.replace("PLAIN ", "")
PLAIN = PROGRAM.replace("PLAIN ", "if k not in (3, 5): ")


def plain(folder):
    """What the program prints that skips its bad steps by itself."""
    helpers.write_script(folder, PLAIN, "plain.py")
    return helpers.plain(folder, "plain.py").out


def functions(folder, *options):
    """Functions of ours that run from the first bad step to the end, as file:line:name."""
    calls = pathlib.Path(folder, "calls")
    got = helpers.run(folder, WATCHED, *options, env={"BREAK": "record", "CALLS": str(calls)})
    assert got.code == 0 and len(got.alarms) == len(BAD), got.text()
    return sorted(
        name for name in set(calls.read_text().splitlines()) if not name.startswith(OUTSIDE) and not GUARD.match(name)
    )


def broken(folder, function, error, *options):
    return helpers.run(folder, WATCHED, *options, env={"BREAK": function, "ERROR": error})


def faults(got, out, policy):
    """What is wrong with how that run ended: [] where nothing is."""
    found = []
    steps = [alarm["step"] for alarm in got.alarms] if got.report is not None else None
    if got.report is None:
        return ["no report"]
    if policy == "skip":
        if got.code != 0:
            found.append(f"exit code {got.code}")
        if got.out != out:
            found.append(f"another result: {got.out!r}")
        if steps != list(BAD):
            found.append(f"alarms at {steps}")
    else:
        if got.code != 1 or "NonFiniteError: step 3" not in got.err:
            found.append(f"exit code {got.code}, {got.err.splitlines()[-1:]}")
        if got.out or steps != [3]:
            found.append(f"{got.out!r}, alarms at {steps}")
    if got.report.get("unwatched_from") is not None:
        found.append("switched off")
    return found
