"""What one rank sees of a step, all ranks skip that step together: of each strategy, with scalers and closures. One
program of two ranks runs them one after another; another one, without Finitude, takes that step on no rank."""

import time

import pytest
import torch  # noqa: F401  its libraries

from helpers import write_script
from process_support import plain_ranks, warm_launcher, watched_ranks
from sharded_programs import BEGIN, END, FSDP1, FSDP1_PARAMETERS, FSDP2, HSDP, SEQUENCE_PARALLEL, TENSOR_PARALLEL

pytestmark = pytest.mark.slow

STEPS, BAD = 6, 3
PROGRAM = (
    BEGIN.partition("MAKE")[0].replace("OUT", "4")
    + """
import contextlib, hashlib, itertools
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed._functional_collectives import all_to_all_single_autograd
leaves = "leave" in sys.argv
cross_entropy = nn.functional.cross_entropy
def local(t):
    return getattr(t, "_local_tensor", t).detach()
def spoil(step, parameters):
    if step == BAD and rank == 1 and not leaves:
        next(local(p.grad) for p in parameters if p.grad is not None and p.grad.numel()).view(-1)[0] = float("nan")
agreed = [0]  # exchanges of Finitude's so far
if side := sys.modules.get("finitude.program.side_group"):
    most = side.SideGroup.most
    def counted(*args):
        agreed[0] += 1
        return most(*args)
    side.SideGroup.most = counted
def said(name, parameters, *state):
    held = [local(p) for p in parameters] + [local(t) for t in state]
    text = hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in held)).hexdigest()
    callbacks = sys.modules.get("finitude.session.native_callbacks")
    so_far = len(callbacks.session.report.alarms) if callbacks and callbacks.session else 0
    sys.stdout.write(f"case {name} rank {rank} {text} {so_far} {agreed[0]}\\n")
    sys.stdout.flush()
def batch():
    return torch.randn(6, 4), torch.randint(0, 4, (6,))
def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)
def moments(opt):
    return [v for s in opt.state_dict()["state"].values() for v in s.values() if isinstance(v, torch.Tensor)]

def plain_case(name, model, opt, no_sync=False, shape=()):
    for step in range(STEPS):
        x, y = torch.randn(6, *shape, 4), torch.randint(0, 4, (6,))
        opt.zero_grad()
        with model.no_sync() if no_sync else contextlib.nullcontext():
            cross_entropy(model(x), y).backward()
        spoil(step, list(model.parameters()))
        if not (leaves and step == BAD):
            opt.step()
    said(name, model.parameters(), *(moments(opt) if "zero" not in name else ()))

def reduced_case(name, model, opt):
    # The script itself sums the gradients, in their own memory.
    for step in range(STEPS):
        x, y = batch()
        opt.zero_grad()
        cross_entropy(model(x), y).backward()
        spoil(step, list(model.parameters()))
        for p in model.parameters():
            dist.all_reduce(p.grad)
        if not (leaves and step == BAD):
            opt.step()
    said(name, model.parameters(), *moments(opt))

def replicas_case(name, model, opt):
    for step in range(STEPS):
        x, y = batch()
        opt.zero_grad()
        (cross_entropy(model(x), y) * (float("nan") if step == BAD and rank == 1 else 1.0)).backward()
        if not (leaves and step == BAD):
            opt.step()
    said(name, model.parameters(), *moments(opt))

def closure_case(name, model, opt):
    for step in range(STEPS):
        x, y = batch()
        def closure():
            opt.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            spoil(step, list(model.parameters()))
            return loss
        if leaves and step == BAD:
            closure()
        else:
            opt.step(closure)
    said(name, model.parameters(), *moments(opt))

def scaler_case(name, model, opt, scaler, no_sync=False, clips=False):
    # The loss of one rank is bad in one step; in the one after the next a gradient overflows everywhere.
    for step in range(STEPS):
        x, y = batch()
        opt.zero_grad()
        with model.no_sync() if no_sync else contextlib.nullcontext():
            loss = cross_entropy(model(x), y)
            if step == BAD and rank == 1:
                loss = loss * float("nan")
            scaler.scale(loss).backward()
        if step == BAD + 1:
            for p in model.parameters():
                if p.grad is not None and p.grad.numel(): local(p.grad).view(-1)[0] = float("inf")
        if clips:
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if leaves and step == BAD:
            scaler._per_optimizer_states.clear()
            continue
        scaler.step(opt)
        scaler.update()
    said(name, model.parameters(), *moments(opt), scaler._scale, scaler._growth_tracker)

def pipeline_case(name, mesh=None, wrap=lambda part: part):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    at = rank if mesh is None else mesh.get_local_rank()
    part = wrap(nn.Linear(4, 8) if at == 0 else nn.Sequential(nn.ReLU(), nn.Linear(8, 4)))
    stage = PipelineStage(part, at, 2, torch.device("cpu"), group=mesh and mesh.get_group())
    schedule, opt = ScheduleGPipe(stage, 2, loss_fn=cross_entropy), adam(part)
    for step in range(STEPS):
        x, y = batch()
        opt.zero_grad()
        schedule.step(x) if at == 0 else schedule.step(target=y)
        spoil(step, list(part.parameters()))
        if not (leaves and step == BAD):
            opt.step()
    said(name, part.parameters(), *moments(opt))

def expert_case(name, starves):
    # FAR: how many tokens of each rank go to the expert of the other one. starves: that of rank 1 gets none at all.
    def sends(of):
        return [6, 0] if starves and FAR == 0 else [6 - FAR, FAR] if of == 0 else [FAR, 6 - FAR]
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense, self.expert = nn.Linear(4, 4), nn.Linear(4, 4)
        def forward(self, x):
            x = self.dense(x)
            sent, taken = sends(rank), [sends(0)[rank], sends(1)[rank]]
            got = all_to_all_single_autograd(x, taken, sent, dist.group.WORLD)
            return all_to_all_single_autograd(self.expert(got), sent, taken, dist.group.WORLD)
    model = Experts()
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model, ["expert.weight", "expert.bias"])
    whole = nn.parallel.DistributedDataParallel(model)
    opt = adam(whole)
    for step in range(STEPS):
        x, y = batch()
        FAR = 0 if step % 2 else 2
        opt.zero_grad()
        cross_entropy(whole(x), y).backward()
        spoil(step, list(model.expert.parameters()))
        if not (leaves and step == BAD):
            opt.step()
    said(name, whole.parameters(), *moments(opt))

def joined_case(name, model, opt):
    # The inputs of rank 0 end first. Then Join steps its optimizer.
    if leaves:
        take, numbers = opt.step, itertools.count()
        opt.step = lambda: None if next(numbers) == BAD else take()
    with Join([model, opt]):
        for step in range(STEPS if rank == 1 else BAD - 1):
            x, y = batch()
            opt.zero_grad()
            cross_entropy(model(x), y).backward()
            spoil(step, list(model.parameters()))
            opt.step()
    said(name, model.parameters())

def replicas():
    return nn.parallel.DistributedDataParallel(MLP())
""".replace("STEPS", str(STEPS)).replace("BAD", str(BAD))
)


def case(name, make, call):
    seed = "7" if "parallel" in name else "100 + rank // 2" if "grid" in name else "100 + rank"
    return f"\ntorch.manual_seed(0)\n{make}\ntorch.manual_seed({seed})\n{call.format(name=name)}\n"


PLAIN = "plain_case('{name}', model, adam(model))"
CLOSURE = "closure_case('{name}', model, adam(model))"
DDP = "model = replicas()"
ZERO = "ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.05)"
SCALER = "torch.amp.GradScaler('cpu', init_scale=64.0, growth_interval=2)"
SHARDED = "ShardedGradScaler(device='cpu', init_scale=64.0, growth_interval=2)"
CASES = {
    "hsdp": (HSDP, PLAIN),
    "fsdp1": (FSDP1, PLAIN),
    "fsdp1-parameters": (FSDP1_PARAMETERS, PLAIN),
    "zero-no_sync": (DDP, f"plain_case('{{name}}', model, {ZERO}, True)"),
    "zero-joined": (DDP, f"joined_case('{{name}}', model, {ZERO})"),
    "sequence-parallel": (SEQUENCE_PARALLEL, "plain_case('{name}', model, adam(model), shape=(4,))"),
    "pipeline": ("", "pipeline_case('{name}')"),
    "experts": ("", "expert_case('{name}', False)"),
    "experts-starved": ("", "expert_case('{name}', True)"),
    "ddp": (DDP, "replicas_case('{name}', model, adam(model))"),
    "reduced": ("model = MLP()", "reduced_case('{name}', model, adam(model))"),
    "fsdp2-closure": (FSDP2, CLOSURE),
    "fsdp2-scaler": (FSDP2, f"scaler_case('{{name}}', model, adam(model), {SCALER})"),
    "tensor-parallel-scaler": (TENSOR_PARALLEL, f"scaler_case('{{name}}', model, adam(model), {SCALER})"),
    "fsdp2-scaler-clipped": (FSDP2, f"scaler_case('{{name}}', model, adam(model), {SCALER}, clips=True)"),
    "fsdp1-sharded-scaler": (FSDP1, f"scaler_case('{{name}}', model, adam(model), {SHARDED})"),
    "ddp-scaler": (DDP, f"scaler_case('{{name}}', model, adam(model), {SCALER})"),
    "no_sync-scaler": (DDP, f"scaler_case('{{name}}', model, adam(model), {SCALER}, True)"),
}


def endings(text):
    """{(case, rank): (checksum, alarms of that rank so far)}"""
    lines = [line.split() for line in text.splitlines() if line.startswith("case ")]
    return {(words[1], int(words[3])): (words[4], int(words[5])) for words in lines}


def exchanges(text, names):
    """{case: exchanges of rank 0 in it}"""
    so_far = {words[1]: int(words[6]) for words in map(str.split, text.splitlines()) if words[2:4] == ["rank", "0"]}
    before = [0, *(so_far[name] for name in names)]
    return {name: so_far[name] - before[i] for i, name in enumerate(names)}


def outcome(folder, cases, ranks=2):
    write_script(folder, PROGRAM + "".join(case(name, *cases[name]) for name in cases) + END)
    got = watched_ranks(folder, "--on-alarm", "skip", *warm_launcher(folder, ranks), "train.py")
    expected = plain_ranks(folder, "train.py", "leave", ranks=ranks)
    return got, endings(expected.out), expected


def differences(got, expected, names, alarms, ranks=2):
    """A line for each case and rank in which something does not hold: its weights are those of a run without that step,
    and its one alarm is at it. alarms: of the report, those of a rank in order."""
    lines = []
    for rank in range(ranks):
        mine, before = [a for a in alarms if a["rank"] == rank], 0
        for name in names:
            checksum, so_far = got.get((name, rank), ("", len(mine)))
            of_case, before = mine[before:so_far], so_far
            wrong = "" if checksum and checksum == expected.get((name, rank), ("",))[0] else "other weights"
            wrong = wrong if checksum else "did not end"
            if wrong or [a["step"] for a in of_case] != [BAD]:
                said = [f"step {a['step']}, {a['action']}: {a['text']}" for a in of_case]
                lines.append(f"{name}, rank {rank}: {wrong or 'other alarms'}; alarms: {said}")
    return lines


def test_a_difference_names_its_case():
    """Of two cases, the second differs on rank 1, which has two alarms there."""
    alarm = {"action": "the step was skipped", "text": "bad"}
    alarms = [{**alarm, "rank": rank, "step": BAD} for rank in (0, 1, 0, 1)] + [{**alarm, "rank": 1, "step": BAD + 1}]
    expected = {(name, rank): ("x", 0) for name in "ab" for rank in (0, 1)}
    got = {("a", 0): ("x", 1), ("a", 1): ("x", 1), ("b", 0): ("x", 2), ("b", 1): ("y", 3)}
    (line,) = differences(got, expected, "ab", alarms)
    assert line.startswith("b, rank 1: other weights") and f"step {BAD + 1}, the step was skipped: bad" in line
    assert differences(got | {("b", 1): ("x", 2)}, expected, "ab", alarms[:4]) == []
    assert differences({}, expected, "a", [])[1] == "a, rank 1: did not end; alarms: []"


def check(folder, cases, ranks=2):
    got, expected, without = outcome(folder, cases, ranks)
    wrong = differences(endings(got.out), expected, cases, got.alarms, ranks)
    assert not wrong, "\n".join([*wrong, f"exit codes {got.code}, {without.code}", got.err[-2000:]])
    assert got.code == 0 and without.code == 0, got.text() + without.err
    assert len(got.alarms) == ranks * len(cases), got.text()
    assert not got.watched.get("failures") and "do not agree" not in got.err, got.text()
    return got


def test_each_strategy_skips_everywhere(tmp_path):
    got = check(tmp_path, CASES)
    asked = exchanges(got.out, list(CASES))
    assert {name for name in asked if asked[name] < STEPS} == {"ddp", "reduced"}, asked
    assert asked["ddp"] == asked["reduced"] == 0, asked


@pytest.mark.parametrize(
    "name", ["fsdp2-scaler-clipped", "ddp-scaler", pytest.param("no_sync-scaler", marks=pytest.mark.thorough)]
)
def test_a_step_of_a_scaler_runs_again_in_place_on_all_ranks(tmp_path, name):
    """And it is left out as without a second run: the same weights and scale."""
    got = check(tmp_path, {name: CASES[name]})
    assert all((a["rerun"], a["rerun_by"]) == ("persistent", "rewind") for a in got.alarms), got.text()
    made = next(a for a in got.alarms if a["rank"] == 1)
    assert made["births"][0]["source"].endswith('loss = loss * float("nan")'), made


def test_a_restart_leaves_out_what_finite_ranks_left_out(tmp_path):
    """The update of this model exchanges values: a rank that took a step which the other one leaves out waits for it."""
    text = PROGRAM.replace("step == 3 and rank == 1", "step in (1, 3) and rank == 1")
    make, call = CASES["sequence-parallel"]
    pipe = "lines = os.fdopen(os.pipe()[0])\n"  # gives each line once: no step runs again in place
    write_script(tmp_path, text + pipe + case("sequence-parallel", make, call) + END)
    began = time.monotonic()
    got = watched_ranks(tmp_path, "--on-alarm", "skip", *warm_launcher(tmp_path), "train.py")
    assert got.code == 0 and time.monotonic() - began < 100, got.text()  # a second run has 120 s at least
    alarm = next(a for a in got.alarms if (a["rank"], a["step"]) == (1, 3))
    assert (alarm["rerun_by"], alarm["rerun_verified"]) == ("restart", True), alarm["rerun_text"]


# Each rank knows two groups that only overlap, of its row and of its column: all four are asked.
GRID = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
"""
GRID_PIPELINE = "pipeline_case('{name}', grid['model'], lambda part: fully_shard(part, mesh=grid['data']))"
GRID_TENSOR = (
    GRID
    + """
from torch.distributed.tensor.parallel import parallelize_module, ColwiseParallel, RowwiseParallel
model = parallelize_module(MLP(), grid["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
fully_shard(model, mesh=grid["data"])
"""
)
GRIDS = {"grid-pipeline": (GRID, GRID_PIPELINE), "grid-tensor": (GRID_TENSOR, PLAIN)}


def test_overlapping_groups_skip_everywhere(tmp_path):
    check(tmp_path, GRIDS, ranks=4)
