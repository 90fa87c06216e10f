"""Several ranks: the same step is left out on all or the run ends on all, and one report covers all."""

import socket
import textwrap

import pytest
import torch  # noqa: F401  its libraries

from helpers import LIMIT, finitude, write_script
from process_support import TORCHRUN, cold, launched, made, plain_ranks, torchrun, warm_launcher, watched_ranks
from rank_programs import FINE, RANKS, assert_capsules_replay_alone, assert_explained_in_place, ranks

pytestmark = pytest.mark.slow


def test_ranks_under_torchrun_train_as_without_us(tmp_path):
    write_script(tmp_path, ranks(FINE))
    wanted = plain_ranks(tmp_path, "train.py")
    got = cold(tmp_path, "-m", "torch.distributed.run", *TORCHRUN[3:], "2", "train.py", limit=3 * LIMIT)
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
    plain = plain_ranks(tmp_path, write_script(tmp_path, text.replace("rank == 1", "rank == 2")).name)
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


@pytest.mark.parametrize("level", ["trace", pytest.param("tape", marks=pytest.mark.thorough)])
def test_recorded_step_explains_itself_on_each_rank(tmp_path, level):
    got = launched(tmp_path, ranks(FINE + "\nif rank == 1 and step == 3: loss = loss * NAN"), "--level", level)
    first, second = got.alarms
    assert (first["rank"], first["rerun_by"], second["rank"], second["rerun_by"]) == (1, level, 0, level), got.text()
    assert first["births"][0]["source"].endswith("loss = loss * NAN")
    assert second["births"][0]["phase"] == "communication" and "came from rank 1" in second["cause"]["text"]
    assert "running the program again" not in got.err and got.err.count("born in forward") == 1


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


def test_single_rank_under_a_launcher_is_explained_normally(tmp_path):
    write_script(tmp_path, ranks(FINE + "\nif step in (0, 4): loss = loss * NAN").replace("torch.equal(*both)", "True"))
    got = watched_ranks(tmp_path, "--on-alarm", "skip", *warm_launcher(tmp_path, 1), "train.py")
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
