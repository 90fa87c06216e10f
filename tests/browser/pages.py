"""Pages of reports, looked at in a real browser: web/browser/look.mjs drives chromium."""

import atexit
import contextlib
import copy
import functools
import json
import pathlib
import select
import shutil
import subprocess
import tempfile

import pytest

import helpers

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "data" / "reports"
LIMIT = 300  # seconds for what is asked at once
LOOK = ROOT / "web" / "browser" / "look.mjs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DIFF = "--- a/model.py\n+++ b/model.py\n@@ -87 +87 @@\n-logp = torch.log(p)\n+logp = torch.log(p.clamp(min=1e-12))\n"


def browser() -> str:
    """The path of a chromium; skips the test where something is missing, and says what."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not here")
    if not (ROOT / "web" / "node_modules" / "playwright-core").is_dir():
        pytest.skip("the packages of web/ are not installed: make test-page does that")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("chromium is not here: make test-page installs it")
    return found


def look(*views):
    """What the browser found in each view (see web/browser/look.mjs)."""
    asked = json.dumps({"chromium": browser(), "views": views}, default=str)
    node, said = _node()
    with contextlib.suppress(BrokenPipeError):
        node.stdin.write(asked + "\n")
        node.stdin.flush()
    ready, _, _ = select.select([node.stdout], [], [], LIMIT)
    answer = node.stdout.readline() if ready else ""
    if not answer:
        _node.cache_clear()
        _close(node)
        said.seek(0)
        raise AssertionError(said.read() if ready else f"the browser did not answer within {LIMIT} s")
    return json.loads(answer)


@functools.cache
def _node():
    """One browser for all that this process looks at."""
    said = tempfile.TemporaryFile("w+")
    node = subprocess.Popen(["node", LOOK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True)
    atexit.register(_close, node)
    return node, said


def _close(node):
    with contextlib.suppress(OSError):
        node.stdin.close()
    try:
        node.wait(10)
    except subprocess.TimeoutExpired:
        node.kill()


def sample(name):
    return json.loads((SAMPLES / f"{name}.json").read_text())


def with_diff():
    report = sample("loss_forward")
    report["alarms"][0]["fix"]["diff"] = DIFF
    return report


def as_large_as_stories_get():
    """Two stories with every part, each of many lines."""
    report = with_diff()
    alarm = report["alarms"][0]
    birth = alarm["births"][0]
    birth["inputs"] = [{**copy.deepcopy(birth["inputs"][0]), "arg": f"operand_{i}"} for i in range(4)]
    alarm["births"] += [{**copy.deepcopy(birth), "phase": "backward"} for _ in range(12)]
    alarm["path"] *= 60
    alarm["cause"]["experiments"] = [
        {
            "name": f"whole step, change {i} of what was computed",
            "outcome": "not finite: loss, gradient of body.0.weight",
        }
        for i in range(40)
    ]
    alarm["gradients"]["bad"] *= 80
    alarm["fix"]["diff"] += "".join(f" line {i}\n" for i in range(12))
    report["alarms"].append({**copy.deepcopy(alarm), "step": 413})
    return report


def write(folder, name, report):
    """The page of a report; skips where this build makes pages of tables."""
    (folder / f"{name}.json").write_text(json.dumps(report))
    page = folder / f"{name}.html"
    code, _, err = helpers.offline("report", folder / f"{name}.json", "--html", page)
    assert code == 0, err
    if 'id="report"' not in page.read_text():
        pytest.skip("finitude was built without node: its pages are tables")
    return page
