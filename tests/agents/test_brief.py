"""`finitude report --for-agent`: at most 16 KB of whatever report, the most useful first, nothing hostile in it."""

import copy
import json
import os
import pathlib
import re
import shlex
import time

import pytest

import helpers
import mutations
from finitude.agents import brief, changed_copy, roots, text
from finitude.agents.text import Refused
from finitude.agents.tools import Tools
from finitude.cli.table import WORDS

DATA = pathlib.Path(__file__).parents[1] / "data"
REPORTS = {p.stem: json.loads(p.read_text()) for p in sorted((DATA / "reports").glob("*.json"))}
ORDER = ["finitude", "run", "alarm", "birth", "cause", "fix", "replay", "experiments", "path to the sink", "watched"]


def asked(folder, *words):
    return helpers.finitude(folder, "report", "--for-agent", *map(str, words))


def run_of(folder, name, document):
    path = folder / "finitude-runs" / name
    path.mkdir(parents=True)
    (path / "report.json").write_text(json.dumps(document))
    return path


def test_of_the_newest_run_the_most_useful_first(tmp_path):
    run_of(tmp_path, "20260102-000000-old-1", REPORTS["clean"])
    run_of(tmp_path, "20260102-000001-new-1", REPORTS["loss_forward"])
    done = asked(tmp_path)
    assert done.code == 0 and "20260102-000001-new-1" in done.out, done.text()
    found = [row[:-1] for row in done.out.splitlines() if row.endswith(":") and not row.startswith(" ")]
    assert [name for name in ORDER if name in found] == [name for name in found if name in ORDER]
    assert found[:3] == ORDER[:3] and "birth" in found and "cause" in found
    birth = REPORTS["loss_forward"]["alarms"][0]["births"][0]
    assert f"at: {birth['file']}:{birth['line']}" in done.out and birth["source"] in done.out


def test_as_json(tmp_path):
    run_of(tmp_path, "20260102-000001-new-1", REPORTS["loss_forward"])
    answer = json.loads(asked(tmp_path, "--json").out)
    assert answer["schema"] == 1 and answer["run"]["outcome"] == "alarm" and answer["cut"] == []
    assert answer["birth"]["op"] == REPORTS["loss_forward"]["alarms"][0]["births"][0]["op"]


def test_exit_codes_and_what_has_no_report(tmp_path):
    nothing = asked(tmp_path)
    assert (nothing.code, nothing.out) == (3, "") and "no run in finitude-runs" in nothing.err
    assert asked(tmp_path, "nowhere").code == 3
    assert asked(tmp_path, "--bogus").code == 2
    assert asked(tmp_path, "a", "b").code == 2
    assert asked(tmp_path, "--help").code == 0
    path = tmp_path / "finitude-runs" / "20260102-000001-new-1"
    path.mkdir(parents=True)
    (path / "report.json").write_text('{"schema": 1')
    assert asked(tmp_path).code == 3


def test_it_is_fast_and_loads_no_torch(tmp_path):
    run_of(tmp_path, "20260102-000001-new-1", REPORTS["loss_forward"])
    started = time.monotonic()
    code = "import sys; sys.argv[1:] = ['report', '--for-agent']; from finitude.cli import main; c = main.main(); assert 'torch' not in sys.modules; sys.exit(c)"
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 10


def test_a_run_and_its_capsule_packed_and_not(tmp_path):
    script = """
    import torch
    model = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    TOKEN = "hf_abcdefghijklmnopqrstuvwx"
    (model(torch.ones(3, 2)) * torch.log(torch.tensor(0.0))).sum().backward()
    opt.step()
    """
    result = helpers.run(tmp_path, script, args=("--api-key", "abcdef123456"))
    capsule = result.the_alarm()["capsule"]
    packed = helpers.finitude(tmp_path, "pack", capsule, "bad.zip")
    assert packed.code == 0
    for path in (capsule, "bad.zip", os.path.dirname(capsule)):
        done = asked(tmp_path, path)
        assert done.code == 0 and "aten::log" in done.out, done.text()
        assert "abcdef123456" not in done.out and "hf_abc" not in done.out
        assert f"report of: {path}" in done.out


def test_of_a_run_without_a_report_what_it_recorded(tmp_path):
    helpers.training(tmp_path, "for x in batches:\n    loss_of(x).backward(); opt.step()")
    (run,) = (tmp_path / "finitude-runs").iterdir()
    (run / "report.json").unlink(missing_ok=True)
    plain, as_json = asked(tmp_path), asked(tmp_path, "--json")
    assert plain.code == as_json.code == 0 and "steps were recorded, the last of them:" in plain.out, plain.text()
    assert json.loads(as_json.out)["text"].splitlines()[1:3] == plain.out.splitlines()[1:3]


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_limit_holds_for_long_reports(name, as_json):
    document = json.loads(json.dumps(REPORTS[name]))
    for alarm in document["alarms"]:
        alarm["births"] = alarm["births"] * 300
        if alarm.get("cause"):
            alarm["cause"]["text"] = "x\x1b\u202e\n" * 50_000
            alarm["cause"]["experiments"] = [{"name": "\u00e9" * 9999, "outcome": "\U0001f600" * 9999}] * 500
        if alarm.get("fix"):
            alarm["fix"]["diff"] = "+ y = 1\x07\n" * 9999
    document["alarms"] = document["alarms"] * 200
    document["advisories"] = [{"kind": "k" * 9999, "text": "t" * 9999}] * 999
    shown = brief.brief(document, name, as_json)
    assert len(shown.encode()) <= text.MOST
    assert all(c.isprintable() or c == "\n" for c in shown)
    if as_json:
        json.loads(shown)


@pytest.mark.slow
def test_damaged_documents(tmp_path):
    """300, which the program that checks them would not let through."""

    def one(draw):
        document = mutations.damaged(draw.choice(list(REPORTS.values())), draw)
        if not isinstance(document, dict):
            return
        for as_json in (False, True):
            shown = brief.brief(document, "x", as_json)
            assert len(shown.encode()) <= text.MOST and all(c.isprintable() or c == "\n" for c in shown)

    mutations.tries(300, 21, one)


# -- paths and patches -------------------------------------------------------------------------


def test_paths_stay_in_their_roots(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "in-not"
    inside.mkdir()
    outside.mkdir()
    (inside / "a").write_text("")
    (inside / "link").symlink_to(outside)
    (inside / "loop").symlink_to(inside / "loop")
    allowed = roots.Roots([str(inside)])
    assert allowed.path("a") == str(inside / "a") and allowed.path(".") == str(inside)
    for bad in (
        "..",
        "../in-not",
        "link",
        str(outside),
        "/",
        "a/../..",
        "~",
        "~root",
        "loop",
        "missing",
        "",
        "\0",
        "x" * 5000,
        None,
        3,
        ["a"],
    ):
        with pytest.raises(Refused):
            allowed.path(bad)


SOURCE = "a = 1\nb = 2\nc = 3\nd = 4\nb = 2\n"


@pytest.mark.parametrize(
    "diff, after",
    [
        ("@@ -1,3 +1,3 @@\n a = 1\n-b = 2\n+b = 5\n c = 3\n", "a = 1\nb = 5\nc = 3\nd = 4\nb = 2\n"),
        (
            "--- a/x\n+++ b/x\n@@ -3,2 +3,3 @@ def f():\n c = 3\n+x = 0\n d = 4\n",
            "a = 1\nb = 2\nc = 3\nx = 0\nd = 4\nb = 2\n",
        ),
        ("@@ -9,2 +9,1 @@\n c = 3\n-d = 4\n", "a = 1\nb = 2\nc = 3\nb = 2\n"),
        ("@@ -0,0 +1 @@\n+import x\n", "import x\n" + SOURCE),
        ("@@ -1 +1,2 @@\n a = 1\n+z = 0\n@@ -4 +5 @@\n-d = 4\n+d = 9\n", "a = 1\nz = 0\nb = 2\nc = 3\nd = 9\nb = 2\n"),
        ("@@ -1 +1 @@\n-a = 1\n+a = 7\n\n\n", "a = 7\nb = 2\nc = 3\nd = 4\nb = 2\n"),
    ],
)
def test_unified_diffs(diff, after):
    assert changed_copy.patched(SOURCE, diff) == after


@pytest.mark.parametrize(
    "diff",
    [
        "",
        "x",
        "@@ -7,2 +7,1 @@\n b = 2\n-q = 1\n",
        "@@ -3 +3 @@\n-b = 2\n+b = 3\n",
        "--- a\n+++ b\n@@ -1 +1 @@\n-a = 1\n+a = 2\n--- c\n+++ c\n",
    ],
)
def test_diffs_that_do_not_fit(diff):
    with pytest.raises(Refused):
        changed_copy.patched(SOURCE, diff)


def test_a_copy_is_bounded_and_follows_no_link(tmp_path, monkeypatch):
    home, to = tmp_path / "home", tmp_path / "to"
    (home / "pkg").mkdir(parents=True)
    to.mkdir()
    (home / "pkg" / "a.py").write_text("x")
    (home / "big.bin").write_bytes(b"0" * 5000)
    (home / ".git").mkdir()
    (home / ".git" / "x").write_text("")
    (home / "out").symlink_to(tmp_path)
    (home / "alias.py").symlink_to(home / "pkg" / "a.py")
    (home / "data").mkdir()
    (home / "data" / "d").write_text("")
    os.mkfifo(home / "pipe")
    monkeypatch.setattr(changed_copy, "MOST_FILE", 4000)
    assert changed_copy.copy(str(home), str(to), [str(home / "data")]) == ["big.bin"]
    assert sorted(p.relative_to(to).as_posix() for p in to.rglob("*")) == ["alias.py", "data", "pkg", "pkg/a.py"]
    assert (to / "data").is_symlink() and not (to / "alias.py").is_symlink()
    monkeypatch.setattr(changed_copy, "MOST_FILES", 1)
    (to / "data").unlink()
    with pytest.raises(Refused):
        changed_copy.copy(str(home), str(to))


@pytest.mark.parametrize(
    ("script", "words", "expected"),
    [
        ("/srv/fits/train.py", ["python", "train.py"], ["/srv/fits/train.py"]),
        ("/srv/my fits/train.py", ["python", "-m", "finitude", "run", "train.py"], ["/srv/my fits/train.py"]),
        (
            "/srv/my fits/train.py",
            ["python", "-m", "finitude", "run", "--on-alarm", "skip", "train.py", "--name", "it's a test"],
            ["/srv/my fits/train.py", "--name", "it's a test"],
        ),
        ("", [], ["train.py"]),
    ],
)
def test_a_printed_trial_starts_the_program_as_it_was_started(tmp_path, script, words, expected):
    document = copy.deepcopy(REPORTS["loss_forward"])
    document.update(script=script, command=words)
    document["alarms"][0]["capsule"] = "/srv/my fits/finitude-runs/1/step-000003"
    path = run_of(tmp_path, "20260102-000001-new-1", document)
    typed = shlex.split(json.loads(asked(tmp_path, path, "--json").out)["replay"]["try a change"])
    assert typed[:3] == ["finitude", "replay", "/srv/my fits/finitude-runs/1/step-000003"]
    options = dict(zip(typed[3::2], map(shlex.split, typed[4::2]), strict=True))  # as a trial reads its values
    assert options == {"--with": ["CHANGED.py", *expected[1:]], "--against": expected}


def test_no_range_is_said_of_values_that_were_not_read(tmp_path):
    document = copy.deepcopy(REPORTS["loss_forward"])
    birth = document["alarms"][0]["births"][0]
    one = {**birth["inputs"][0], "arg": "target", "dtype": "other", "numel": 0, "min": 0.0, "max": 0.0, "zero": 0}
    birth["inputs"] = [{**one, "nan": 0, "inf": 0, "pos_inf": 0, "neg_inf": 0, "shape": [512]}]
    again = {**document["alarms"][0], "step": 259, "births": [], "repeat_of": document["alarms"][0]["step"]}
    document["alarms"].append(again)
    path = run_of(tmp_path, "20260102-000001-new-1", document)
    answer = json.loads(asked(tmp_path, path, "--json").out)
    assert answer["birth"]["inputs"] == ["target [512] integer, not scanned"]
    (further,) = answer["further alarms"]
    assert further.startswith(f"step 259 rank 0: as step {document['alarms'][0]['step']}, "), further


@pytest.mark.parametrize("line, is_patch", [("    y = 1", True), ("\ty = 1", False), ("    y = " + "x" * 200, False)])
def test_a_diff_that_is_no_patch_here_says_where_it_is_one(tmp_path, line, is_patch):
    document = copy.deepcopy(REPORTS["loss_forward"])
    diff = f"--- ./a.py\n+++ ./a.py\n@@ -1 +1 @@\n-{line}\n+{line} + 1\n"
    document["alarms"][0]["fix"]["diff"] = diff
    path = run_of(tmp_path, "20260102-000001-new-1", document)
    fix = json.loads(asked(tmp_path, path, "--json").out)["fix"]
    assert ("as a patch" in fix) == (fix["diff"] != diff) == (not is_patch), fix
    assert json.loads(helpers.finitude(tmp_path, "report", "--json", str(path)).out)["alarms"][0]["fix"]["diff"] == diff


def test_what_is_shipped_for_agents_names_what_exists(tmp_path):
    shipped = pathlib.Path(brief.__file__).parent
    got = helpers.finitude(tmp_path, "mcp", "--skill")
    assert (got.code, got.err) == (0, "") and got.out == (shipped / "SKILL.md").read_text(), got.text()
    assert got.out.startswith("---\nname: finitude\ndescription: ")
    text = got.out + (shipped / "llms.txt").read_text()
    commands = re.findall(r"`finitude (\S+?)((?: [^`]*)?)`", text)
    assert {word for word, _ in commands} == {"run", "report", "list", "replay", "diff", "doctor", "mcp"} <= set(WORDS)
    for word in {word for word, _ in commands if word != "run"}:  # what follows `run` is of the script
        known = helpers.finitude(tmp_path, word, "--help").out + asked(tmp_path, "--help").out
        options = [one for name, rest in commands if name == word for one in re.findall(r"--[a-z-]+", rest)]
        assert [one for one in options if one not in known and one != "--help"] == [], word
    tools = set(re.findall(r"`([a-z_]+)\((?!s)", text))  # not log(softmax)
    assert tools == {"explain", "inspect_tensor", "try_patch"}
    assert all(callable(getattr(Tools, one)) for one in tools)
