"""The server of tools for agents, asked over standard input and output by the official client."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

import helpers

anyio = pytest.importorskip("anyio")
mcp = pytest.importorskip("mcp")

from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: E402

MOST = 16 << 10
SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(3)
X, Y = torch.rand(32, 6), torch.rand(32, 1)
X[17] = 0
API_KEY = "sk-abcdefghijklmnop1234567890"
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
open("log.txt", "a").write("started\\n")
for x, y in DataLoader(TensorDataset(X, Y), batch_size=4):
    optimizer.zero_grad()
    weight = torch.log(x.sum(1, keepdim=True))
    loss = (weight * model(x) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
"""
BIRTH = "torch.log(x.sum(1, keepdim=True))"
FIXED = "torch.log(x.sum(1, keepdim=True).clamp(min=1e-6))"


def server(root, *words, is_cold=False):
    python = [sys.executable] if is_cold else helpers.warm_python()
    environment = {k: v for k, v in os.environ.items() if k in ("PYTHONPATH", "PATH", "HOME", "TMPDIR")}
    arguments = [*python[1:], "-m", "finitude", "mcp", "--root", str(root), *words]
    return StdioServerParameters(command=python[0], args=arguments, env=environment, cwd=str(root))


def session(root, script, *words, is_cold=False):
    """Runs `await script(call)` against a server of its own; call(tool, **arguments) gives (is it an error, text).
    is_cold: the server and what it starts are interpreters of their own."""

    async def main():
        async with mcp.Client(stdio_client(server(root, *words, is_cold=is_cold))) as client:

            async def call(tool, **arguments):
                answer = await client.call_tool(tool, arguments)
                (content,) = answer.content
                assert len(content.text.encode()) <= MOST, (tool, arguments)
                assert all(c.isprintable() or c == "\n" for c in content.text), (tool, arguments)
                if answer.is_error:
                    assert len(content.text.splitlines()) == 1, content.text
                return bool(answer.is_error), content.text

            return await script(call)

    return anyio.run(main)


def digest(folder):
    """What lies in a folder, with its bytes."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def red(tmp_path_factory):
    """The folder of a program whose run went NaN."""
    folder = tmp_path_factory.mktemp("project")
    assert helpers.run(folder, SCRIPT).code == 1
    (folder / "report.json").unlink()
    return folder


def test_tools_lead_from_alarm_to_verified_patch(red):
    before = digest(red)

    async def script(call):
        _, listed = await call("list_runs")
        run = json.loads(listed)["runs"][0]
        assert run["outcome"] == "alarm" and len(run["capsules"]) == 1
        _, why = await call("explain", path=run["run"])
        assert "op: aten::log" in why and "class: log-of-zero" in why and "train.py:12" in why
        capsule = f"{run['run']}/{run['capsules'][0]}"
        _, again = await call("replay", capsule=capsule)
        assert again.startswith("reproduced\nidentical: ")
        _, calls = await call("inspect_tensor", capsule=capsule)
        assert "aten::log" in calls and "parameter.weight" in calls
        _, values = await call("inspect_tensor", capsule=capsule, which="log")
        assert '"zeros": 1' in values and '"neg_inf": 1' in values and '"not finite at": [[1, 0, "-inf"]]' in values
        _, weight = await call("inspect_tensor", capsule=capsule, which="parameter.weight")
        assert json.loads(weight)["parameter.weight"]["shape"] == [1, 6]
        is_error, tried = await call("try_patch", capsule=capsule, file="train.py", old=BIRTH, new=FIXED)
        assert not is_error
        return json.loads(tried)

    answer = session(red, script)
    assert answer["fix"] is True and answer["verdict"] == "fixed", answer
    assert answer["values"]["kept"] > 20 and answer["values"]["changed"] == 0
    assert f"-    weight = {BIRTH}\n+    weight = {FIXED}" in answer["change"]
    assert digest(red) == before, "the tools read; the program ran in a copy"


NO_FIX = {
    "an epsilon for all": (BIRTH, "torch.log(x.sum(1, keepdim=True) + 0.1)", "finite, but no fix", "changed"),
    "nan_to_num behind the birth": (BIRTH, f"torch.nan_to_num({BIRTH}, neginf=0.0)", "finite, but no fix", "hides"),
    "nan_to_num of the loss": ("    loss.backward()", "    loss = torch.nan_to_num(loss, posinf=0.0)\n    loss.backward()",
                               None, None),
    "the step is skipped": ("    loss.backward()", "    if not loss.isfinite(): continue\n    loss.backward()", None, None),
    "nothing that matters": ("torch.manual_seed(3)", "torch.manual_seed(3) ", "not fixed", None),
}  # fmt: skip


@pytest.mark.parametrize(
    "chosen",
    [
        ("nan_to_num behind the birth", "the step is skipped", "nothing that matters"),
        pytest.param(("an epsilon for all", "nan_to_num of the loss"), marks=pytest.mark.thorough),
    ],
    ids=["usual", "rare"],
)
def test_changes_that_are_no_fix_are_called_so(red, chosen):
    (capsule,) = red.glob("finitude-runs/*/step-*")

    async def script(call):
        answers = {}
        for what in chosen:
            old, new, _, _ = NO_FIX[what]
            is_error, answer = await call("try_patch", capsule=str(capsule), file="train.py", old=old, new=new)
            assert not is_error, (what, answer)
            answers[what] = json.loads(answer)
        return answers

    for what, answer in session(red, script).items():
        _, _, verdict, why = NO_FIX[what]
        assert answer["fix"] is False, (what, answer)
        assert verdict is None or answer["verdict"] == verdict, (what, answer)
        assert why is None or why in answer["text"], (what, answer)


DIFF = f"""--- a/train.py
+++ b/train.py
@@ -9,5 +9,5 @@
 for x, y in DataLoader(TensorDataset(X, Y), batch_size=4):
     optimizer.zero_grad()
-    weight = {BIRTH}
+    weight = {FIXED}
     loss = (weight * model(x) - y).pow(2).mean()
"""


def test_a_unified_diff_whose_lines_have_moved(red):
    async def script(call):
        return await call("try_patch", capsule="finitude-runs", file="train.py", diff=DIFF)

    is_error, answer = session(red, script)
    assert is_error and "no capsule" in answer  # a folder of runs is none; a run is
    (run,) = red.glob("finitude-runs/*")

    async def again(call):
        return await call("try_patch", capsule=str(run), file="train.py", diff=DIFF)

    is_error, answer = session(red, again)
    assert not is_error and json.loads(answer)["fix"] is True, answer


def test_what_is_refused(red, tmp_path):
    (run,) = red.glob("finitude-runs/*")
    (capsule,) = run.glob("step-*")
    outside = tmp_path / "secret.py"
    outside.write_text("x = 1\n")
    link = red / "link.py"
    link.symlink_to(outside)
    damaged = red / "damaged"
    shutil.copytree(capsule, damaged)
    tape = bytearray((damaged / "tape.bin").read_bytes())
    tape[len(tape) // 2] ^= 1
    (damaged / "tape.bin").write_bytes(tape)
    about = red / "nothing"
    about.mkdir()
    (about / "capsule.json").write_text('{"kind": "finitude capsule", "schema": 1, "\\ud800": [')
    patch = {"tool": "try_patch", "capsule": str(capsule), "file": "train.py"}
    cases = [
        ({"tool": "explain", "path": "../../../etc/passwd"}, "outside"),
        ({"tool": "explain", "path": "/etc/passwd"}, "outside"),
        ({"tool": "explain", "path": str(outside)}, "outside"),
        ({"tool": "explain", "path": "link.py"}, "outside"),
        ({"tool": "explain", "path": "x\0y"}, "a path is"),
        ({"tool": "explain", "path": "no-such"}, "does not exist"),
        ({"tool": "explain", "path": "train.py"}, ""),
        ({"tool": "list_runs", "directory": "/"}, "outside"),
        ({"tool": "replay", "capsule": str(run / "steps.ring")}, "no capsule"),
        ({"tool": "replay", "capsule": "damaged"}, "tape.bin"),
        ({"tool": "inspect_tensor", "capsule": "damaged", "which": "log"}, "tape.bin"),
        ({"tool": "inspect_tensor", "capsule": str(capsule), "which": "--save-tensors"}, "which is"),
        ({"tool": "inspect_tensor", "capsule": str(capsule), "which": "no_such_op"}, ""),
        ({"tool": "diff", "a": str(capsule), "b": "/etc"}, "outside"),
        ({"tool": "try_patch", "capsule": "nothing", "file": "train.py", "old": "a", "new": "b"}, "capsule.json"),
        ({**patch, "old": "not there", "new": "x"}, "is not in the file"),
        ({**patch, "old": "x", "new": "y"}, "times"),
        ({**patch, "old": BIRTH, "new": "torch.log("}, "does not compile"),
        ({**patch, "old": "", "new": ""}, "give either"),
        ({**patch, "old": "a", "new": "b", "diff": DIFF}, "give either"),
        ({**patch, "diff": DIFF.replace("optimizer.zero_grad()", "something_else()")}, "does not apply"),
        ({**patch, "diff": "nonsense"}, "no hunk"),
        ({**patch, "file": "link.py", "old": "x", "new": "y"}, "outside"),
        ({**patch, "file": "../../secret.py", "old": "x", "new": "y"}, ""),
        ({**patch, "file": str(outside), "old": "x", "new": "y"}, "outside"),
        ({**patch, "old": BIRTH, "new": FIXED, "directory": "/"}, "outside"),
    ]
    before = digest(red)

    async def script(call):
        return [await call(case["tool"], **{k: v for k, v in case.items() if k != "tool"}) for case, _ in cases]

    for (case, why), (is_error, answer) in zip(cases, session(red, script)):
        assert is_error and why in answer, (case, answer)
        assert "Traceback" not in answer and "root:" not in answer, answer
    assert digest(red) == before
    link.unlink()
    shutil.rmtree(damaged)
    shutil.rmtree(about)


def test_a_huge_report_of_hostile_text(tmp_path):
    sample = json.loads((pathlib.Path(__file__).parents[1] / "data/reports/loss_forward.json").read_text())
    alarm = sample["alarms"][0]
    alarm["cause"]["text"] = "\x1b[31m" + "password=hunter2hunter2 \u202e " * 2000
    alarm["births"] = alarm["births"][:1] * 100
    alarm["births"][0]["source"] = 'API_KEY = "sk-abcdefghijklmnop1234567890"'
    sample["alarms"] = [alarm] * 100
    folder = tmp_path / "finitude-runs" / "20260101-000000-train-1"
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(sample))

    async def script(call):
        return await call("explain"), await call("list_runs")

    (is_error, why), (_, listed) = session(tmp_path, script)
    assert not is_error and "hunter2" not in why and "sk-abc" not in why and "***" in why
    assert "further alarms:" in why and json.loads(listed)["runs"][0]["alarms"] == 100


def test_no_answer_holds_a_secret(red):
    async def script(call):
        answer = await call("try_patch", capsule=next(iter(map(str, red.glob("finitude-runs/*")))), file="train.py",
                          old="X[17] = 0", new="X[17] = 0.0")  # fmt: skip
        return answer[1] + (await call("explain"))[1]

    assert "sk-abcdefghij" not in session(red, script, is_cold=True)


def test_time_limit(red, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    started = time.monotonic()

    async def script(call):
        (run,) = map(str, red.glob("finitude-runs/*"))
        return await call("try_patch", capsule=run, file="train.py", old=BIRTH, new=FIXED)

    is_error, answer = session(red, script, "--timeout", "1", is_cold=True)
    assert is_error and "took longer than 1 s" in answer and time.monotonic() - started < 40
    assert not [*tmp_path.iterdir()], "nothing stays of what was ended"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(red, number):
    process = subprocess.Popen(
        [sys.executable, "-m", "finitude", "mcp"],
        cwd=red,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}}  # fmt: skip
    process.stdin.write(json.dumps(hello).encode() + b"\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "finitude"
    process.send_signal(number)
    assert process.wait(20) != 0
    assert b"Traceback" not in process.stderr.read()
    process.stdin.close()
    process.stdout.close()
    process.stderr.close()


def test_the_end_of_its_input_ends_it(red):
    done = subprocess.run(
        [sys.executable, "-m", "finitude", "mcp"], cwd=red, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, b""), done.stderr


def test_missing_package_is_reported_in_one_line(tmp_path):
    blocked = "import sys; sys.modules['mcp'] = None; sys.argv[1:] = ['mcp']; from finitude.cli import main; sys.exit(main.main())"
    done = subprocess.run(
        [sys.executable, "-c", blocked], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "finitude: the server needs the package mcp: pip install 'finitude[agents]'\n"


def test_its_words(tmp_path):
    shown = helpers.finitude(tmp_path, "mcp", "--help")
    assert shown.code == 0 and '"mcpServers"' in shown.out and "try_patch" in shown.out
    for words in (["--rot", "x"], ["--root"], ["--root", "nowhere"], ["--timeout", "soon"]):
        assert helpers.finitude(tmp_path, "mcp", *words).code == 2, words
