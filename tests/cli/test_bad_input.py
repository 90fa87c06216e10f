"""Programs that are missing, broken, ended early or never train behave as under plain Python, and the report says
so."""

import os
import py_compile
import signal
import sys
import zipfile

import pytest

from helpers import TRAINING, finitude, plain, run, training, without_closing_line, write_script


def same_as_plain(folder, text, *args, name="train.py", options=(), env=None):
    """Exit code, stdout and stderr (but for our closing line) are those of plain Python. Returns the watched run."""
    if text is not None:
        write_script(folder, text, name)
    wanted = plain(folder, name, *args, env=env, cold=True)
    got = run(folder, None, *options, args=args, name=name, env=env)
    assert got.code == wanted.code, got.text()
    assert got.out == wanted.out
    assert without_closing_line(got.err) == wanted.err
    assert got.report is not None, "the report is written at exit always"
    return got


WORDS = "import sys; print('out'); print('err', file=sys.stderr)\n"

NEVER_TRAINS = {
    "prints": WORDS,
    "is empty": "",
    "has only a comment in another encoding": "# -*- coding: utf-8 -*-\nprint(__file__, __name__, "
    "__doc__, sorted(globals()))\n",
    "raises": WORDS + "def f():\n    raise ValueError('no such column')\nf()\n",
    "raises from another error": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e\n",
    "raises a group": "raise ExceptionGroup('several', [ValueError(1), KeyError(2)])\n",
    "has a syntax error": "print('never')\nx = = 1\n",
    "is badly indented": "if True:\nprint(1)\n",
    "exits with 0": WORDS + "sys.exit()\n",
    "exits with 3": WORDS + "sys.exit(3)\n",
    "exits with a text": WORDS + "sys.exit('out of data')\n",
    "exits with an object": WORDS + "sys.exit((1, 'two'))\n",
    "exits with True": WORDS + "sys.exit(True)\n",
    "raises SystemExit": "raise SystemExit(4)\n",
    "leaves without unwinding": "import os; print('out', flush=True); os._exit(5)\n",
    "is interrupted": WORDS
    + "sys.stdout.flush()\nimport os, signal; os.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(5)\n",
    "raises KeyboardInterrupt": "raise KeyboardInterrupt\n",
    "ends by SIGTERM": "print('out', flush=True)\nimport os, signal; os.kill(os.getpid(), "
    "signal.SIGTERM)\nimport time; time.sleep(5)\n",
    "handles SIGTERM itself": "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(9))\n"
    "os.kill(os.getpid(), signal.SIGTERM)\nimport time; time.sleep(5)\n",
    "has an excepthook": "import sys; sys.excepthook = lambda *a: print('mine', a[1]); 1 / 0\n",
    "has exit functions": "import atexit, sys; atexit.register(print, 'late'); sys.exit(2)\n",
    "forks": "import os\npid = os.fork()\nif pid == 0:\n    print('child', flush=True); os._exit(3)\n"
    "print('parent', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n",
    "forks and the child ends as a program does": "import os, sys\npid = os.fork()\nif pid == 0:\n  "
    "  print('child'); sys.exit(3)\n"
    "print('parent', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n",
    "closes its streams": "import sys; print('out'); sys.stdout.close()\n",
    "reads its arguments": "import sys; print(sys.argv, sys.path[0], sys.flags.optimize)\n",
    "reads its own source": "import inspect, sys; print(inspect.getsource(sys.modules['__main__']))\n",
    "pickles a class of its own": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)\n",
    "starts a thread that prints last": "import threading, time\nthreading.Thread(target=lambda: "
    "(time.sleep(0.1), print('late'))).start()\n",
}


@pytest.mark.parametrize("text", NEVER_TRAINS.values(), ids=NEVER_TRAINS)
def test_a_program_that(tmp_path, text):
    got = same_as_plain(tmp_path, text, "--flag", "two words")
    assert got.report["outcome"] == "unwatched" and got.report["reason"], got.text()
    assert not got.alarms and got.watched["steps"] == 0


def test_a_script_that_does_not_exist(tmp_path):
    got = same_as_plain(tmp_path, None, name="nowhere.py")
    assert (got.code, got.report["outcome"]) == (2, "unwatched")


def test_a_script_that_may_not_be_opened(tmp_path):
    (tmp_path / "train.py").symlink_to("train.py")  # a loop of links: not to be opened, even by root
    assert same_as_plain(tmp_path, None).code == 2


def test_a_directory_without_a_main_file(tmp_path):
    (tmp_path / "project").mkdir()
    assert same_as_plain(tmp_path, None, name="project").code == 1


def test_a_directory_with_a_main_file(tmp_path):
    (tmp_path / "project").mkdir()
    write_script(tmp_path, "import sys, other; print(sys.argv, sys.path[0], __name__, other.x)", "project/__main__.py")
    write_script(tmp_path, "x = 1", "project/other.py")
    same_as_plain(tmp_path, None, "a", name="project")


def test_an_archive_with_a_main_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "project.pyz", "w") as made:
        made.writestr(
            "__main__.py",
            "import sys, other; print(sys.argv, sys.path[0], __name__, __spec__.name, __file__, "
            "repr(__package__), other.x)",
        )
        made.writestr("other.py", "x = 1")
    assert "__main__ __main__" in same_as_plain(tmp_path, None, "a", name="project.pyz").out


def test_an_archive_without_a_main_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "project.pyz", "w") as made:
        made.writestr("other.py", "x = 1")
    assert same_as_plain(tmp_path, None, name="project.pyz").code == 1


def test_a_compiled_script(tmp_path):
    write_script(tmp_path, "import sys; print(sys.argv, __name__); sys.exit(5)", "job.py")
    py_compile.compile(str(tmp_path / "job.py"), str(tmp_path / "job.pyc"))
    assert same_as_plain(tmp_path, None, "a", name="job.pyc").code == 5


def test_a_module(tmp_path):
    write_script(tmp_path, "import sys; print(sys.argv[1:], __name__, __spec__.name); sys.exit(6)", "job.py")
    wanted = plain(tmp_path, "-m", "job", "a")
    got = finitude(tmp_path, "run", "--report", "report.json", "-m", "job", "a")
    assert (got.code, got.out) == (wanted.code, wanted.out) == (6, "['a'] __main__ job\n"), got.text()


def test_a_module_that_does_not_exist(tmp_path):
    wanted = plain(tmp_path, "-m", "nowhere")
    got = finitude(tmp_path, "run", "--report", "report.json", "-m", "nowhere")
    assert got.code == wanted.code == 1
    assert without_closing_line(got.err) == wanted.err


def test_names_and_arguments_in_other_scripts(tmp_path):
    name = "\u0442\u0440\u0435\u043d \u00e4.py"
    got = same_as_plain(
        tmp_path,
        "import sys; print(ascii(sys.argv), ascii(__file__))",
        "\u65e5\u672c",
        "\U0001f600",
        name=name,
        env={"PYTHONIOENCODING": "utf-8"},
    )
    assert got.report["script"].endswith(name)


TRAIN = (
    TRAINING
    + """
import os, signal, sys
for i, x in enumerate(batches):
    opt.zero_grad()
    loss_of(x).backward()
    opt.step()
    if i == 2:
        sys.stdout.flush()
        {end}
print("ended")
"""
)

ENDS = {
    "an exception": ("raise KeyError('x')", 1),
    "an exit code": ("sys.exit(3)", 3),
    "an exit text": ("sys.exit('enough')", 1),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT); __import__('time').sleep(5)", -signal.SIGINT),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); __import__('time').sleep(5)", -signal.SIGTERM),
    "SIGHUP": ("os.kill(os.getpid(), signal.SIGHUP); __import__('time').sleep(5)", -signal.SIGHUP),
    "SIGXCPU": ("os.kill(os.getpid(), signal.SIGXCPU); __import__('time').sleep(5)", -signal.SIGXCPU),
    "os._exit": ("os._exit(4)", 4),
    "nothing": ("pass", 0),
}


@pytest.mark.parametrize("end, code", ENDS.values(), ids=ENDS)
def test_a_training_ended_early_reports_what_was_seen(tmp_path, end, code):
    got = run(tmp_path, TRAIN.format(end=end))
    assert got.code == code, got.text()
    assert got.report["outcome"] == "clean" and not got.alarms, got.text()
    assert got.watched["steps"] == (6 if code == 0 else 3)


def test_forked_child_that_trains_is_watched_separately(tmp_path):
    got = run(
        tmp_path,
        TRAIN.format(
            end="""
        pid = os.fork()
        if pid == 0:
            (loss_of(x) * NAN).backward(); opt.step(); os._exit(0)   # a child that goes its own way
        os.waitpid(pid, 0)""".strip()
        ),
    )
    assert (got.code, got.out) == (0, "ended\n"), got.text()
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["action"]) == (3, "stopped") and "what its parent gave it" in alarm["rerun_text"]
    assert got.watched["steps"] == 6 + 1 and got.err.count("finitude: ") == 2


def test_an_optimizer_that_never_steps(tmp_path):
    got = run(tmp_path, TRAINING + "print('no loss')")
    assert (got.code, got.report["outcome"]) == (0, "unwatched") and "optimizer" in got.report["reason"], got.text()


def test_steps_without_any_loss(tmp_path):
    got = run(tmp_path, TRAINING + "for _ in range(3): opt.step()\nprint('ended')")
    assert (got.code, got.out, got.alarms) == (0, "ended\n", []), got.text()


READ_ONLY = TRAIN.format(end="pass")


@pytest.mark.parametrize("where", [("--runs", "blocked/runs"), ("--report", "blocked/report.json")])
def test_unwritable_place_is_a_warning_and_training_continues(tmp_path, where):
    (tmp_path / "blocked").write_text("a file, where a directory is wanted")
    write_script(tmp_path, READ_ONLY)
    got = finitude(tmp_path, "run", *where, "train.py")
    assert (got.code, got.out) == (0, "ended\n"), got.text()
    assert got.err.count("finitude: warning: cannot ") == 1 and "blocked" in got.err
    assert got.err.splitlines()[-1].startswith("finitude: 6 steps watched")


def test_alarm_is_raised_where_nothing_can_be_written(tmp_path):
    (tmp_path / "blocked").write_text("")
    text = TRAINING + "(loss_of(batches[0]) * NAN).backward()\nopt.step()"
    got = run(tmp_path, text, "--runs", "blocked/runs", "--on-alarm", "raise")
    assert got.code == 1 and "NonFiniteError" in got.err
    got.the_alarm()


USAGE = {
    "an unknown option": (["run", "--on-alram", "skip", "t.py"], "--on-alarm"),
    "an unknown value": (["run", "--on-alarm", "skp", "t.py"], "skip"),
    "an unknown level": (["run", "--level=trcae", "t.py"], "trace"),
    "an unknown word": (["rnu", "t.py"], "run"),
    "a script without the word": (["train.py"], "finitude run train.py"),
    "a number that is none": (["run", "--max-skips", "many", "t.py"], "whole number"),
    "no policy that follows": (["run", "--then", "rollback,warn", "t.py"], "skip, lower-rate, rollback, stop, raise"),
    "a rate that is not lowered": (["run", "--lower-rate-factor", "1", "t.py"], "above 0 and below 1"),
    "no share": (["run", "--max-bad-share", "5%", "t.py"], "a share of a number of steps"),
    "a share that only Python reads": (["run", "--max-bad-share", "+0.1", "t.py"], "a share of a number of steps"),
    "no number": (["run", "--grad-warn", "big", "t.py"], "takes a number"),
    "a number that is too large": (["run", "--max-bad", "5000000000", "t.py"], "at most 2147483647"),
    "a negative number": (["run", "--max-skips", "-1", "t.py"], "negative"),
    "an option without its value": (["run", "--report"], "value"),
    "nothing to run": (["run"], "script.py"),
    "a module without a name": (["run", "-m"], "module"),
    "a report in folders that are not there": (
        ["run", "--report", "/nowhere/at/all/report.json", "t.py"],
        "/nowhere/at/all/report.json",
    ),
    "a config file that is not there": (["run", "--config", "none.toml", "t.py"], "none.toml"),
}


@pytest.mark.parametrize("words, named", USAGE.values(), ids=USAGE)
def test_a_usage_error_names_what_is_meant(tmp_path, words, named):
    write_script(tmp_path, "print('must not run')", "t.py")
    got = finitude(tmp_path, *words)
    assert got.code == 2 and got.out == "" and named in got.err, got.text()
    assert got.err.startswith("finitude: ")


USAGE_OF_WORDS = {
    "one of two paths": (["diff", "a"], "two paths, A and B, or none; 1 given"),
    "a form that there is not": (["export", "a", "--to", "xml"], "not 'xml'"),
    "a port that is no number": (["live", "--port", "http"], "not 'http'"),
    "a step that is no number": (["rows", "--step", "last"], "not 'last'"),
    "a key that is not changed": (["ctl", "lr=1"], "'lr'"),
    "a policy of the past": (["policy", "--on-alarm", "skp"], "rollback, not 'skp'"),
    "a policy that follows of the past": (["policy", "--then", "skip,warm"], "not 'skip,warm'"),
    "a policy that nothing follows": (["policy", "--then", "skip,warn"], "not 'skip,warn'"),
    "a share of the past": (["policy", "--max-bad-share", "5%"], "not '5%'"),
}


@pytest.mark.parametrize("words, named", USAGE_OF_WORDS.values(), ids=USAGE_OF_WORDS)
def test_a_usage_error_of_a_word_is_short_and_names_the_value(tmp_path, words, named):
    got = finitude(tmp_path, *words)
    assert (got.code, got.out) == (2, "") and named in got.err.splitlines()[0], got.text()
    assert got.err.startswith("finitude") and len(got.err.splitlines()) <= 5, got.text()


def test_a_selftest_of_a_script_that_does_not_exist(tmp_path):
    got = finitude(tmp_path, "selftest", "nowhere.py")
    assert (got.code, got.err) == (4, "finitude selftest: cannot read nowhere.py: No such file or directory\n")


@pytest.mark.parametrize("report", ["new/folders/below/here.json", "../one-new-folder/report.json"])
def test_missing_report_folders_are_created(tmp_path, report):
    here = tmp_path / "here"
    here.mkdir()
    write_script(here, "print('ran')")
    got = finitude(here, "run", "--report", report, "train.py")
    assert got.code == 0 and (here / report).is_file(), got.text()


VARIABLES = {
    "FINITUDE_ONALARM": "FINITUDE_ON_ALARM",
    "FINITUDE_UNDO_MP": "FINITUDE_UNDO_MB",
    "FINITUDE_on_alarm": "FINITUDE_ON_ALARM",
}


@pytest.mark.parametrize("name", VARIABLES)
def test_misspelt_variable_warning_names_the_nearest_known_one(tmp_path, name):
    write_script(tmp_path, "print('ran')")
    got = finitude(tmp_path, "run", "--report", "report.json", "train.py", env={name: "skip"})
    lines = [line for line in got.err.splitlines() if name in line]
    assert got.code == 0 and lines == [
        f"finitude: warning: the environment variable {name} is not known; did you mean {VARIABLES[name]}?"
    ]


def test_known_and_dissimilar_variables_give_no_warning(tmp_path):
    write_script(
        tmp_path, "import subprocess, sys; subprocess.run([sys.executable, '-m', 'finitude', 'run', '-m', 'this'])"
    )
    env = {"FINITUDE_DEBUG": "1", "FINITUDE_HOME": "x", "FINITUDE_CUDA": "1", "FINITUDE_MAX_SKIPS": "3"}
    got = finitude(tmp_path, "run", "--report", "report.json", "train.py", env=env)
    assert got.code == 0 and "warning" not in got.err, got.text()


# `runs` is a folder of where the program was started, wherever it goes.
CONFIG = (
    "import finitude, os; c = finitude.watch()._session.config; print(c.on_alarm, c.max_skips, "
    "os.path.relpath(c.runs), os.path.isabs(c.runs))"
)


def test_command_line_wins_over_environment_over_file(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.finitude]\non-alarm = "warn"\nmax_skips = 3\nruns = "from-file"\n')
    env = {"FINITUDE_ON_ALARM": "skip", "FINITUDE_MAX_SKIPS": "4"}
    assert run(tmp_path, CONFIG).out == "warn 3 from-file True\n"
    assert run(tmp_path, CONFIG, env=env).out == "skip 4 from-file True\n"
    assert run(tmp_path, CONFIG, "--on-alarm", "raise", env=env).out == "raise 4 from-file True\n"
    (tmp_path / "other.toml").write_text("max-skips = 7\n")
    assert run(tmp_path, CONFIG, "--config", "other.toml").out == "stop 7 finitude-runs True\n"


@pytest.mark.parametrize("key, near", [('on_alram = "skip"', "on_alarm"), ('level = "gaet"', "gate")])
def test_unknown_file_key_or_value_is_usage_error(tmp_path, key, near):
    (tmp_path / "pyproject.toml").write_text(f"[tool.finitude]\n{key}\n")
    got = run(tmp_path, "print('must not run')")
    assert got.code == 2 and got.out == "" and near in got.err and "pyproject.toml" in got.err, got.text()


def test_wrong_value_in_environment_is_usage_error(tmp_path):
    got = run(tmp_path, "print('must not run')", env={"FINITUDE_LEVEL": "gates"})
    assert got.code == 2 and "FINITUDE_LEVEL" in got.err and "gate" in got.err


def test_broken_pyproject_of_other_tools_is_ignored(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.other\n")
    assert run(tmp_path, "print('ran')").out == "ran\n"


# A debugger or coverage tool set by the script sees the same lines of it as without us, and no healthy step runs ours.
TRACED = (
    """
import importlib.util, os, sys
OURS = importlib.util.find_spec("finitude").submodule_search_locations[0] + os.sep
lines, ours, step = [], [], 0
def tracer(frame, event, arg):
    if OURS in frame.f_code.co_filename: ours.append(step)
    if not frame.f_code.co_filename.endswith("train.py"): return None
    if event in ("line", "call"): lines.append(frame.f_lineno)
    return tracer
{setter}(tracer)
"""
    + TRAINING
    + """
def work():
    global step
    for i, x in enumerate(batches):
        step = i
        opt.zero_grad()
        loss = loss_of(x)
        loss.backward()
        opt.step()
work()
{setter}(None)
print(lines, [s for s in ours if s > 0])
"""
)


@pytest.mark.parametrize("setter", ["sys.settrace", pytest.param("sys.setprofile", marks=pytest.mark.thorough)])
def test_trace_function_sees_same_lines_as_unwatched(tmp_path, setter):
    write_script(tmp_path, TRACED.replace("{setter}", setter))
    wanted = plain(tmp_path, "train.py")
    got = run(tmp_path, None)
    got.assert_silent()
    assert got.out == wanted.out and wanted.code == 0 and wanted.out.count(",") > 5


def test_alarm_under_a_trace_function_is_explained(tmp_path):
    text = TRACED.replace("{setter}", "sys.settrace").replace(
        "loss.backward()", "(loss * (NAN if i == 3 else 1)).backward()"
    )
    got = run(tmp_path, text)
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun"]) == (3, "persistent") and alarm["births"][0]["line"], got.text()
    assert "settrace" not in got.err and got.code == 1


def test_fresh_process_behaves_as_the_forked_ones(tmp_path):
    write_script(tmp_path, NEVER_TRAINS["exits with a text"])
    got = run(tmp_path, None, cold=True)
    wanted = plain(tmp_path, "train.py", cold=True)
    assert (got.code, got.out, without_closing_line(got.err)) == (wanted.code, wanted.out, wanted.err)
    assert got.report["outcome"] == "unwatched" and sys.executable and os.path.isabs(got.report["script"])


def test_a_run_of_bad_steps_is_counted_at_its_end(tmp_path):
    """A scheduler ends the run while it skips."""
    text = """
import os, signal, time
for i in range(6):
    opt.zero_grad()
    (loss_of(batches[i]) * (NAN if i > 2 else 1.0)).backward()
    opt.step()
    if i == 4: os.kill(os.getpid(), signal.SIGXCPU); time.sleep(5)
"""
    got = training(tmp_path, text, "--on-alarm", "skip", "--capsules", "0")
    assert got.code == -signal.SIGXCPU and [a["step"] for a in got.alarms] == [3, 4], got.text()
    assert "5 steps watched" in got.err and "2 alarms" in got.err, got.err
    assert "under_way" not in got.report
