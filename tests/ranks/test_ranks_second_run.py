"""Second runs of several ranks: whether all run the bad step again, in place or from the start, and what that shows."""

import json
import time
import types

import pytest
import torch  # noqa: F401  its libraries

from finitude.launch import supervise
from finitude.report import merge
from finitude.rerun import restart_ranks, second_outcome
from helpers import LIMIT, write_script
from process_support import cold, launched, launcher, plain_ranks
from rank_programs import FINE, RANKS, assert_capsules_replay_alone, assert_explained_in_place, ranks

pytestmark = pytest.mark.slow

LOGARITHM = "weight = torch.log((x * (0.0 if rank == 1 and step == 3 else 1.0)).abs().sum(1))"


def test_fix_needing_other_ranks_is_tried_but_unverified(tmp_path):
    """The gradients are averages: what the changed rank would have given to them is known, what came of it is as it was
    recorded."""
    got = launched(tmp_path, ranks(f"{LOGARITHM}\nloss = (weight * logits.logsumexp(1)).mean()"))
    own = next(a for a in got.alarms if a["rank"] == 1)
    assert own["births"][0]["op"] == "aten::log" and own["rerun_by"] == "rewind", got.text()
    fix = own["fix"]
    assert not fix["verified"] and fix["tried"] == "self clamped at 1e-12" and "diff" not in fix, fix
    assert "this rank's own values are finite" in fix["outcome"] and "come from all ranks" in fix["outcome"], fix
    tried = {e["name"]: e["outcome"] for e in own["cause"]["experiments"]}
    assert tried["whole step, again as it was, 3 times"] == "the same bits each time", tried
    assert any(e.get("confirms") for e in own["cause"]["experiments"]) and own["cause"]["class"] == "log-of-zero", own[
        "cause"
    ]


@pytest.mark.thorough
def test_fix_without_other_ranks_is_verified(tmp_path):
    """Only the loss is bad, and that is this rank's own; the gradients of all ranks come out as they did."""
    got = launched(
        tmp_path,
        ranks(f"{LOGARITHM}\nloss = {FINE.partition('= ')[2]} + weight.sum()"),
        "--on-alarm",
        "skip",
        "--level",
        "tape",
    )
    (own,) = got.alarms
    assert (got.code, own["rank"], own["step"], own["harmless"]) == (0, 1, 3, True), got.text()
    assert own["births"] and own["births"][0]["op"] == "aten::log" and own["fix"]["verified"], got.text()
    assert "loss and gradients finite" in own["fix"]["outcome"], own["fix"]


WARNED = (
    FINE
    + """
if rank == 1 and step == 3: loss = loss * NAN
if step == 3: show("loss at", rank, step)"""
)


@pytest.mark.thorough  # in one process: tests/rerun; all ranks together: test_every_rank_leaves_the_same_step_out
def test_warned_step_is_explained_without_side_effects(tmp_path):
    """BatchNorm, dropout, a list of losses and prints: all is as without us, where the bad step is applied too."""
    text = ranks(WARNED).replace("nn.Tanh()", "nn.BatchNorm1d(8), nn.Dropout(0.2)")
    write_script(tmp_path, text)
    wanted = plain_ranks(tmp_path, "train.py")
    got = launched(tmp_path, text, "--on-alarm", "warn")
    assert sorted(got.out.splitlines()) == sorted(wanted.out.splitlines()), got.text()
    assert_explained_in_place(*got.alarms[:2])
    assert_capsules_replay_alone(got, got.alarms[:2])  # what follows was ruined by the step that was applied


def test_rank_diverging_in_rerun_ends_it_for_all(tmp_path):
    """What it makes its choice by (the environment) is nothing that a second run puts back. The other waits for it in
    backward, which is let go of. Started as interpreters: ranks that begin at once are run again from their start
    besides."""
    text = ranks(
        FINE
        + """
if rank == 1 and step == 3:
    loss = loss * NAN
    if "SEEN" in os.environ:
        opt.step()
        continue
    os.environ["SEEN"] = "1"
"""
    ).replace(
        "import torch.distributed as dist",
        "import torch.distributed as dist\nfrom finitude.rerun import rank_vote\nrank_vote.STRAY_S = 3.0",
        1,
    )
    began = time.monotonic()
    write_script(tmp_path, text)
    got = cold(tmp_path, "--on-alarm", "skip", *launcher(tmp_path, 2), "train.py", limit=3 * LIMIT)
    assert got.code == 1 and time.monotonic() - began < LIMIT, got.text()  # gloo waits 1800 s
    assert len(got.alarms) == 2 and all(a["weights"] == "clean" and a["action"] == "stopped" for a in got.alarms), (
        got.text()
    )
    assert all(
        "the second run came to a halt: rank 0 stopped after" in a["rerun_text"]
        and "rank 1 has ended it" in a["rerun_text"]
        for a in got.alarms
    ), [a["rerun_text"] for a in got.alarms]


def test_where_one_rank_cannot_go_back_none_does(tmp_path):
    """Rank 0 holds a pipe, which gives each line once. All are started again once the program, which went on, has
    ended."""
    text = ranks(FINE + "\nif rank == 1 and step == 3: loss = loss * NAN").replace(
        "torch.manual_seed(0)", "torch.manual_seed(0)\nif rank == 0: lines = os.fdopen(os.pipe()[0])", 1
    )
    got = launched(tmp_path, text, "--on-alarm", "skip")
    lines = sorted(line.split()[:4] for line in got.out.splitlines())
    assert lines == [["rank", "0", "True", "True"], ["rank", "1", "True", "True"]], got.text()
    assert [(a["step"], a["rank"], a["rerun"], a["rerun_by"]) for a in got.alarms] == [
        (3, 1, "persistent", "restart"),
        (3, 0, "persistent", "restart"),
    ], [a["rerun_text"] for a in got.alarms]
    assert all(
        "(rank 0: rewind: lines gives each thing once" in a["rerun_text"] and "--level trace" not in a["rerun_text"]
        for a in got.alarms
    ), [a["rerun_text"] for a in got.alarms]


@pytest.mark.thorough  # tests/rerun/test_carried_state.py shows the sum, in one process
def test_accumulated_loss_sum_does_not_affect_explanations(tmp_path):
    """The sum is as the first run left it when the second begins, and has no part in what that comes to."""
    text = (
        ranks(FINE + "\nif rank == 1 and step in (3, 5): loss = loss * NAN")
        .replace("    loss.backward()\n", "    loss.backward()\n    total += loss.detach()\n")
        .replace("for step", "total = torch.zeros(())\nfor step")
    )
    got = launched(tmp_path, text, "--on-alarm", "skip")
    assert got.code == 0 and [a["step"] for a in got.alarms] == [3, 3, 5, 5], got.text()
    for step in (3, 5):
        own, other = sorted((a for a in got.alarms if a["step"] == step), key=lambda a: a["rank"] != 1)
        assert_explained_in_place(own, other)
    assert (
        sorted(line.split()[2:4] for line in got.out.splitlines() if line.startswith("rank")) == [["True", "True"]] * 2
    )


@pytest.mark.thorough
def test_exchange_at_accumulation_end_starts_no_micro_batch(tmp_path):
    """The exchange writes a gradient several times: that is no new beginning."""
    text = RANKS.replace(
        """    logits = model(x)
    LOSS
    loss.backward()
""",
        """    with model.no_sync():
        nn.functional.cross_entropy(model(x), y).backward()
    loss = nn.functional.cross_entropy(model(x.flip(0)), y)
    if rank == 1 and step == 3: loss = loss * NAN
    loss.backward()
""",
    )
    got = launched(tmp_path, text, "--on-alarm", "stop")
    (own,) = (a for a in got.alarms if a["rank"] == 1)
    assert (own["step"], own["micro_batch"]) == (3, 1), got.text()


@pytest.mark.thorough
def test_ranks_with_templates_still_rerun_together(tmp_path):
    got = launched(tmp_path, ranks(FINE + "\nif rank == 1 and step == 3: loss = loss * NAN"), "--tape-every", "2")
    first, second = got.alarms
    assert (first["rank"], first["rerun_by"], second["rank"], second["rerun_by"]) == (1, "rewind", 0, "rewind"), (
        got.text()
    )
    assert all("together" in a["rerun_text"] and "tape" not in a["rerun_text"] for a in got.alarms), [
        a["rerun_text"] for a in got.alarms
    ]


def _wanted(step, action, harmless=False, skipped=0):
    order, alarm = {"step": step, "decided": [[0, 0, "", 0]] * skipped}, {"harmless": harmless, "action": action}
    return types.SimpleNamespace(
        alarm=alarm, order=order, member=types.SimpleNamespace(document={"watched": {"steps": 100}})
    )


@pytest.mark.parametrize(
    "policy, wanted, seconds, taken",
    [
        ("skip", [("stopped", 9), ("the step was skipped", 30)], 9000, [9]),
        ("stop", [("the script's own", 9)], 9000, [9]),
        (
            "skip",
            [("the step was skipped", 3), ("the step was skipped", 9), ("the step was skipped", 9)],
            20,
            [9, 9],
        ),
        # Steps of two optimizers: of the later one.
        ("skip", [("the step was skipped", 3, False, 1), ("the step was skipped", 3, False, 9)], 20, [3]),
        ("skip", [("the step was skipped", 99)], 301, []),
        ("stop", [("reported, the step is applied", 7, True)], 301, [7]),
        ("stop", [("stopped", 9), ("reported, the step is applied", 9, True), ("reported", 7, True)], 9000, [9, 9]),
    ],
)
def test_for_which_alarms_all_ranks_are_started_again(policy, wanted, seconds, taken):
    """For those that ended the run and what others saw at the same step, however long it takes; else for the last, where it does not take long."""
    found = restart_ranks._worth_it(
        [_wanted(step, action, *harmless) for action, step, *harmless in wanted],
        types.SimpleNamespace(on_alarm=policy),
        seconds,
    )
    assert [one.order["step"] for one in found] == taken


@pytest.mark.parametrize("holds_nan", [True, False])
def test_what_a_rank_held_that_had_no_order(tmp_path, monkeypatch, holds_nan):
    """Of two alarms of one step, of two optimizers, the second is the one that was run again for another rank."""

    def alarm(name):
        sink = {"kind": "gradient", "name": name}
        return {"step": 3, "sink": sink, "text": name, "births": [], "cause": {"class": "unknown"}, "rerun": "not-run"}

    monkeypatch.setattr(restart_ranks, "_save", lambda member: None)
    first, own = alarm("a"), alarm("b")
    own["cause"]["class"] = "unknown" if holds_nan else "other-rank"
    member = types.SimpleNamespace(rank=0, document={"alarms": [first, own]})
    other = _wanted(3, "skipped")
    other.alarm["step"], other.order["listed"] = 3, 1
    witness = restart_ranks._Witness(member, other, str(tmp_path))
    outcome = second_outcome.of_given_away(witness.order, True, is_finite=not holds_nan)
    assert ("what this rank holds is not finite" in outcome.text) == holds_nan, outcome.text
    found = {"births": [{"phase": "forward"}], "cause": {"class": "log-of-zero"}, "fix": None, "path": []}
    result = {"findings": found, "rerun": outcome.verdict, "text": outcome.text, "step": 3, "verified": False}
    (tmp_path / "rank-0.result.json").write_text(json.dumps(result))
    assert witness.take_over("")
    kept, mine = member.document["alarms"]
    assert kept is first and mine["rerun_by"] == "restart" and mine["cause"]["class"] == "log-of-zero", mine
    assert mine["sink"]["name"] == ("b" if holds_nan else "what another rank was given"), mine


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_a_run_with_ranks_elsewhere_names_the_command(tmp_path, capfd, dashes):
    """The user's own, with its launcher and the launcher's options; of two levels the last counts."""
    run = supervise.Run.__new__(supervise.Run)
    options = ["--on-alarm", "skip", "--level", "gate", *dashes]
    run.command = ["python", "-m", "finitude", "run", *options, "torchrun", "--nnodes", "2", "t.py", "a b"]
    run.given, run.settings = len(options), types.SimpleNamespace(level="gate")
    alarm = {"step": 3, "births": [], "rerun": "not-run", "rerun_text": "rewind: no", "harmless": False}
    member = merge.Member(str(tmp_path / "rank-0"), {"alarms": [alarm], "watched": {"ranks": 2, "steps": 4}})
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "rank-0" / restart_ranks.ORDER).write_text(json.dumps({"step": 3, "listed": 0}))
    settings = types.SimpleNamespace(on_alarm="stop")
    assert not restart_ranks.explain([member], ["torchrun"], {}, settings, 1.0, str(tmp_path), run._traced())
    line = capfd.readouterr().err
    words = " ".join(["--on-alarm skip --level gate --level trace", *dashes])
    assert line.endswith(f"finitude run {words} torchrun --nnodes 2 t.py 'a b'\n"), line
    assert alarm["rerun_text"].startswith("rewind: no; not all ranks of the run were watched here"), alarm
    assert "those of other machines" in (tmp_path / "rank-0" / "report.json").read_text()


# At the first step there is no earlier one to go back to: all ranks are started again after the end.
def test_first_step_is_explained_by_restarting_all_ranks(tmp_path):
    """Where the system can keep its files apart, what the second run writes is thrown away. The rank that comes late to
    its alarm reports it, though the other one ends the run."""
    text = ranks(
        FINE
        + """
with open(f"seen-{rank}.txt", "a") as f: f.write(f"{step}, {os.path.exists('made')}\\n")
if rank == 0: open("made", "w").close()
if rank == 1 and step == 0: loss = loss * NAN"""
    ).replace("    opt.step()", "    time.sleep(1.5 * rank)\n    opt.step()")
    got = launched(tmp_path, text, "--on-alarm", "stop")
    first, second = got.alarms
    assert (first["rerun_by"], first["rerun_verified"], second["rerun_by"]) == ("restart", True, "restart"), got.text()
    assert first["births"][0]["source"].endswith("loss = loss * NAN") and "on all ranks" in first["rerun_text"]
    said = got.err.replace("\n[rank 1]          ", "")
    assert "being explained: all ranks are run again together" in said and "the step was not run again" not in said, (
        got.text()
    )
    assert "; cause: being explained: all ranks are run again together once they have ended" in got.err, got.text()
    assert (second["cause"]["class"], second["births"][0]["phase"]) == ("other-rank", "communication")
    if "were written a second time" not in first["rerun_text"]:
        assert [len((tmp_path / f"seen-{rank}.txt").read_text().splitlines()) for rank in range(2)] == [1, 1]
