"""--rollback-every on several ranks: at an alarm all go back to one copy, bit for bit as a script does that keeps its
own, or none does."""

import json

import pytest
import torch  # noqa: F401  its libraries

from helpers import LIMIT, write_script
from process_support import plain_ranks, warm_launcher, watched_ranks
from sharded_programs import BEGIN, END, FSDP1, FSDP2, HSDP, SEQUENCE_PARALLEL, TENSOR_PARALLEL

pytestmark = pytest.mark.slow

# Under "manual" the script does for itself what the watched one has done for it: a copy after step 7, and `continue`
# at the bad step. The copies come after steps 1, 7 and 13; at step 16 the last is too young. Under "leave" it keeps none.
PROGRAM = (
    BEGIN.replace("OUT", "4").replace("SEED", "7 if SAME_DATA else 100 + rank")
    + """
import copy, hashlib
manual, GOOD, BAD = len(sys.argv) > 1, 7 if "manual" in sys.argv else -1, 16
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 24)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=12) if SCALED else None
own = getattr(opt, "optim", opt)  # what this rank holds of a ZeroRedundancyOptimizer
parts = [model, own, scheduler, *([scaler] if scaler else [])]
def local(t):
    return getattr(t, "_local_tensor", t).detach()
kept = None
for step in range(22):
    x, y = torch.randn(6, 4), torch.randint(0, 4, (6,))
    AT_STEP
    opt.zero_grad()
    STEP
    if step == BAD and rank == 1:
        SPOIL
    if manual and step == BAD:
        if kept:
            for part, state in zip(parts, kept[0]): part.load_state_dict(copy.deepcopy(state))
            torch.set_rng_state(kept[1])
            LOWER
        if scaler: scaler._per_optimizer_states.clear()
        continue
    if scaler:
        scaler.step(opt)
        scaler.update()
    else:
        opt.step()
    scheduler.step()
    if manual and step == GOOD:
        kept = [copy.deepcopy(part.state_dict()) for part in parts], torch.get_rng_state()
state = [local(t) for t in model.state_dict().values()] + [torch.get_rng_state(), torch.tensor(scheduler.get_last_lr())]
state += [local(v) for s in own.state_dict()["state"].values() for v in s.values() if torch.is_tensor(v)]
if scaler: state += [scaler._scale, scaler._growth_tracker]
text = hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in state)).hexdigest()
sys.stdout.write(f"rank {rank} {text}\\n")  # at once: both ranks write here
sys.stdout.flush()
"""
    + END
)
STEP = "nn.functional.cross_entropy(model(x), y).backward()"
DDP = """
class Net(MLP):
    def __init__(self):
        super().__init__()
        self.up = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2))
model = nn.parallel.DistributedDataParallel(Net())
"""
DDP_STEP = """loss = nn.functional.cross_entropy(model(x), y) * (float("nan") if step == BAD and rank == 1 else 1.0)
    (scaler.scale(loss) if scaler else loss).backward()"""
ACCUMULATED = f"""with model.no_sync():
        {STEP}
    with model.no_sync():
        {STEP}"""
ONE = "local(next(p.grad for p in model.parameters() if p.grad is not None)).view(-1)[0] = float('nan')"
PIPELINE = """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
model = nn.Linear(4, 8) if rank == 0 else nn.Sequential(nn.ReLU(), nn.Linear(8, 4))
stage = PipelineStage(model, rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.cross_entropy)
"""
EXPERTS = """
from torch.distributed._functional_collectives import all_to_all_single_autograd
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.expert = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        got = all_to_all_single_autograd(self.dense(x), [3, 3], [3, 3], dist.group.WORLD)
        return all_to_all_single_autograd(self.expert(got), [3, 3], [3, 3], dist.group.WORLD)
whole = Experts()
parallel = nn.parallel.DistributedDataParallel
parallel._set_params_and_buffers_to_ignore_for_model(whole, ["expert.weight", "expert.bias"])
model = parallel(whole)
"""
ZERO = """
from torch.distributed.optim import ZeroRedundancyOptimizer
model = nn.parallel.DistributedDataParallel(MLP())
"""
THOROUGH = (
    *("scaler", "no_sync", "fsdp1", "tensor parallel"),
    *("hsdp", "sequence parallel", "pipeline", "experts", "zero"),
)
# What makes the model, a step, what makes it bad on rank 1.
KINDS = {
    "ddp": (DDP, DDP_STEP, "pass"),
    "scaler": (DDP, DDP_STEP, "pass"),
    "no_sync": (DDP, ACCUMULATED, ONE),
    "fsdp1": (FSDP1, STEP, ONE),
    "fsdp2": (FSDP2, STEP, ONE),
    "tensor parallel": (TENSOR_PARALLEL, STEP, ONE),
    "hsdp": (HSDP, STEP, ONE),
    "sequence parallel": (SEQUENCE_PARALLEL, f"x = torch.randn(6, 4, 4)\n    {STEP}", ONE),
    "pipeline": (PIPELINE, "schedule.step(x) if rank == 0 else schedule.step(target=y)", ONE),
    "experts": (EXPERTS, STEP, ONE.replace("model", "whole.expert")),
    "zero": (ZERO, ACCUMULATED, ONE),
}


HALF = """for g in opt.param_groups: g["lr"] *= 0.5; g["initial_lr"] *= 0.5
            scheduler.base_lrs = [r * 0.5 for r in scheduler.base_lrs]"""
SAME = """for g, lr in zip(opt.param_groups, scheduler.get_last_lr()): g["lr"] = lr"""


def write(folder, kind, at_step="pass"):
    make, step, spoil = KINDS[kind]
    text = PROGRAM.replace("MAKE", make).replace("AT_STEP", at_step).replace("STEP\n", step + "\n", 1)
    text = text.replace("SPOIL", spoil).replace("LOWER", {"ddp": HALF, "zero": SAME}.get(kind, "pass"))
    if kind == "zero":
        text = text.replace(
            "torch.optim.AdamW(model.parameters(), lr",
            "ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr",
        )
    text = text.replace("SCALED", str(kind == "scaler"))
    return write_script(folder, text.replace("SAME_DATA", str("parallel" in kind)))


def weights(text):
    """{rank: checksum of all that it ended with}"""
    return dict(line.split()[1:] for line in text.splitlines() if line.startswith("rank "))


def back(folder, *options):
    options = "--on-alarm", "rollback", "--rollback-every", "6", "--capsules", "0", *options
    return watched_ranks(folder, *options, *warm_launcher(folder), "train.py", limit=2 * LIMIT)


def events(folder, kind):
    """{rank: [event]}"""
    found = {}
    for file in folder.glob("finitude-runs/*/rank-*/events.jsonl"):
        lines = map(json.loads, file.read_text().splitlines())
        found[int(file.parent.name[5:])] = [e for e in lines if e["kind"] == kind]
    return found


def script_of(folder, mode):
    done = plain_ranks(folder, "train.py", mode)
    assert done.code == 0 and len(weights(done.out)) == 2, done.err
    return weights(done.out)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.thorough) if k in THOROUGH else k for k in KINDS])
def test_all_ranks_go_back_as_a_script_does(tmp_path, kind):
    write(tmp_path, kind)
    got = back(tmp_path, *(("--rollback-lr", "0.5") if kind == "ddp" else ()))
    assert got.code == 0 and weights(got.out) == script_of(tmp_path, "manual"), got.text()
    text = "training went back to the state after step 7"
    text += ", with 0.5 times its learning rate" if kind == "ddp" else ""
    assert sorted((a["rank"], a["step"], a["action"]) for a in got.alarms) == [(r, 16, text) for r in (0, 1)]
    assert got.err.count(f"finitude: step 16: {text}") == 1, got.text()
    assert [(e["step"], e["to"]) for found in events(tmp_path, "rollback").values() for e in found] == [(16, 7)] * 2
    assert not got.watched.get("failures") and "agree" not in got.err, got.text()


NAN_HERE = """if step == 0 and rank == 1:
        odd = nn.Linear(1, 1); odd.register_buffer("average", torch.full((1,), float("nan")))"""
LARGE_HERE = "if step == 0 and rank == 1: large = nn.Linear(1000, 1000)"


@pytest.mark.parametrize(
    "at_step, options, why",
    [
        (NAN_HERE, (), "no copy is good yet"),
        pytest.param(
            LARGE_HERE,
            ("--rollback-mb", "1"),
            "rank 1: two copies of the training take 8 MB, --rollback-mb gives 1",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["not good", "too large"],
)
def test_none_goes_back_where_one_cannot(tmp_path, at_step, options, why):
    write(tmp_path, "fsdp2", at_step)
    got = back(tmp_path, *options)
    assert got.code == 0 and weights(got.out) == script_of(tmp_path, "leave"), got.text()
    assert [a["action"] for a in got.alarms] == ["the step was skipped"] * 2, got.text()
    assert all("training did not go back: rank" in a["text"] and why in a["text"] for a in got.alarms), got.text()


FAILS_HERE = """if step == 0 and rank == 1:
        from finitude.session import native_callbacks
        native_callbacks.session.rollback._lowered_rate.keep = None"""


@pytest.mark.thorough
def test_rank_that_fails_to_go_back_stops(tmp_path):
    write(tmp_path, "no_sync", FAILS_HERE)
    got = back(tmp_path)
    assert got.code == 1 and next(a["action"] for a in got.alarms if a["rank"] == 1) == "stopped", got.text()


# Row 21 makes the loss of rank 1 bad in step 2 of each epoch that draws it. In the first one no copy is good yet.
ROWS = """
import sys, time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.arange(32.0).view(32, 1) / 32, torch.arange(32))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, 2, rank, shuffle=False))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(4):
    drawn = []
    for x, rows in loader:
        drawn += rows.tolist()
        loss = (model(x) - x).pow(2) / (rows != 21).float().view(-1, 1)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
    sys.stdout.write(f"rank {rank} {epoch} {len(drawn)} {21 in drawn}\\n")
    sys.stdout.flush()
"""


@pytest.mark.thorough
def test_all_ranks_skip_the_same_rows(tmp_path):
    write_script(tmp_path, ROWS + END)
    got = back(tmp_path, "--rollback-every", "2", "--rollback-skip-rows")
    lines = sorted(line.split()[1:] for line in got.out.splitlines())
    assert got.code == 0 and len(lines) == 8, got.text()
    assert [a["step"] for a in got.alarms] == [2, 2, 6, 6], got.text()
    of = [[line[1:] for line in lines if line[0] == rank] for rank in "01"]
    assert [count for _, count, _ in of[0]] == [count for _, count, _ in of[1]], got.text()
    assert [has for _, _, has in of[1]] == ["True", "True", "False", "False"], got.text()
    assert all("of TensorDataset are not drawn again" in a["text"] for a in got.alarms[2:]), got.text()
