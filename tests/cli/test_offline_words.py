"""`report`, `list` and `dump` are answered by a program without torch, at the cost of a start of Python and little more."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

import helpers
import made_stores
from finitude.cli import table

DATA = pathlib.Path(__file__).parents[1] / "data"
CAPSULE = DATA / "capsules" / "schema_1_statistics"
TRACE = DATA / "reports" / "trace.json"
SCRIPTS = pathlib.Path(sysconfig.get_path("scripts"))
MOST_CPU = 0.1  # seconds
# On a slow machine 0.1 s is not enough for Python itself; there it may be this many times what Python needs to start and to
# import what reads options.
MOST_STARTS = 5
WORDS = [
    ["report", str(DATA / "reports" / "several.json")],
    ["report", str(CAPSULE)],
    ["list", str(DATA)],
    ["dump", str(CAPSULE)],
    ["diff", str(TRACE), str(TRACE)],
]
# Help, the version and completion: not one of them has a reason to take long.
QUICK = [
    ["--version"],
    ["--help"],
    *(["completion", shell] for shell in ("bash", "zsh", "fish")),
    *([word, "--help"] for word in table.WORDS),
]


def without_torch(folder):
    """An environment in which a program that imports torch fails."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    return {**helpers.environment(None), "PYTHONPATH": str(folder)}


def cpu_of(command, env, folder):
    """(Seconds of CPU, exit code) of a process and of those that it started; what it takes to be started is not its
    own: the least of several times."""
    child = subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime, child.returncode


@pytest.fixture(scope="module")
def most_cpu(tmp_path_factory):
    """Seconds of CPU that a word may take on this machine."""
    start = [sys.executable, "-c", "import argparse, json, subprocess"]
    env, folder = helpers.environment(None), tmp_path_factory.mktemp("start")
    return max(MOST_CPU, MOST_STARTS * min(cpu_of(start, env, folder)[0] for _ in range(5)))


@pytest.mark.parametrize("words", WORDS + QUICK, ids=lambda words: " ".join(map(os.path.basename, words)))
def test_each_takes_little_cpu_and_no_torch(tmp_path, words, most_cpu):
    env = without_torch(tmp_path)
    times = []
    for _ in range(5):
        used, code = cpu_of([str(SCRIPTS / "finitude"), *words], env, tmp_path)
        assert code == 0
        times.append(used)
        if used < most_cpu:  # the least of several
            break
    assert min(times) < most_cpu, times


def test_the_course_of_a_run_takes_little_cpu(tmp_path, most_cpu):
    run = made_stores.run(tmp_path / "run", steps=4096, parameters=50)
    command = [str(SCRIPTS / "finitude"), "report", str(run)]
    times = [cpu_of(command, without_torch(tmp_path / "run"), tmp_path)[0]]
    times += [cpu_of(command, helpers.environment(None), tmp_path)[0] for _ in range(4)]
    assert min(times) < most_cpu, times
    got = helpers.finitude(tmp_path, "report", str(run))
    assert got.code == 0 and "steps 0 to 4095" in got.out and "learning rate" in got.out, got.text()


def test_a_packed_capsule_is_read_without_torch(tmp_path):
    env = without_torch(tmp_path)

    def finitude(*words):
        command = [SCRIPTS / "finitude", *words]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)

    shutil.copytree(CAPSULE, tmp_path / "step-2")
    packed = finitude("pack", "step-2", "a.zip")
    assert (packed.returncode, packed.stdout) == (0, "a.zip\n"), packed.stderr
    plain = finitude("report", "step-2", "--json")
    shown = finitude("report", "--json", "a.zip")
    assert shown.returncode == 0 and shown.stdout == plain.stdout.replace("step-2", "a.zip"), shown.stderr
    assert finitude("dump", "a.zip").stdout == finitude("dump", "step-2").stdout != ""
    assert finitude("report", "a.zip", "--html", "page.html").returncode == 0
    assert finitude("unpack", "a.zip", "back").returncode == 0


def test_diff_of_capsules_works_without_torch(tmp_path):
    shutil.copytree(CAPSULE, tmp_path / "step-2")
    absent = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    (tmp_path / "torch.py").write_text(absent)
    finitude = [sys.executable, "-m", "finitude"]
    env = {**helpers.environment(None), "PYTHONPATH": str(tmp_path)}
    subprocess.run([*finitude, "pack", "step-2", "a.zip"], cwd=tmp_path, env=env, check=True)
    done = subprocess.run([*finitude, "diff", "step-2", "a.zip"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("finitude:"), done


def test_both_ways_to_start_it_answer_alike(tmp_path):
    for words in (
        *WORDS,
        [],
        ["--help"],
        ["--version"],
        ["replay", "--help"],
        ["report"],
        ["report", "--bogus", "x"],
        ["list", "nowhere"],
        ["report", "nothing"],
    ):
        started = [
            subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, env=helpers.environment(None))
            for command in ([SCRIPTS / "finitude"], [sys.executable, "-m", "finitude"])
        ]
        inside = helpers.finitude(tmp_path, *words)
        answers = {(done.returncode, done.stdout.decode(), done.stderr.decode()) for done in started}
        assert answers == {(inside.code, inside.out, inside.err)}, words


def test_the_player_is_on_the_path(tmp_path):
    command = [SCRIPTS / "finitude-replay", "--report", CAPSULE]
    done = subprocess.run(command, capture_output=True, text=True, env=without_torch(tmp_path), cwd=tmp_path)
    assert done.returncode == 0 and "born" in done.stdout, done.stderr


MISSING = """
import sys
from finitude.base import programs
programs.path_of = lambda name: "/nonexistent/program"
from finitude.cli import entry
sys.exit(entry.main())
"""


@pytest.mark.parametrize(
    "words", [["report", str(CAPSULE)], ["pack", str(CAPSULE), "c.zip"]], ids=lambda words: words[0]
)
def test_a_program_that_cannot_be_started_is_named(tmp_path, words):
    done = subprocess.run([sys.executable, "-c", MISSING, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 4 and "cannot start /nonexistent/program" in done.stderr, done


def test_a_run_of_several_processes_without_a_report(tmp_path):
    report = json.loads((DATA / "reports" / "several.json").read_text())
    del report["reason"]
    for rank in ("rank-0", "rank-1"):
        (tmp_path / "runs" / "run" / rank).mkdir(parents=True)
        (tmp_path / "runs" / "run" / rank / "report.json").write_text(json.dumps(report))
    code, out, err = helpers.offline("list", tmp_path / "runs")
    assert code == 0 and "run" in out and "cannot" not in err, (out, err)
    for option in ("--json", "--html=p.html"):
        code, out, err = helpers.offline("report", tmp_path / "runs" / "run", option)
        assert (code, out) == (3, "") and "has no report.json" in err and "rank-0" in err, (out, err)


@pytest.mark.parametrize("words", [["list", "c.capsule.zip"], ["report", "run", "--html", "c.capsule.zip"]])
def test_a_packed_capsule_where_none_is_read(tmp_path, words):
    assert helpers.finitude(tmp_path, "pack", str(CAPSULE), "c.capsule.zip").code == 0
    done = helpers.finitude(tmp_path, *words)
    assert done.code == 3 and "c.capsule.zip is not a folder" in done.err or "run" in done.err, done.text()
