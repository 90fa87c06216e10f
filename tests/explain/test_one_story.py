"""One finding is explained once, and what ends a program says why: repeats, the last line of a log, patches, names of
enumerations."""

import json
import subprocess

import pytest

import helpers
from helpers import training

HARMLESS = """
net = nn.Linear(4, 5)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, ignored = torch.randn(8, 4), torch.full((8,), -100)
for i in range({steps}):
    y = torch.randint(0, 5, (8,)) if {good} else ignored
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.mark.parametrize("good", ["False", "i % 2"], ids=["each step", "every other step"])
def test_a_harmless_finding_is_explained_once(tmp_path, good):
    got = training(tmp_path, HARMLESS.format(steps=12, good=good), "--on-alarm", "stop")
    first, *others = got.alarms
    assert first["births"] and first["harmless"] and first["rerun_by"] != "none", got.text()
    assert len(others) >= 5 and all(
        a["repeat_of"] == first["step"] and a["rerun_by"] == "none" and not a["births"] for a in others
    ), got.text()
    assert {a["cause"]["class"] for a in others} == {first["cause"]["class"]} and not any(a["capsule"] for a in others)
    assert got.err.count("born in forward") == 1 and "as step 0" in got.err, got.err


def test_final_stop_names_the_option_and_the_cause(tmp_path):
    got = training(tmp_path, HARMLESS.format(steps=12, good="False"), "--on-alarm", "stop")
    last = got.err.strip().splitlines()
    line = next(line for line in last if "NonFiniteError: " in line)
    assert got.code == 1 and len(got.alarms) == 11 and "--max-skips" in line and "train.py:" in line, got.text()
    assert "; not run again; of step 0: born in aten::" in line, line
    assert got.alarms[0]["cause"]["class"] in line and line.endswith("Report: report.json"), line


DIVERGED = """
for i in range(20):
    opt.zero_grad()
    loss = loss_of(batches[i % 6])
    if i > 2: loss = loss * NAN
    loss.backward(); opt.step()
"""


def test_one_divergence_is_one_story(tmp_path):
    got = training(tmp_path, DIVERGED, "--on-alarm", "skip")
    assert [a["step"] for a in got.alarms] == list(range(3, 14)), got.text()
    assert [a.get("repeat_of") for a in got.alarms] == [None] + [3] * 10 and sum(
        bool(a["capsule"]) for a in got.alarms
    ) == 1
    assert len(got.err.splitlines()) < 75, got.err
    (tmp_path / "kept.json").write_text(json.dumps(got.report))
    shown = helpers.finitude(tmp_path, "report", "kept.json")
    text = " ".join((shown.out + shown.err).split())
    assert "steps 4 to 13: taken to be the same finding, 10 times, not run again; step 13 stopped training" in text, (
        text
    )


SAMPLE = """
rows = torch.rand(20, 4)
rows[13] = NAN
data = torch.utils.data.TensorDataset(rows)
torch.manual_seed(1)  # the first batch has row 13, no other epoch begins with it
for epoch in range(3):
    for (x,) in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True):
        opt.zero_grad()
        loss_of(x).backward(); opt.step()
"""


def test_a_sample_that_is_bad_each_epoch_is_one_story(tmp_path):
    """Of step 0, which a second process explains, the line that wrote it; of a later one, the line of the loader."""
    got = training(tmp_path, SAMPLE, "--on-alarm", "skip")
    first, *others = got.alarms
    assert len(others) == 2 and all(a["births"][0]["samples"] == [13] for a in got.alarms), got.text()
    assert len({a["rerun_by"] for a in got.alarms}) == 2, "both ways"
    assert got.err.count("born in data") == 1, got.err
    assert got.err.count(f"; born as in step {first['step']}: ") == 2, got.err


APPLIED = """
for i in range(9):
    opt.zero_grad()
    loss = loss_of(batches[i % 6])
    if i == 3: loss = loss / 0
    loss.backward(); opt.step()
"""


def test_steps_behind_a_bad_one_that_was_applied_are_its_story(tmp_path):
    got = training(tmp_path, APPLIED, "--on-alarm", "warn")
    assert [a["step"] for a in got.alarms] == list(range(3, 9)) and got.alarms[0]["births"], got.text()
    assert [a.get("repeat_of") for a in got.alarms] == [None] + [3] * 5, got.text()
    assert {a["weights"] for a in got.alarms} == {"damaged"} and "--level tape" not in got.err, got.err
    assert got.err.count("; step 3, which is explained, was bad and was applied; not run again") == 5, got.err


def test_divergence_of_two_optimizers_is_one_story(tmp_path):
    got = training(
        tmp_path,
        """
        made, judge = nn.Linear(4, 8), nn.Linear(8, 1)
        others = [torch.optim.SGD(m.parameters(), lr=30.0) for m in (judge, made)]
        for i in range(6):
            z, real = torch.randn(16, 4), torch.randn(16, 8)
            for opt, loss in (
                (others[0], lambda: (judge(real) - 1).pow(2).mean() + judge(made(z).detach()).pow(2).mean()),
                (others[1], lambda: (judge(made(z)) - 1).pow(2).mean()),
            ):
                try:
                    opt.zero_grad(); loss().backward(); opt.step()
                except FloatingPointError:
                    print("stopped")
        """,
        "--on-alarm",
        "stop",
    )
    first, *others = got.alarms
    assert first["cause"]["class"] == "learning-rate" and len(others) > 5, got.text()
    assert all("repeat_of" in a and a["rerun_by"] == "none" for a in others if a["step"] > 3), got.text()
    assert got.err.count("born in") == 1 and f"the divergence of step {first['step']} of SGD" in got.err, got.err


def test_another_finding_in_between_is_explained(tmp_path):
    got = training(
        tmp_path,
        DIVERGED.replace("loss = loss * NAN", "loss = loss * (NAN if i != 5 else INF)").replace(
            "range(20)", "range(8)"
        ),
        "--on-alarm",
        "skip",
    )
    assert [a.get("repeat_of") for a in got.alarms] == [None, 3, None, 3, 3], got.text()
    assert got.alarms[2]["births"] and got.alarms[2]["loss"] == "Infinity", got.text()


def test_steps_failing_by_different_samples_are_each_explained(tmp_path):
    got = training(
        tmp_path,
        """
        for i in range(9):
            x = batches[i % 6].abs()
            if i in (3, 6): x[i % 4] = 0
            opt.zero_grad()
            (model(x).sum(1) * torch.log(x.sum(1))).mean().backward()
            opt.step()
        """,
        "--on-alarm",
        "skip",
    )
    assert [(a["step"], a["births"][0]["rows"]) for a in got.alarms] == [(3, [3]), (6, [2])], got.text()


LOG = """
    import torch
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 2)
    opt = torch.optim.SGD(layer.parameters(), lr=0.01)
    for step in range(5):
        x = torch.rand(8, 4)
        if step == 3:
            x[3] = 0
        with torch.no_grad():
            pass
        weight = torch.log(x.sum(1, keepdim=True))
        loss = (weight * layer(x)).mean()
        opt.zero_grad(); loss.backward(); opt.step()
"""


def test_the_exception_carries_step_place_cause_and_report(tmp_path):
    got = helpers.run(tmp_path, LOG)
    line = next(line for line in got.err.splitlines() if "NonFiniteError: " in line)
    for part in ("step 3: loss is", "aten::log at train.py:11", "(log-of-zero)", "Report: report.json"):
        assert part in line, line


ENDS = {
    "as it is": lambda text: text,
    "no newline at the end": lambda text: text.rstrip("\n"),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("command", [["patch", "-p0"], ["patch", "-p1"], ["git", "apply"]], ids=" ".join)
def test_the_fix_is_a_patch_that_applies(tmp_path, ends, command):
    (tmp_path / "lib").mkdir()
    text = "import torch\n\n\ndef weights(x):\n    return torch.log(x.sum(1, keepdim=True))\n"
    (tmp_path / "lib" / "mine.py").write_bytes(ends(text).encode())
    got = helpers.run(
        tmp_path,
        LOG.replace("import torch\n", "import torch\n    from lib import mine\n", 1).replace(
            "torch.log(x.sum(1, keepdim=True))", "mine.weights(x)"
        ),
    )
    fix = got.the_alarm()["fix"]
    assert fix["verified"] and fix["diff"].startswith("--- ./lib/mine.py\n+++ ./lib/mine.py\n@@ "), fix
    subprocess.run(
        command + ["--binary"] * (command[0] == "patch"),
        cwd=tmp_path,
        input=fix["diff"].encode(),
        check=True,
        capture_output=True,
    )
    assert b"clamp" in (tmp_path / "lib" / "mine.py").read_bytes()
    assert fix["diff"].splitlines()[0] in got.err.splitlines(), got.err


def test_culprit_has_neighbouring_lines_and_magnitudes(tmp_path):
    birth = helpers.run(tmp_path, LOG).the_alarm()["births"][0]
    around = birth["around"]
    lines = around["source"].split("\n")
    assert lines[birth["line"] - around["first"]].strip() == birth["source"]
    assert len(lines) > 1 and all(line in (tmp_path / "train.py").read_text() for line in lines)
    operand = birth["inputs"][0]
    counted = sum(operand["exponents"]["counts"]) + operand["zero"] + operand["nan"] + operand["inf"]
    assert counted == operand["numel"] > 0


def test_neighbouring_lines_hide_secrets(tmp_path):
    weight = "        weight = torch.log"
    got = helpers.run(tmp_path, LOG.replace(weight, '        api_key = "c0ffee-c0ffee-c0ffee"\n' + weight))
    around = got.the_alarm()["births"][0]["around"]["source"]
    assert "api_key" in around and "c0ffee" not in around


def test_patch_is_complete_in_terminal_and_html(tmp_path):
    long = (
        "torch.log(x.sum(1, keepdim=True)) + torch.zeros(8, 1) + torch.zeros(8, 1) + "
        "torch.zeros(8, 1) + torch.zeros(8, 1)"
    )
    got = helpers.run(tmp_path, LOG.replace("torch.log(x.sum(1, keepdim=True))", long), "--runs", "runs")
    diff = got.the_alarm()["fix"]["diff"]
    assert diff in got.err, got.err
    (page,) = (tmp_path / "runs").rglob("report.html")
    assert "\n+    weight = torch.log(" in page.read_text()


def test_dtypes_and_layouts_are_named(tmp_path):
    got = helpers.run(
        tmp_path,
        LOG.replace(
            "torch.log(x.sum(1, keepdim=True))", "torch.log_softmax(x * float('inf'), 1, dtype=torch.float64)[:, :1]"
        ),
    )
    given = {s["arg"]: s["text"] for b in got.the_alarm()["births"] for s in b.get("scalars", [])}
    assert not any(key == "dtype" and value.isdigit() for key, value in given.items()), given
    traced = helpers.run(
        tmp_path,
        """
        import torch
        layer = torch.nn.Linear(4, 2)
        opt = torch.optim.SGD(layer.parameters(), lr=0.01)
        for step in range(2):
            x = torch.ones(8, 4, dtype=torch.float64).to(torch.float32, memory_format=torch.contiguous_format)
            layer(x).mean().backward()
            opt.step()
        """,
        "--level",
        "trace",
    )
    ops = traced.report["trace"]["ops"]
    words = {
        (s["arg"], s["text"])
        for op in ops
        for s in op.get("scalars", [])
        if s["arg"] in ("dtype", "memory_format", "layout")
    }
    assert ("dtype", "float32") in words and not any(text.isdigit() for _, text in words), words


def test_advisories_are_counted_along_with_alarms(tmp_path):
    got = training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            opt.zero_grad()
            loss = loss_of(x) * (1e30 if i == 2 else NAN if i == 4 else 1)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        """,
        "--on-alarm",
        "raise",
    )
    assert [a["kind"] for a in got.advisories()] == ["clipping"] and "1 alarm, 1 advisory" in got.err, got.err


BUFFERS = """
net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
{scaler}
for i, x in enumerate(batches):
    x = x * (INF if i == 2 else 1)
    opt.zero_grad()
    loss = net(x).pow(2).mean()
    {step}
"""
PLAIN = "loss.backward(); opt.step()"
SCALED = "scaler.scale(loss).backward(); scaler.step(opt); scaler.update()"


@pytest.mark.parametrize("policy", ["stop", "skip", "warn", "raise"])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
def test_running_statistics_that_stay_nan_are_named(tmp_path, policy, scaled):
    body = BUFFERS.format(
        scaler="scaler = torch.amp.GradScaler('cpu', init_scale=4.0)" if scaled else "",
        step=SCALED if scaled else PLAIN,
    )
    got = training(tmp_path, body, "--on-alarm", policy)
    alarm = got.alarms[0]
    assert [b["name"] for b in alarm["buffers"]] == ["1.running_mean", "1.running_var"], got.text()
    assert {b["put_back"] for b in alarm["buffers"]} == {policy != "warn"} and "running_mean" in got.err, got.text()
    if policy == "warn":
        assert alarm["weights"] == ("clean" if scaled else "damaged") and "not put back" in " ".join(got.err.split()), (
            got.text()
        )
        assert not scaled or "GradScaler" in alarm["action"] and "weights are damaged" not in got.err.lower(), (
            got.text()
        )


def test_a_finite_loss_leaves_no_word_of_buffers(tmp_path):
    got = training(
        tmp_path, BUFFERS.format(scaler="", step=PLAIN).replace("INF if i == 2 else 1", "1"), "--on-alarm", "stop"
    )
    got.assert_silent()
    assert "buffers" not in json.dumps(got.report)


def test_an_infinite_running_mean_is_named(tmp_path):
    text = """
        import torch
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(5):
            x = torch.randn(6, 3)
            if step == 3:
                x[1, 0] = torch.inf
            loss = net(x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    """
    alarm = helpers.run(tmp_path, text.replace("net(x)", "net[1:](net[0](x).abs())"), "--on-alarm", "warn").alarms[0]
    named = {b["name"]: b for b in alarm["buffers"]}
    assert named["1.running_mean"]["inf"] and not named["1.running_mean"]["put_back"], alarm


def test_harmless_loss_of_other_operations_is_no_repeat(tmp_path):
    text = """
        import torch
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 3)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(14):
            x, y = torch.rand(8, 4), torch.randint(0, 3, (8,))
            if step in (2, 4):
                y[:] = -100  # a mean of nothing
            loss = torch.nn.functional.cross_entropy(net(x), y)
            if step in (8, 10):
                loss = loss + torch.log(x.sum() - 1000 + 0 * net(x).sum())  # here
            opt.zero_grad()
            loss.backward()
            opt.step()
    """
    got = helpers.run(tmp_path, text, "--on-alarm", "skip")
    assert [a["step"] for a in got.alarms] == [2, 4, 8, 10], got.text()
    assert [a.get("repeat_of") for a in got.alarms][:3] == [None, 2, None], got.text()
    assert got.alarms[2]["births"][0]["source"].endswith("# here"), got.alarms[2]


def test_missing_report_is_not_named(tmp_path):
    (tmp_path / "r").mkdir()
    got = training(tmp_path, "loss = loss_of(batches[0]) * NAN; loss.backward(); opt.step()", "--report", "r")
    assert "NonFiniteError" in got.err and "Report: r\n" not in got.err and "report.json" in got.err, got.err


PLACES = {
    "another place": "if i % 2: a(i)\n    else: b(i)",
    "another operation": "a(i, i % 2)",
}


@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize("body", PLACES.values(), ids=PLACES)
def test_what_fails_in_another_way_is_no_repeat(tmp_path, body, policy):
    text = """
import torch
import torch.nn.functional as F
torch.manual_seed(0)
net = torch.nn.Linear(16, 10)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
ignored = torch.full((8,), -100)
def a(i, is_plain=True):
    loss = F.cross_entropy(net(torch.randn(8, 16)), ignored)
    if not is_plain: loss = loss.exp()
    HARM
    opt.zero_grad(); loss.backward(); opt.step()
def b(i):
    loss = F.nll_loss(F.log_softmax(net(torch.randn(8, 16)), -1), ignored)
    HARM
    opt.zero_grad(); loss.backward(); opt.step()
for i in range(6):
    BODY
"""
    # Losses whose gradients are NaN as well are repeats only in a row.
    harm = "loss = loss * net.weight.sum()" if policy == "skip" else ""
    got = helpers.run(tmp_path, text.replace("HARM", harm).replace("BODY", body), "--on-alarm", policy)
    assert [a.get("repeat_of") for a in got.alarms][:5:2] == [None, 0, 0], got.text()
    assert {a.get("repeat_of") for a in got.alarms[1::2]} <= {None, 1}, got.text()
    assert "at the same sink as step 0, which is explained; this step was not run again" in got.err, got.text()


def test_another_cause_at_the_same_sink_is_not_said_to_be_the_same(tmp_path):
    body = """
    ones = torch.ones(8)
    for i in range(8):
        y = torch.randint(0, 5, (8,)) if i != 3 else torch.full((8,), -100)
        w = ones if i != 6 else 0 * ones
        loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), y % 1 if i != 3 else y) + (w / w.sum()).sum()
        opt.zero_grad(); loss.backward(); opt.step()
    """
    got = training(tmp_path, body, "--on-alarm", "stop")
    assert [a.get("repeat_of") for a in got.alarms] == [None, 3], got.text()
    assert "; as step 3" not in got.err and "at the same sink as step 3" in got.err, got.text()
