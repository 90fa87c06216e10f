"""Several ranks: the same step is left out on all or the run ends on all, and one report covers all."""

import json
import pathlib
import socket
import subprocess
import textwrap
import time
import types

import pytest
import torch  # noqa: F401  its libraries

from finitude import _native
from finitude.rerun import restart_ranks
from helpers import LIMIT, finitude, write_script
from process_support import TORCHRUN, cold, launched, made, plain_launch, torchrun

pytestmark = pytest.mark.slow
PLAYER = pathlib.Path(_native.__file__).with_name("finitude-replay")

RANKS = """
import os, sys, time, torch
import torch.distributed as dist
from torch import nn
NAN = float("nan")
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))
opt = torch.optim.Adam(model.parameters(), lr=0.05)
torch.manual_seed(100 + rank)
def show(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n"); sys.stdout.flush()
for step in range(8):
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    opt.zero_grad()
    logits = model(x)
    LOSS
    loss.backward()
    opt.step()
same = torch.cat([p.detach().flatten() for p in model.parameters()])
both = [torch.empty_like(same) for _ in range(dist.get_world_size())]
dist.all_gather(both, same)
show("rank", rank, torch.equal(*both), bool(torch.isfinite(same).all()), f"{same.double().sum().item():.17g}")
dist.destroy_process_group()
time.sleep(0.3)  # gloo's thread lets go of the last tensors after the call, and an interpreter that ends by then aborts (pytorch#179291)
"""
FINE = "loss = nn.functional.cross_entropy(logits, y)"


def ranks(loss):
    return RANKS.replace("LOSS", loss.replace("\n", "\n    "))


def assert_explained_in_place(own, other):
    """All ranks ran the step again in lock-step: the one that made the value explains it, the other names that rank."""
    assert [(a["rerun_by"], a["rerun"], a["rerun_verified"]) for a in (own, other)] == [
        ("rewind", "persistent", True)
    ] * 2, [a["rerun_text"] for a in (own, other)]
    assert (own["rank"], own["births"][0]["source"][-10:]) == (1, "loss * NAN") and "on all ranks together" in own[
        "rerun_text"
    ]
    assert (other["cause"]["class"], other["births"][0]["phase"]) == ("other-rank", "communication")
    assert "came from rank 1" in other["cause"]["text"]


def assert_capsules_replay_alone(got, alarms=None):
    """Each rank left one beside its report; what the other rank gave is played as it was recorded."""
    for alarm in got.alarms if alarms is None else alarms:
        folder = got.folder / alarm["capsule"]
        assert folder.parent.name == f"rank-{alarm['rank']}"
        about = json.loads((folder / "capsule.json").read_text())
        assert (about["rank"], about["ranks"], about["replay"]) == (alarm["rank"], 2, "identical"), about["replay"]
        done = subprocess.run([PLAYER, folder], capture_output=True, text=True, timeout=120, env={"PATH": "/nowhere"})
        assert done.returncode == 0 and done.stdout.startswith("identical"), done.stdout + done.stderr
        assert "what other ranks gave is as it was recorded" in done.stdout and "c10d::allreduce_" in done.stdout


def test_ranks_under_torchrun_train_as_without_us(tmp_path):
    write_script(tmp_path, ranks(FINE))
    wanted = plain_launch(tmp_path, *TORCHRUN[1:], "2", "train.py")
    got = cold(tmp_path, "-m", "torch.distributed.run", *TORCHRUN[3:], "2", "train.py")
    assert (wanted.code, got.code) == (0, 0), f"without us:\n{wanted.err}\nwith us:\n{got.text()}"
    assert sorted(got.out.splitlines()) == sorted(wanted.out.splitlines()) and "rank 1 True True" in got.out
    got.assert_silent()
    assert set(made(tmp_path)) == {"rank-0", "rank-1"}
    assert (got.watched["steps"], got.watched["ranks"], got.watched["gradients_scanned"]) == (8, 2, 2 * 8 * 4)
    assert "finitude: 8 steps on 2 ranks watched" in got.err


def test_every_rank_leaves_the_same_step_out(tmp_path):
    """One rank's loss is NaN, which is every rank's gradient; later one rank's loss alone is, and no gradient."""
    got = launched(
        tmp_path,
        ranks(
            FINE
            + """
if rank == 1 and step == 3: loss = loss * NAN
if rank == 1 and step == 5: loss = loss + torch.tensor(NAN)"""
        ),
        "--on-alarm",
        "skip",
    )
    assert got.code == 0, got.text()
    lines = sorted(line.split() for line in got.out.splitlines())
    assert [line[:4] for line in lines] == [["rank", "0", "True", "True"], ["rank", "1", "True", "True"]], got.text()
    assert [(a["step"], a["rank"], a["sink"]["kind"], a["harmless"]) for a in got.alarms] == [
        (3, 1, "loss", False),
        (3, 0, "gradient", False),
        (5, 1, "loss", True),
    ]
    assert [a["action"] for a in got.alarms] == ["the step was skipped"] * 2 + ["reported, the step is applied"]
    assert_explained_in_place(*got.alarms[:2])
    assert got.watched["ranks"] == 2
    said = [line for line in got.err.splitlines() if line.startswith("[rank ") and "finitude: step 3" in line]
    assert len(said) == 2 and any(
        line.startswith("[rank 1] finitude: step 3 skipped, training continues") for line in said
    ), got.err
    assert any(line.startswith("[rank 0]") and line.endswith("not finite, the step was skipped") for line in said), (
        got.err
    )


def test_stop_ends_all_ranks_with_the_launchers_code(tmp_path):
    text = ranks(FINE + "\nif rank == 1 and step == 3: loss = loss * NAN")
    got = torchrun(tmp_path, text, "--on-alarm", "stop")
    assert got.code == 1, got.text()
    assert {(a["step"], a["weights"]) for a in got.alarms} == {(3, "clean")}
    assert got.alarms[0]["rank"] == 1 and got.alarms[0]["sink"]["kind"] == "loss", got.text()
    assert "NonFiniteError: step 3" in got.err
    assert_explained_in_place(*got.alarms)
    assert_capsules_replay_alone(got)
    alone = finitude(tmp_path, "replay", got.alarms[0]["capsule"], "--with", "train.py")
    assert alone.code == 4 and "one of several ranks" in alone.err, alone.text()
    assert got.err.count("born in forward") == 1 and "running the program again" not in got.err


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


SHARED = """
import torch.library

@torch.library.custom_op("finitude_test::shared", mutates_args=())
def shared(x: torch.Tensor) -> torch.Tensor:
    y = x.detach().clone()
    SUM(y)
    return y
shared.register_fake(torch.empty_like)
torch.library.register_autograd("finitude_test::shared", lambda ctx, grad: grad.clone())
torch.manual_seed(100 + rank)
"""
SILENTLY = (
    "lambda y: dist.group.WORLD._get_backend(y.device).allreduce([y]).wait()"  # no operator of PyTorch's is called
)


@pytest.mark.parametrize(
    "late",
    ["\nif rank == 1 and step == 3: time.sleep(0.3)", pytest.param("", marks=pytest.mark.thorough)],
    ids=["one rank is late", ""],
)
def test_value_from_another_rank_is_born_in_collective(tmp_path, late):
    """Its call may be over before the values are there, or after: that does not change who is reported to have written
    them."""
    text = ranks(
        FINE
        + late
        + """
if step == 3 and rank == 1: logits = logits * NAN
loss = loss + shared(logits).sum() * 0.001"""
    ).replace("torch.manual_seed(100 + rank)", SHARED.replace("SUM", "dist.all_reduce"), 1)
    got = launched(tmp_path, text, "--on-alarm", "skip")
    assert got.code == 0, got.text()
    births = {a["rank"]: a["births"][0] for a in got.alarms}
    assert (births[0]["op"], births[0]["phase"]) == ("c10d::allreduce_", "communication"), births
    assert births[1]["source"].endswith("logits * NAN"), births


@pytest.mark.thorough
def test_an_experiment_exchanges_nothing_with_other_ranks(tmp_path):
    """Rank 0 gets NaN out of an operator of the program's own that finite values went into. Called once more by one
    rank alone, the other's next call would be taken for its answer."""
    text = ranks(
        FINE
        + """
if step == 3 and rank == 1: logits = logits * NAN
loss = loss + shared(logits).sum() * 0.001"""
    ).replace("torch.manual_seed(100 + rank)", SHARED.replace("SUM", f"({SILENTLY})"), 1)
    text = text.replace(
        "same = torch", "calls = dist.group.WORLD._get_sequence_number_for_group()\nsame = torch"
    ).replace('show("rank", rank,', 'show("rank", rank, calls,')
    plain = plain_launch(
        tmp_path, *TORCHRUN[1:], "2", write_script(tmp_path, text.replace("rank == 1", "rank == 2")).name
    )
    assert plain.code == 0, plain.err
    got = launched(tmp_path, text, "--on-alarm", "skip")
    assert got.code == 0, got.text()
    births = {a["rank"]: a["births"][0] for a in got.alarms}
    assert births[0]["op"] == "finitude_test::shared", births
    calls = {int(line.split()[2]) for line in plain.out.splitlines()}
    again = 2  # in the step that ran twice: the operator's, DistributedDataParallel's
    assert {int(line.split()[2]) - again for line in got.out.splitlines()} == calls and len(calls) == 1, (
        plain.out + got.out
    )
    assert [line.split()[3:5] for line in got.out.splitlines()] == [["True", "True"]] * 2, got.out


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
    wanted = plain_launch(tmp_path, *TORCHRUN[1:], "2", "train.py")
    got = launched(tmp_path, text, "--on-alarm", "warn")
    assert sorted(got.out.splitlines()) == sorted(wanted.out.splitlines()), got.text()
    assert_explained_in_place(*got.alarms[:2])
    assert_capsules_replay_alone(got, got.alarms[:2])  # what follows was ruined by the step that was applied


def test_rank_diverging_in_rerun_ends_it_for_all(tmp_path):
    """What it makes its choice by (the environment) is nothing that a second run puts back. The other waits for it in
    backward, which is let go of."""
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
    got = launched(tmp_path, text, "--on-alarm", "skip")
    assert got.code == 1 and time.monotonic() - began < 60, got.text()
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


@pytest.mark.parametrize("level", ["trace", pytest.param("tape", marks=pytest.mark.thorough)])
def test_recorded_step_explains_itself_on_each_rank(tmp_path, level):
    got = launched(tmp_path, ranks(FINE + "\nif rank == 1 and step == 3: loss = loss * NAN"), "--level", level)
    first, second = got.alarms
    assert (first["rank"], first["rerun_by"], second["rank"], second["rerun_by"]) == (1, level, 0, level), got.text()
    assert first["births"][0]["source"].endswith("loss = loss * NAN")
    assert second["births"][0]["phase"] == "communication" and "came from rank 1" in second["cause"]["text"]
    assert "running the program again" not in got.err and got.err.count("born in forward") == 1


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


def test_step_seen_by_one_rank_is_not_skipped(tmp_path):
    """No DistributedDataParallel: the gradients are each rank's own."""
    text = ranks(FINE + "\nif rank == 1 and step == 3: loss = loss * NAN").replace(
        "nn.parallel.DistributedDataParallel(", "("
    )
    got = launched(tmp_path, text, "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert got.code == 1 and (alarm["rank"], alarm["step"], alarm["action"]) == (1, 3, "stopped"), got.text()
    assert "other ranks may not see it" in alarm["text"]
    assert (alarm["rerun_by"], alarm["rerun_verified"]) == ("restart", True) and alarm["births"][0]["source"].endswith(
        "loss * NAN"
    ), got.text()


MASKED = """
import time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
lin = torch.nn.Linear(6, 4)
opt = torch.optim.SGD(lin.parameters(), lr=0.01)
class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y
    @staticmethod
    def backward(ctx, grad):
        return grad
for step in range(5):
    mask = torch.zeros(3, 4, dtype=torch.bool)
    if step == 3 and rank == 1: mask[2] = True
    p = lin(torch.randn(3, 6)).masked_fill(mask, float("-inf")).softmax(-1)  # the softmax
    loss = Summed.apply(p).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
dist.destroy_process_group()
time.sleep(0.3)  # else gloo may abort the interpreter (pytorch#179291)
"""


def test_unharmed_rank_is_explained_where_another_was_harmed(tmp_path):
    """It made the bad value, and the mask keeps that from its own gradients."""
    got = launched(tmp_path, MASKED, "--on-alarm", "stop")
    assert got.code == 1, got.text()
    assert [(a["step"], a["rank"], a["harmless"], a["cause"]["class"], a["rerun_by"]) for a in got.alarms] == [
        (3, 1, True, "fully-masked-softmax", "restart"),
        (3, 0, False, "other-rank", "restart"),
    ], got.text()
    made = got.alarms[0]["births"][0]
    assert made["source"].endswith("# the softmax"), made
    assert f"came from rank 1, where {made['op']} made it at train.py:{made['line']}" in got.alarms[1]["cause"]["text"]


def _wanted(step, action, harmless=False):
    alarm = {"harmless": harmless, "action": action}
    return types.SimpleNamespace(
        alarm=alarm, order={"step": step}, member=types.SimpleNamespace(document={"watched": {"steps": 100}})
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


def test_single_rank_under_a_launcher_is_explained_normally(tmp_path):
    write_script(tmp_path, ranks(FINE + "\nif step in (0, 4): loss = loss * NAN").replace("torch.equal(*both)", "True"))
    got = cold(tmp_path, "--on-alarm", "skip", *TORCHRUN, "1", "train.py")
    assert got.code == 0, got.text()
    assert [(a["step"], a["rerun"]) for a in got.alarms][0] == (0, "persistent"), [a["rerun_text"] for a in got.alarms]
    assert "loss * NAN" in got.alarms[0]["births"][0]["source"]


def test_ranks_that_a_script_starts_itself(tmp_path):
    """torch.multiprocessing.spawn with a process group: the usual single-file script."""
    head, _, body = ranks(FINE + "\nif rank == 1 and step == 3: loss = loss * NAN").partition(
        'dist.init_process_group("gloo")\n'
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    write_script(
        tmp_path,
        head
        + f"""
def main(rank, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}")
    dist.init_process_group("gloo", rank=rank, world_size=size)
"""
        + textwrap.indent(body, "    ")
        + """
if __name__ == "__main__":
    torch.multiprocessing.spawn(main, args=(2,), nprocs=2)
""",
    )
    got = cold(tmp_path, "train.py", limit=3 * LIMIT)
    assert got.code == 1 and "ProcessRaisedException" in got.err, got.text()
    assert set(made(tmp_path)) == {"rank-0", "rank-1"}
    first = got.alarms[0]
    assert (first["rank"], first["step"], first["rerun_by"], first["rerun_verified"]) == (1, 3, "rewind", True), (
        got.text()
    )
    assert first["births"][0]["source"].endswith("loss = loss * NAN")


# At the first step there is no earlier one to go back to: all ranks are started again after the end.
def test_first_step_is_explained_by_restarting_all_ranks(tmp_path):
    """Where the system can keep its files apart, what the second run writes is thrown away."""
    text = ranks(
        FINE
        + """
with open(f"seen-{rank}.txt", "a") as f: f.write(f"{step}, {os.path.exists('made')}\\n")
if rank == 0: open("made", "w").close()
if rank == 1 and step == 0: loss = loss * NAN"""
    )
    got = launched(tmp_path, text, "--on-alarm", "stop")
    first, second = got.alarms
    assert (first["rerun_by"], first["rerun_verified"], second["rerun_by"]) == ("restart", True, "restart"), got.text()
    assert first["births"][0]["source"].endswith("loss = loss * NAN") and "on all ranks" in first["rerun_text"]
    said = got.err.replace("\n[rank 1]          ", "")
    assert "being explained: all ranks are run again together" in said and "the step was not run again" not in said, (
        got.text()
    )
    assert (second["cause"]["class"], second["births"][0]["phase"]) == ("other-rank", "communication")
    if "were written a second time" not in first["rerun_text"]:
        assert [len((tmp_path / f"seen-{rank}.txt").read_text().splitlines()) for rank in range(2)] == [1, 1]


def test_steps_dropped_by_all_ranks_end_with_explanation(tmp_path):
    text = RANKS.split("for step in range(8):")[0] + textwrap.dedent("""
        for step in range(40):
            x = torch.randn(6, 4)
            if rank == 1 and step >= 3:
                x[2] = 0
            opt.zero_grad()
            model(x / x.norm(dim=1, keepdim=True)).pow(2).mean().backward()  # here
            if not torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
                continue
            opt.step()
        """)
    got = launched(tmp_path, text)
    assert got.code != 0 and [a["rank"] for a in got.alarms] == [1, 0] and not got.report["failures"], got.text()
    first, second = got.alarms
    assert (first["step"], first["cause"]["class"], first["rerun_by"]) == (3, "division-by-zero", "restart"), got.text()
    assert "dropped 10 steps in a row" in first["text"] and first["births"][0]["source"].endswith("# here"), got.text()
    assert second["cause"]["class"] == "other-rank" and "rank 1" in second["cause"]["text"], got.text()
