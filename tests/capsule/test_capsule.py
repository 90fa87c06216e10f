"""A bad step leaves a capsule; copied elsewhere it comes out with the same bits, with Python and without."""

import getpass
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import types

import pytest
import torch  # noqa: F401  its libraries

import helpers
from finitude import _native
from finitude.capsules import capsule

PLAYER = pathlib.Path(_native.__file__).with_name("finitude-replay")

# A batch that makes the log fail at step 3; dropout and BatchNorm, so that generators and buffers matter.
SCRIPT = """
import torch
from torch import nn
torch.manual_seed(1)
data = [torch.rand(8, 6) for _ in range(6)]
EXTRA = None  # replaced by what a test needs
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
def train():
    for i in range(6):
        x = data[i]
        if i == BAD:
            x = x.clone()
            x[2] = 0
        optimizer.zero_grad()
        loss = (torch.log(x.sum(1, keepdim=True)) * model(x)).mean()
        loss.backward()
        optimizer.step()
train()
"""


def run(folder, *options, bad=3, script=SCRIPT):
    return helpers.run(folder, script.replace("BAD", str(bad)), *options)


def replay(*words):
    done = subprocess.run([PLAYER, *words], capture_output=True, text=True, timeout=120, env={"PATH": "/nowhere"})
    return done.returncode, done.stdout + done.stderr


def report_lines(text):
    """All of a report but where its capsule lies and what else was watched."""
    return text.partition("\ncapsule ")[0].splitlines()


@pytest.mark.parametrize(("bad", "way"), [(3, "rewind"), (0, "restart")])
def test_a_capsule_is_replayed_elsewhere(tmp_path, bad, way):
    result = run(tmp_path, bad=bad)
    alarm = result.the_alarm()
    assert alarm["rerun_by"] == way, result.text()
    assert alarm["capsule"] and f"finitudereplay{alarm['capsule']}" in "".join(result.err.split()), result.text()
    folder = tmp_path / alarm["capsule"]
    about = json.loads((folder / "capsule.json").read_text())
    assert about["replay"] == "identical" and about["step"] == bad
    assert about["alarm"]["births"][0]["op"] == "aten::log"
    # A step that is run again from the program's start makes its own parameters: nothing was there before.
    inputs = ["tensors.safetensors"] if way == "rewind" else []
    assert sorted(p.name for p in folder.iterdir()) == [
        "capsule.json",
        "start.safetensors",
        "statistics.bin",
        "tape.bin",
        *inputs,
    ]
    assert about["alarm"] == {**alarm, "capsule": None}
    (tmp_path / "report.json").rename(tmp_path / "run.json")
    of_the_run = report_lines(helpers.finitude(tmp_path, "report", "run.json", env={"COLUMNS": "80"}).out)
    (tmp_path / "run.json").unlink()
    elsewhere = tmp_path / "elsewhere" / "copy"
    shutil.copytree(folder, elsewhere)
    shutil.rmtree(folder)
    (tmp_path / "train.py").unlink()
    code, said = replay(elsewhere)
    assert code == 0 and said.startswith("identical"), said
    again = helpers.finitude(tmp_path, "replay", str(elsewhere))
    assert again.code == 0 and again.out.startswith("identical"), again.text()
    # The report is that of the run, also where there is no Python.
    code, said = replay("--report", elsewhere)
    assert code == 0 and report_lines(said) == of_the_run and len(of_the_run) > 8 and "born in forward" in said, said
    shown = helpers.finitude(tmp_path, "replay", "--report", str(elsewhere)).out
    assert (
        report_lines(shown) == of_the_run
        and report_lines(helpers.finitude(tmp_path, "report", str(elsewhere)).out) == of_the_run
    )


def test_what_schema_1_wrote_is_still_read(tmp_path):
    """Formats are a promise. The folder was written by the first version, by SCRIPT: tape, tensors, and what --with
    puts in place."""
    folder = tmp_path / "step-000003"
    shutil.copytree(pathlib.Path(__file__).parents[1] / "data" / "capsules" / "schema_1", folder)
    code, said = replay(folder)
    assert code == 0 and said.startswith(("identical", "same class of failure")), said  # of another machine
    code, said = replay("--report", folder)
    assert code == 0 and "born in forward" in said and "train.py:14" in said, said
    packed = tmp_path / "a.zip"
    assert helpers.finitude(tmp_path, "pack", str(folder), str(packed)).code == 0
    helpers.write_script(tmp_path, SCRIPT.replace("BAD", "3"))
    again = helpers.finitude(tmp_path, "replay", str(packed), "--with", "train.py")
    assert again.code == 1 and again.out.startswith("not fixed: the same birth  aten::log  train.py:"), again.text()
    assert "6 parameters, 3 buffers, optimizer state of 6, generators" in again.out, again.out


HIDDEN = """
set -e
for file in $FILES; do
  mkdir -p "$ROOT$(dirname "$file")"; : > "$ROOT$file"; mount --bind "$file" "$ROOT$file"
done
export LD_LIBRARY_PATH="$LIBRARIES"
exec chroot "$ROOT" /finitude-replay /capsule
"""


def test_replay_needs_only_program_libraries_and_capsule(tmp_path):
    """No Python, no libtorch_python, no other file at all is in reach: the root of the file system is a folder without
    them."""
    if subprocess.run(["unshare", "-r", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("needs user namespaces")
    folder = tmp_path / run(tmp_path).the_alarm()["capsule"]
    root = tmp_path / "root"
    shutil.copytree(folder, root / "capsule")
    shutil.copy2(PLAYER, root / "finitude-replay")
    libraries = subprocess.run(["ldd", PLAYER], capture_output=True, text=True, check=True).stdout
    files = {word for line in libraries.splitlines() for word in line.split() if word.startswith("/")}
    assert any("torch_cpu" in file for file in files) and not any("python" in os.path.basename(file) for file in files)
    done = subprocess.run(
        ["unshare", "-r", "-m", "sh", "-c", HIDDEN],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "FILES": " ".join([*files, "/dev/urandom", "/proc/cpuinfo"]),
            "ROOT": str(root),
            "LIBRARIES": ":".join({os.path.dirname(file) for file in files}),
        },
    )  # beside the program they are no longer
    assert done.returncode == 0 and done.stdout.startswith("identical"), done.stdout + done.stderr


# What runs the bad step again, instead of the loop in SCRIPT.
ADVERSARIAL = """
import torch
from torch import nn
torch.manual_seed(1)
G, D = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)), nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt_g, opt_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for i in range(5):
    fake = G(torch.randn(8, 3))
    opt_d.zero_grad()
    (D(fake.detach()).pow(2).mean() + (D(torch.randn(8, 4)) - 1).pow(2).mean()).backward()
    opt_d.step()
    opt_g.zero_grad()
    torch.log(D(fake) * (i != BAD)).mean().backward() if i == BAD else (D(fake) - 1).pow(2).mean().backward()
    opt_g.step()
"""
CLOSURE = SCRIPT.replace(
    """        optimizer.zero_grad()
        loss = (torch.log(x.sum(1, keepdim=True)) * model(x)).mean()
        loss.backward()
        optimizer.step()
""",
    """
        def closure():
            optimizer.zero_grad()
            loss = (torch.log(x.sum(1, keepdim=True)) * model(x)).mean()
            loss.backward()
            return loss
        optimizer.step(closure)
""",
)
SEARCH = CLOSURE.replace(
    "torch.optim.Adam(model.parameters(), lr=0.01)", "torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)"
)


@pytest.mark.parametrize(
    ("script", "way"),
    [(ADVERSARIAL, "jump"), (CLOSURE, "closure"), (SEARCH, "closure")],
    ids=["over_another_step", "closure", "line_search"],
)
def test_each_way_of_a_second_run_leaves_one(tmp_path, script, way):
    result = run(tmp_path, "--undo-mb", "8", script=script)
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["rerun_by"]) == (3, way), alarm["rerun_text"]
    assert alarm["births"][0]["op"] == "aten::log"
    about = json.loads((tmp_path / alarm["capsule"] / "capsule.json").read_text())
    assert about["replay"] == "identical", about["replay"]
    code, said = replay(tmp_path / alarm["capsule"])
    assert code == 0, said
    assert b"\x04loss\x04loss" in (tmp_path / alarm["capsule"] / "tape.bin").read_bytes()  # an outcome: kind, name


def test_what_a_second_process_leaves_outlasts_it(tmp_path):
    """Its files are thrown away where they can be kept apart; the capsule is none of them."""
    result = run(tmp_path, bad=0, script=SCRIPT + "open('done.txt', 'a').write('x')\n")
    alarm = result.the_alarm()
    assert alarm["rerun_by"] == "restart" and (tmp_path / alarm["capsule"] / "capsule.json").is_file(), result.text()
    assert not [*tmp_path.glob("finitude-runs/*/*.partial-*")]


def test_what_it_holds_is_what_the_step_reads(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    folder = tmp_path / run(tmp_path).the_alarm()["capsule"]
    tensors = safetensors.load_file(folder / "tensors.safetensors")
    assert tensors["parameter.0.weight"].shape == (8, 6)
    assert {"parameter.3.bias", "buffer.1.running_mean"} <= set(tensors)
    assert not any(key.startswith("state.") for key in tensors), "the optimizer does not run in a vetoed step"
    assert sum(t.shape == (8, 6) for key, t in tensors.items() if key.startswith("input.")) <= 1


@pytest.mark.parametrize("where", ["branch", "packed", "worktree", "detached", "unborn"])
def test_who_and_of_which_commit(tmp_path, where):
    home = tmp_path / "repository"
    home.mkdir()

    def git(*words):
        done = subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=e", *words],
            cwd=home,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    git("init", "-q", "-b", "team/main")
    folder, commit = home, None
    if where != "unborn":
        git("commit", "-q", "--allow-empty", "-m", "one")
        commit = git("rev-parse", "HEAD")
    if where == "packed":
        git("pack-refs", "--all")
    if where == "detached":
        git("checkout", "-q", "--detach")
    if where == "worktree":
        folder = tmp_path / "beside"
        git("worktree", "add", "-q", "-b", "other", str(folder))
    branch = {"detached": None, "worktree": "refs/heads/other"}.get(where, "refs/heads/team/main")
    about = json.loads((folder / run(folder).the_alarm()["capsule"] / "capsule.json").read_text())
    assert about["git"] == {"commit": commit, "branch": branch}
    assert about["user"] == getpass.getuser() and about["host"] == platform.node()


def things(value):
    """Every dict in it."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from things(inner)


def test_redacted(tmp_path):
    result = run(tmp_path, "--redact")
    folder = tmp_path / result.the_alarm()["capsule"]
    about = json.loads((folder / "capsule.json").read_text())
    text = json.dumps(about)
    assert (
        about["redacted"]
        and "torch.log" not in text
        and "train.py" not in text
        and not {"environment", "user", "host", "git"} & set(about)
    )
    assert "history" not in about["alarm"] and not re.search(r'"line"', text)
    ones = [t for t in things(about["alarm"]) if t.get("numel") == 1]
    assert not [t for t in ones if {"min", "max", "absmax"} & set(t)], ones
    assert not (folder / "tensors.safetensors").exists()
    assert about["tensors"]["0.weight"]["numel"] == 48
    code, said = replay(folder)
    assert code == 4 and "redact" in said
    assert helpers.finitude(tmp_path, "replay", str(folder)).code == 4


def test_none_is_written_where_none_is_wanted(tmp_path):
    result = run(tmp_path, "--capsules", "0")
    assert result.the_alarm()["capsule"] is None and result.the_alarm()["rerun_by"] == "rewind"
    assert not [*tmp_path.glob("finitude-runs/*/step-*")]


def test_report_names_no_capsule_removed_by_newer_ones(tmp_path):
    script = SCRIPT.replace("i == BAD", "i in (2, 3, 4, 5)").replace("x[2] = 0", "x[i - 2] = 0")
    result = helpers.run(tmp_path, script, "--on-alarm", "skip", "--capsules", "2")
    alarms = result.report["alarms"]
    kept = [a["step"] for a in alarms if a["capsule"]]
    gone = [a["step"] for a in alarms if not a["capsule"] and "repeat_of" not in a]
    assert len(alarms) == 4 and len(kept) == 2 and gone, alarms
    assert all((tmp_path / a["capsule"] / "capsule.json").is_file() for a in alarms if a["capsule"])
    several = len(gone) > 1
    steps, were = ", ".join(map(str, gone)), "were" if several else "was"
    said = f"the capsule{'s' * several} of step{'s' * several} {steps} {were} removed by --capsules"
    assert said in " ".join(result.err.split()) and not result.report["watched"]["not_watched"], result.text()
    reported = [a["step"] for a in alarms if "its capsule was removed by --capsules" in a["rerun_text"]]
    assert reported == gone, alarms


def test_the_newest_are_kept(tmp_path):
    names = [f"step-{i:06d}" for i in range(5)]
    for i, name in enumerate([*names, "step-000009.partial-12345678", "step-other", "notes"]):
        folder = tmp_path / name
        folder.mkdir()
        if name != "step-other":
            (folder / "capsule.json").write_text("{}")
        os.utime(folder, (1000 + i, 1000 + i))
    _native.capsules_keep_newest(
        str(tmp_path), 2, str(tmp_path / names[0])
    )  # the oldest by its date is the one just written
    kept = sorted(p.name for p in tmp_path.iterdir())
    assert kept == ["notes", names[0], names[3], names[4], "step-000009.partial-12345678", "step-other"]


def test_too_large_capsule_is_reported(tmp_path):
    large = SCRIPT.replace("loss = (", "loss = 0 * model[0](table).mean() + (").replace(
        "EXTRA = None  # replaced by what a test needs", "table = torch.rand(100_000, 6)"
    )
    result = run(tmp_path, "--capsule-max", "1", script=large)
    assert result.the_alarm()["capsule"] is None
    assert any("reads more than 1 MB" in what for what in result.watched["not_watched"]), result.text()
    assert not [*tmp_path.glob("finitude-runs/*/step-*")]


def test_capsule_size_limit_is_reported_where_it_applies(tmp_path):
    reported = []
    report = types.SimpleNamespace(add_not_watched=reported.append)
    capsules = capsule.Capsules(types.SimpleNamespace(capsule_max=3), report, None, None)
    (tmp_path / "capsule.json").write_text("{}")
    for why, folder in (
        ("would take 4 MB", None),
        ("its folder cannot be written: No space left on device", None),
        ("", tmp_path),
        ("", None),
    ):
        capsules._report_missing({"step": 5}, why, "identical", folder)
    (tmp_path / "capsule.json").write_text('{"start": {}}')
    capsules._report_missing({"step": 5}, "", "identical", tmp_path)
    assert reported == [
        "a capsule of step 5: would take 4 MB (--capsule-max 3)",
        "a capsule of step 5: its folder cannot be written: No space left on device",
        "in the capsule of step 5 what `replay --with` needs: it would grow too large by it (--capsule-max 3)",
    ]


FULL = """
import resource
# As on a full disk: no file grows beyond 64 KB.
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
"""


def test_start_state_is_measured_without_tensors_on_tape(tmp_path):
    """Weights of 1 MB, which the step reads, and as much in the optimizer's state, which it does not."""
    wide = SCRIPT.replace("EXTRA = None", "table = nn.Parameter(torch.rand(43_000, 6))").replace(
        "model.parameters(), lr=0.01)", "[*model.parameters(), table], lr=0.01)"
    )
    wide = wide.replace("loss = (", "loss = 0 * table.mean() + (").replace("torch.optim.Adam(", "torch.optim.RMSprop(")
    result = run(tmp_path, "--capsule-max", "3", script=wide)  # in all 1 + 1 MB, and a little
    assert "start" in json.loads((tmp_path / result.the_alarm()["capsule"] / "capsule.json").read_text()), result.text()


def test_full_disk_is_reported_and_leaves_no_files(tmp_path):
    large = SCRIPT.replace("loss = (", "loss = 0 * model[0](table).mean() + (").replace(
        "EXTRA = None", FULL + "table = torch.rand(10_000, 6)"
    )
    result = run(tmp_path, "--on-alarm", "skip", script=large)
    assert result.code == 0 and result.the_alarm()["capsule"] is None, result.text()
    assert any("its folder cannot be written" in what for what in result.watched["not_watched"]), result.text()
    assert not [*tmp_path.glob("finitude-runs/*/step-*")]


def test_damaged_and_foreign_folders(tmp_path):
    folder = tmp_path / run(tmp_path).the_alarm()["capsule"]
    tape = folder / "tape.bin"
    content = tape.read_bytes()
    tape.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    for said in (replay(folder), (lambda r: (r.code, r.err))(helpers.finitude(tmp_path, "replay", str(folder)))):
        assert said[0] == 3 and "tape.bin is damaged" in said[1]
    for other in (tmp_path, tmp_path / "nowhere"):
        assert helpers.finitude(tmp_path, "replay", str(other)).code == 3
        assert replay(other)[0] == 3
    assert f"one lies in it: name {folder}\n" in replay(folder.parent)[1]
    newest = helpers.finitude(tmp_path, "replay")
    assert newest.code == 3 and "took the newest capsule" in newest.err and "tape.bin is damaged" in newest.err


def test_a_healthy_run_leaves_none(tmp_path):
    result = run(tmp_path, bad=99)
    result.assert_silent()
    assert not [*tmp_path.glob("finitude-runs/*/step-*")]
