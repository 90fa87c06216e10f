"""A healthy run ends with one line: steps, time, what was watched and what was not, where report and page are."""

import re
import sys

import helpers

HEALTHY = """
import torch
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    opt.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    opt.step()
"""
LINE = r"finitude: 3 steps watched in \d+(\.\d)? s, 6 gradients scanned, all finite\. Report: (.+\.json), page: (.+)\n"


def test_of_a_script(tmp_path):
    helpers.write_script(tmp_path, HEALTHY)
    got = helpers.finitude(tmp_path, "run", "train.py")
    line = re.fullmatch(LINE, got.err)
    assert got.code == 0 and line, got.text()
    report = tmp_path / line[2]
    assert line[2].startswith("finitude-runs/") and report.is_file()
    assert line[3] == "report.html" and (report.parent / line[3]).is_file(), "the page lies beside the report"


def test_of_a_command_that_starts_it(tmp_path):
    helpers.write_script(tmp_path, HEALTHY)
    got = helpers.finitude(tmp_path, "run", "sh", "-c", f"{sys.executable} train.py", cold=True)
    line = re.fullmatch(LINE, got.err)
    assert got.code == 0 and line and (tmp_path / line[2]).with_name(line[3]).is_file(), got.text()


def test_without_a_run_folder_no_page_is_named(tmp_path):
    (tmp_path / "taken").write_text("a file where the folder of runs should be")
    got = helpers.run(tmp_path, HEALTHY, "--runs", "taken")
    assert "Report: report.json\n" in got.err and "page" not in got.err, got.text()
