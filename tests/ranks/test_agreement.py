"""Ranks that step together skip a step that is bad on only one of them, on all of them."""

import pathlib

import pytest
import torch  # noqa: F401  its libraries

from helpers import LIMIT, write_script
from process_support import plain_ranks, warm_launcher, watched_ranks
from sharded_programs import BEGIN, END, FSDP2, TENSOR_PARALLEL

pytestmark = pytest.mark.slow

PROGRAM = (
    BEGIN.replace("OUT", "4")
    + """
spoils, leaves_out = "spoil" in sys.argv, "leave" in sys.argv
for step in range(8):
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    opt.zero_grad()
    STEP
    if spoils and step == 5 and rank == 1:
        local = next(model.parameters()).grad
        getattr(local, "_local_tensor", local).view(-1)[0] = float("nan")
    AT_STEP
    if not (leaves_out and step == 5):
        opt.step()
local = [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]
text = torch.cat([p.flatten().double() for p in local]).numpy().tobytes().hex()
sys.stdout.write(f"rank {rank} {text}\\n")  # at once: both ranks write here
sys.stdout.flush()
"""
    + END
)
STEP = "nn.functional.cross_entropy(model(x), y).backward()"
DDP = "model = nn.parallel.DistributedDataParallel(MLP())"
NO_SYNC = f"""with model.no_sync():
        {STEP}"""
# What makes the model, and what a step does.
KINDS = {"fsdp2": (FSDP2, STEP), "tensor parallel": (TENSOR_PARALLEL, STEP), "no_sync": (DDP, NO_SYNC)}


def write(folder, kind, at_step="pass"):
    make, step = KINDS[kind]
    text = PROGRAM.replace("MAKE", make).replace("AT_STEP", at_step).replace("STEP", step)
    return write_script(folder, text.replace("SEED", "7" if kind == "tensor parallel" else "100 + rank"))


def weights(text):
    """{rank: its weights}"""
    return dict(line.split()[1:] for line in text.splitlines() if line.startswith("rank "))


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.thorough) if k == "tensor parallel" else k for k in KINDS]
)
def test_all_ranks_skip_what_one_sees(tmp_path, kind):
    """The weights are, bit for bit, those of a run in which no rank took that step; it runs again on all ranks."""
    lines = write(tmp_path, kind).read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if "view(-1)[0]" in text)
    got = watched_ranks(tmp_path, "--on-alarm", "skip", *warm_launcher(tmp_path), "train.py", "spoil")
    expected = plain_ranks(tmp_path, "train.py", "leave")
    assert got.code == 0 and weights(got.out) == weights(expected.out) and len(weights(got.out)) == 2, got.text()
    assert sorted((a["rank"], a["step"]) for a in got.alarms) == [(0, 5), (1, 5)], got.text()
    other = next(a for a in got.alarms if a["rank"] == 0)
    assert other["cause"]["class"] == "other-rank" and "rank 1" in other["text"], other
    assert [(a["rerun_by"], a["rerun_verified"]) for a in got.alarms] == [("rewind", True)] * 2, got.text()
    own = next(a for a in got.alarms if a["rank"] == 1)["text"]
    assert own.endswith(" is not finite, in [4:8, 0:4] of 8 x 4" if kind == "fsdp2" else " is not finite"), own
    assert other["cause"]["text"].endswith(f"train.py:{line}") and not other["births"], other["cause"]
    assert got.watched["steps"] == 8 and not got.watched.get("failures"), got.text()


OWN = """
    if rank == 0:
        own.zero_grad(); lone(x).mean().backward(); own.step()"""


def test_a_rank_with_its_own_optimizer_never_waits(tmp_path):
    """Also that a healthy run computes what it does without Finitude."""
    make = "\nlone = nn.Linear(4, 1)\nown = rank == 0 and torch.optim.SGD(lone.parameters(), lr=0.1)"
    script = write(tmp_path, "fsdp2", OWN)
    text = script.read_text().replace("opt = torch", make + "\nopt = torch", 1)
    script.write_text(text)
    got = watched_ranks(tmp_path, "--on-alarm", "skip", *warm_launcher(tmp_path), "train.py")
    got.assert_silent()
    expected = plain_ranks(tmp_path, "train.py")
    assert weights(got.out) == weights(expected.out) and len(weights(got.out)) == 2, got.text()
    assert "agree" not in got.err and got.watched["steps"] == 16, got.text()


def test_a_rank_killed_in_agreement_ends_all(tmp_path):
    """The launcher ends nobody: the other rank ends by itself, at its next collective operation, and has said why."""
    write(tmp_path, "fsdp2", "if step == 5 and rank == 1: os.kill(os.getpid(), signal.SIGKILL)")
    words = warm_launcher(tmp_path)
    starter = tmp_path / words[2]
    starter.write_text(starter.read_text().replace("    p.terminate()", "    pass"))
    got = watched_ranks(tmp_path, "--on-alarm", "skip", *words, "train.py", limit=LIMIT)
    assert got.code != 0 and "ranks do not agree on steps any more" in got.err, got.text()
    assert any("killed by SIGKILL" in a["text"] for a in got.advisories("killed")), got.text()


FAILS = """if spoils and step == 5:
        from finitude.program import side_group
        def fails(*args): raise side_group.CannotAgree("the network is gone")
        side_group.SideGroup.most = fails"""


def test_failed_agreement_stops_the_rank_that_sees_it(tmp_path):
    """It has its reason and its capsule."""
    write(tmp_path, "fsdp2", FAILS)
    got = watched_ranks(tmp_path, "--on-alarm", "skip", *warm_launcher(tmp_path), "train.py", "spoil")
    (alarm,) = (a for a in got.alarms if a["rank"] == 1)
    assert got.code == 1 and (alarm["step"], alarm["action"]) == (5, "stopped"), got.text()
    assert "the ranks could not agree on this step: the network is gone" in alarm["text"], alarm["text"]
    assert alarm["weights"] == "clean" and (pathlib.Path(alarm["capsule"]) / "capsule.json").is_file(), got.text()
    assert "ranks do not agree on steps any more: the network is gone" in got.err, got.text()
