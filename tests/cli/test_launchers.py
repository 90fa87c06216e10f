"""`finitude run COMMAND`: what it starts is run as without us, and each Python process in it that trains is watched."""

import json
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import finitude
from finitude.launch import targets
from helpers import LIMIT, environment, finitude as command, plain, write_script
from process_support import cold, loop, made, started

HOOK = os.path.join(os.path.dirname(finitude.__file__), "_hook")

# -- the way in ---------------------------------------------------------------------------------------------


def hooked(folder, code, path="", *options, env=None):
    """stdout of `python -c code` with our folder first on PYTHONPATH, as a process that a watched program starts."""
    both = os.pathsep.join(p for p in (HOOK, path) if p)
    family = json.dumps({"directory": str(folder / "run"), "orders": "", "settings": {}})
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": both, "FINITUDE_FAMILY": family, **(env or {})},
        timeout=LIMIT,
    )
    assert done.stderr == "", done.stderr
    return done.stdout


def test_process_without_torch_is_left_unchanged(tmp_path):
    code = "import sys; print(sorted(sys.modules), sys.path)"
    apart = plain(tmp_path, "-c", code, env={"PYTHONPATH": ""}).out
    assert hooked(tmp_path, code) == apart
    assert not list(tmp_path.iterdir())


def test_the_users_own_sitecustomize_is_imported(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    write_script(own, "import sys\nsys.mine = __file__\n", "sitecustomize.py")
    code = (
        "import sys, sitecustomize; print(sys.mine == sitecustomize.__file__, __import__('os').path.dirname(sys.mine))"
    )
    assert hooked(tmp_path, code, str(own)).split() == ["True", str(own)]


def test_where_there_is_no_sitecustomize_none_is_seen(tmp_path):
    code = """
    try:
        import sitecustomize
    except ImportError as e:
        print(e.name)
    else:
        print(sitecustomize.__file__)
    """
    assert hooked(tmp_path, code) == plain(tmp_path, "-c", textwrap.dedent(code), env={"PYTHONPATH": ""}).out


def test_a_failing_sitecustomize_fails_as_without_us(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    write_script(own, "raise ValueError('mine')\n", "sitecustomize.py")
    words = [sys.executable, "-c", "print('goes on')"]
    family = json.dumps({"directory": str(tmp_path), "orders": "", "settings": {}})
    runs = [
        subprocess.run(
            words, env={**os.environ, "PYTHONPATH": p, "FINITUDE_FAMILY": family}, capture_output=True, text=True
        )
        for p in (str(own), HOOK + os.pathsep + str(own))
    ]
    assert runs[0].stdout == runs[1].stdout == "goes on\n" and runs[0].stderr == runs[1].stderr != ""


def test_failed_import_of_torch_can_be_retried(tmp_path):
    (tmp_path / "torch.py").write_text(
        "import os\nif not os.path.exists('now'): raise ImportError('not yet')\nvalue = 1\n"
    )
    code = """
    import sys; sys.path.insert(0, '.')
    try:
        import torch
    except ImportError as e:
        print(e)
    print([type(f).__name__ for f in sys.meta_path if getattr(f, 'is_finitude', False)], 'torch' in sys.modules)
    """
    assert hooked(tmp_path, code) == "not yet\n['_UntilTorch'] False\n"


@pytest.mark.slow
def test_torch_that_never_trains_brings_in_nothing_more(tmp_path):
    code = """
    import sys, torch
    print(torch.ones(3).sum().item(), torch.__spec__.loader.__class__.__name__, 'exec_module' in vars(torch.__spec__.loader))
    print(sorted(m for m in sys.modules if m.startswith('finitude') and m != 'finitude'))
    """
    first, second = hooked(tmp_path, code).splitlines()
    assert first == "3.0 SourceFileLoader False"
    light = {
        "finitude.base",
        "finitude.base.compat",
        "finitude.base.config",
        "finitude.base.engines",
        "finitude.base.family",
        "finitude.base.say",
        "finitude.base.working_folder",
        "finitude.errors",
        "finitude.launch",
        "finitude.launch.child",
        "finitude.launch.watched",
        "finitude.rerun",
        "finitude.rerun.launch_command",
        "finitude.program",
        "finitude.program.ranks",
    }
    assert set(eval(second)) <= light
    assert not (tmp_path / "run").exists()


# -- what is started ----------------------------------------------------------------------------------------


TARGETS = {
    "train.py --lr 1": ("script", "train.py"),
    "train": ("script", "train"),  # a file here that is not on PATH
    "nowhere.py": ("script", "nowhere.py"),
    f"{sys.executable} train.py": ("script", "train.py"),
    f"{sys.executable} -m package.train --lr 1": ("module", "package.train"),
    f"{sys.executable} -u train.py": ("command", sys.executable),
    f"{sys.executable} -c pass": ("command", sys.executable),
    f"{sys.executable} -W ignore -um package": ("command", sys.executable),
    f"{sys.executable} -m torch.distributed.run train.py": ("command", sys.executable),
    "-m torch.distributed.run train.py": ("command", sys.executable),
    "-m package.train": ("module", "package.train"),
    "sh train.sh": ("command", shutil.which("sh")),
    "./other/python train.py": ("command", "./other/python"),
    "./start": ("command", "./start"),
    "srun-is-not-here": ("script", "srun-is-not-here"),
    "horovodrun -np 2": ("missing", "horovodrun"),
}


@pytest.mark.parametrize("line", TARGETS, ids=lambda line: line.replace(sys.executable, "PYTHON"))
def test_a_command_line_starts(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    for name, mode in (("train.py", 0o644), ("train", 0o755), ("start", 0o755), ("other/python", 0o755)):
        (tmp_path / name).touch(mode)
    words = line.split()
    is_module = words[0] == "-m"
    words = words[1:] if is_module else words
    found = targets.resolve(words[0], words[1:], is_module)
    assert (found.kind, found.name) == TARGETS[line]


@pytest.mark.parametrize(
    "options, named", [(["-Wdefault::ImportWarning"], ""), (["-X", "importtime", "-I"], "-I"), (["-uES"], "-E -S")]
)
def test_only_options_that_prevent_watching_are_named(options, named):
    assert named in targets.resolve(sys.executable, [*options, "train.py"]).obstacle
    assert named or not targets.resolve(sys.executable, [*options, "train.py"]).obstacle


# -- commands -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_python_with_options_is_watched_and_explained(tmp_path):
    write_script(tmp_path, loop(4))
    got = cold(tmp_path, sys.executable, "-u", "-X", "dev", "train.py", "--flag")
    assert got.code == 1 and got.out == "" and "NonFiniteError" in got.err, got.text()
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun"], alarm["rerun_by"], alarm["weights"]) == (4, "persistent", "rewind", "clean")
    assert "loss * NAN" in alarm["births"][0]["source"]
    assert got.err.count("finitude: step 4 stopped") == 1 and got.err.splitlines()[-1].startswith(
        "finitude: 5 steps watched"
    )
    ((name, files),) = made(tmp_path).items()
    assert name.startswith("pid-")
    assert files == [
        "events.jsonl",
        "report.html",
        "report.json",
        "run.json",
        "step-000004",
        "steps.ring",
        "store.sqlite",
    ]


@pytest.mark.slow
def test_step_that_cannot_rewind_restarts_that_process(tmp_path):
    write_script(tmp_path, loop(0))
    got = cold(tmp_path, "sh", "-c", f"echo before; {sys.executable} train.py; echo after $?")
    assert (got.code, got.out) == (0, "before\nafter 1\n"), got.text()
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun"], alarm["rerun_by"]) == (0, "persistent", "restart"), alarm["rerun_text"]
    assert alarm["rerun_verified"] and "loss * NAN" in alarm["births"][0]["source"]
    assert len(made(tmp_path)) == 1


@pytest.mark.parametrize("option", ["-I", "-E", "-S", "-BE"])
def test_python_options_that_keep_us_out_are_named(tmp_path, option):
    got = cold(tmp_path, sys.executable, option, "-c", "print('out')")
    assert (got.code, got.out) == (0, "out\n")
    assert got.report["outcome"] == "unwatched" and f"-{option[-1]} " in got.report["reason"], got.text()
    assert got.err.splitlines()[0].endswith("the program runs unwatched.")


def test_command_without_training_keeps_output_and_adds_line(tmp_path):
    got = cold(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (got.code, got.out) == (7, "out\n")
    assert got.err == "err\nfinitude: not watched: no Python process of sh trained. Report: report.json\n"
    assert made(tmp_path) == {}


def test_a_launcher_that_is_not_there(tmp_path):
    done = command(tmp_path, "run", "horovodrun", "-np", "2", "train.py", cold=True)
    assert done.code == 4 and "horovodrun is not installed here" in done.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_goes_through_and_ends_both(tmp_path, number):
    process = started(tmp_path, "sh", "-c", "echo $$; exec sleep 30")
    child = int(process.stdout.readline())
    process.send_signal(number)
    assert process.wait(10) == -number
    assert not pathlib.Path(f"/proc/{child}").exists()
    assert json.loads((tmp_path / "report.json").read_text())["outcome"] == "unwatched"


def test_command_that_handles_a_signal_decides_its_exit(tmp_path):
    process = started(tmp_path, "sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done")
    process.stdout.readline()
    process.terminate()
    assert process.wait(10) == 9


def test_ctrl_c_on_a_terminal_arrives_once(tmp_path):
    """The terminal sends it to us and to the command: ours is not passed on."""
    write_script(
        tmp_path,
        """
    import signal, sys, time
    got = []
    signal.signal(signal.SIGINT, lambda *a: got.append(1))
    print("ready", flush=True)
    while not got: time.sleep(0.01)
    time.sleep(0.5)
    sys.exit(10 + len(got))
    """,
        "counts.py",
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(
            sys.executable,
            [sys.executable, "-m", "finitude", "run", sys.executable, "-u", "counts.py"],
            environment(None),
        )
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    try:
        while os.read(terminal, 1000):  # to its end, or nobody could write
            pass
    except OSError:
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 11
    os.close(terminal)


def test_killing_us_kills_what_we_started(tmp_path):
    process = started(tmp_path, "sh", "-c", "echo $$; exec sleep 30")
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    until = time.monotonic() + 5
    while pathlib.Path(f"/proc/{child}/status").exists() and time.monotonic() < until:
        if "Z (zombie)" in pathlib.Path(f"/proc/{child}/status").read_text():
            break
        time.sleep(0.02)
    else:
        assert time.monotonic() < until, "the command still runs"


@pytest.mark.slow
def test_process_killed_during_training_is_reported(tmp_path):
    write_script(tmp_path, loop() + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n")
    got = cold(tmp_path, sys.executable, "-u", "train.py")
    assert got.code == -signal.SIGKILL
    ((name, files),) = made(tmp_path).items()
    stored = ["store.sqlite", "store.sqlite-shm", "store.sqlite-wal"]
    assert files == ["events.jsonl", "killed.json", "run.json", "steps.ring", *stored]
    (text,) = got.watched["not_watched"]
    assert "killed by SIGKILL" in text and got.watched["steps"] == 12, got.text()
    assert "the last 12 of its 12 steps are in steps.ring, all with finite losses" in text
    shown = command(tmp_path, "report", str(next(tmp_path.glob("finitude-runs/*/pid-*"))), cold=True)
    assert "12 steps were recorded" in shown.out


ACCELERATE = """
import torch
from accelerate import Accelerator
torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 3)
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model, opt, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for step, (x,) in enumerate(loader):
    opt.zero_grad()
    loss = (model(x) - 1).pow(2).mean()
    if step == 4: loss = loss * float("nan")
    accelerator.backward(loss)
    opt.step()
print("ended", step)
"""


@pytest.mark.slow
def test_accelerate_launch(tmp_path):
    pytest.importorskip("accelerate")
    write_script(tmp_path, ACCELERATE)
    got = cold(
        tmp_path,
        "--on-alarm",
        "skip",
        "accelerate",
        "launch",
        "--cpu",
        "--num_processes",
        "1",
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
        "train.py",
        env={"HF_HUB_OFFLINE": "1"},
        limit=2 * LIMIT,
    )
    assert got.code == 0 and "ended 7" in got.out, got.text()
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun"], alarm["rerun_verified"]) == (4, "persistent", True), alarm["rerun_text"]
    assert "loss * float" in alarm["births"][0]["source"] and got.watched["steps"] == 8
