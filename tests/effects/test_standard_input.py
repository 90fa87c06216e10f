"""A program that trains on what it reads from its standard input: what a second process is given there."""

import json
import subprocess

import helpers

READS = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
rows = (torch.tensor([[float(v) for v in line.split()]]) for line in sys.stdin)
for x in iter(lambda: next(rows, None), None):
    loss = (model(x / x.norm(dim=1, keepdim=True)) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print("over", loss.item())
"""
ROWS = "".join("0 0 0\n" if i == 5 else f"{i} 2 {i % 3}\n" for i in range(9))


def _run(folder, options, **given):
    helpers.write_script(folder, READS)
    done = subprocess.run(
        [*helpers.warm_python(), "-m", "finitude", "run", "--report", "report.json", *options, "train.py"],
        cwd=folder,
        env=helpers.environment(None),
        capture_output=True,
        text=True,
        timeout=120,
        **given,
    )
    (alarm,) = json.loads((folder / "report.json").read_text())["alarms"]
    assert "over" in done.stdout and alarm["step"] == 5, done.stderr
    return alarm


def test_stdin_file_is_reopened_at_its_original_position(tmp_path):
    (tmp_path / "rows.txt").write_text("x y z\n" + ROWS)
    with open(tmp_path / "rows.txt", "rb", buffering=0) as file:
        file.readline()  # as a shell's `read` does before it starts the program
        alarm = _run(tmp_path, ["--on-alarm", "skip"], stdin=file)
        assert (
            file.read() == b""
        )  # shared with the program, which read it to its end; the second process has not moved it
    assert (alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"]) == ("persistent", "restart", True), alarm[
        "rerun_text"
    ]
    assert alarm["births"][0]["op"] == "aten::div"


def test_consumed_pipe_is_reported_as_not_rereadable(tmp_path):
    alarm = _run(tmp_path, ["--on-alarm", "skip"], input=ROWS)
    assert alarm["rerun"] == "not-run"
    assert "its standard input, which can be read once only, is empty there" in alarm["rerun_text"]


def test_empty_standard_input_is_not_mentioned(tmp_path):
    helpers.write_script(
        tmp_path, READS.replace("for line in sys.stdin", "for line in open('rows.txt')") + "sys.exit(0)\n"
    )
    (tmp_path / "rows.txt").write_text(ROWS)
    got = helpers.finitude(tmp_path, "run", "--report", "report.json", "--on-alarm", "skip", "train.py")
    assert got.the_alarm()["rerun_by"] == "restart" and "standard input" not in got.the_alarm()["rerun_text"]
