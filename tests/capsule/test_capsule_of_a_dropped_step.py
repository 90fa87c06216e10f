"""A step that the script itself dropped, and that was run again to explain it, leaves a capsule as one that was stopped
does."""

import sys
import textwrap

import pytest

from helpers import ENDLESS_SLOPE, TRAINING, finitude, plain, training, write_script

CHECKED = """
for i, x in enumerate(batches):
    opt.zero_grad()
    p = torch.softmax(model(x) * (1e4 if i == 3 else 1), 1)
    loss = -p.log().mean()
    if not torch.isfinite(loss): {leave}
    loss.backward()
    opt.step()
print("ended", finite(), model.weight.sum().item())
"""


def the_advisory(got):
    (advisory,) = got.advisories("handled-by-script")
    assert got.code == 0 and not got.alarms, got.text()
    return advisory


@pytest.mark.parametrize("leave, way", [("break", "restart"), ("continue", "rewind")])
def test_a_loss_that_was_dropped_before_backward_replays(tmp_path, leave, way):
    got = training(tmp_path, CHECKED.format(leave=leave), "--on-alarm", "stop")
    advisory = the_advisory(got)
    assert (advisory["step"], advisory["births"][0]["op"]) == (3, "aten::log") and way in advisory["text"], got.text()
    assert advisory["text"].endswith(f"; capsule {advisory['capsule']}"), advisory
    replayed = finitude(tmp_path, "replay", advisory["capsule"], "--step-through")
    assert replayed.code == 0 and "identical: " in replayed.out and "1 +Inf" in replayed.out, replayed.text()
    assert "opt.step()" not in replayed.out, replayed.out
    shown = finitude(tmp_path, "report", advisory["capsule"])
    assert shown.code == 0 and "never given" in shown.out and "born in forward   aten::log" in shown.out, shown.text()
    tried = finitude(tmp_path, "replay", advisory["capsule"], "--with", f"{sys.executable} train.py")
    assert tried.code == 1 and "not fixed: the same birth  aten::log" in tried.out, tried.text()
    # The training itself went on as without us.
    write_script(tmp_path, TRAINING + CHECKED.format(leave=leave), "plain.py")
    assert plain(tmp_path, "plain.py").out == got.out


def test_consecutive_dropped_losses_are_all_replayed(tmp_path):
    got = training(tmp_path, CHECKED.format(leave="continue").replace("i == 3", "i in (2, 3)"), "--on-alarm", "stop")
    advisories = [a for a in got.advisories("handled-by-script") if a.get("capsule")]
    assert len(advisories) == 1 and got.watched["handled_by_script"] == 2, got.text()
    replayed = finitude(tmp_path, "replay", advisories[0]["capsule"], "--step-through")
    logs = [line for line in replayed.out.splitlines() if "aten::log " in line]
    assert len(logs) == 3 and sum("-Inf" in line for line in logs) == 2 and "5 of 5 results" in replayed.out, (
        replayed.out
    )


def test_bad_loss_with_zeroed_gradients_is_replayed(tmp_path):
    got = training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            loss = loss_of(x)
            if i == 3: loss = loss * NAN
            loss.backward()
            if torch.isnan(loss): opt.zero_grad(); continue
            opt.step(); opt.zero_grad()
    """,
        "--on-alarm",
        "stop",
    )
    replayed = finitude(tmp_path, "replay", the_advisory(got)["capsule"])
    assert replayed.code == 0 and "identical: " in replayed.out, replayed.text()


LEAVES = {
    "zeroed to none": "opt.zero_grad()",
    "zeroed in place": "opt.zero_grad(set_to_none=False)",
    "clipped": "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    "kept": "pass",
}


@pytest.mark.parametrize(
    "leave",
    ["zeroed to none", "clipped", *(pytest.param(k, marks=pytest.mark.thorough) for k in ("zeroed in place", "kept"))],
    ids=str,
)
def test_of_gradients_alone_that_were_not_finite(tmp_path, leave):
    """The tape ends where backward left them: what the script does to them afterwards is not what a replay is to come
    to."""
    program = """
        norm = torch.nn.BatchNorm1d(4)
        for i, x in enumerate(batches):
            opt.zero_grad()
            for half in (x, x.flip(0)):
                (model(norm(half)).pow(2).mean() + (ENDLESS_SLOPE if i == 3 and half is x else 0)).backward()
            if not torch.isfinite(model.weight.grad).all():
                {leave}
                continue
            opt.step()
        print("ended", finite(), model.weight.sum().item(), norm.running_mean.tolist())
    """.format(leave=LEAVES[leave])
    got = training(tmp_path, program, "--on-alarm", "stop")
    advisory = the_advisory(got)
    assert advisory["births"], got.text()
    replayed = finitude(tmp_path, "replay", advisory["capsule"], "--step-through")
    assert replayed.code == 0 and "identical: " in replayed.out and "opt.step()" not in replayed.out, replayed.text()
    # What was tried on the whole step was held against these gradients.
    tried = {e["name"]: e["outcome"] for e in advisory["cause"]["experiments"]}
    assert tried["whole step in float64"].startswith("not finite: gradient of weight"), tried
    write_script(tmp_path, TRAINING + textwrap.dedent(program).replace("ENDLESS_SLOPE", ENDLESS_SLOPE), "plain.py")
    assert plain(tmp_path, "plain.py").out == got.out


@pytest.mark.parametrize("leave", ["break", "continue"])
def test_none_where_capsules_are_not_wanted(tmp_path, leave):
    got = training(tmp_path, CHECKED.format(leave=leave), "--on-alarm", "stop", "--capsules", "0")
    advisory = the_advisory(got)
    assert advisory["births"] and "capsule" not in advisory and not list(tmp_path.glob("finitude-runs/*/step-*")), (
        advisory
    )


def test_capsule_removed_by_newer_ones_is_not_named(tmp_path):
    got = training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            opt.zero_grad()
            loss = loss_of(x) * (NAN if i in (1, 4) else 1)
            if i == 1 and torch.isnan(loss): continue
            loss.backward()
            opt.step()
    """,
        "--on-alarm",
        "skip",
        "--capsules",
        "1",
    )
    assert got.the_alarm()["capsule"] and got.advisories("handled-by-script")[0]["capsule"] is None, got.text()
