"""Each parameter has an optimizer of its own that steps inside backward, as soon as its gradient is there.

One backward is one alarm. Where its loss is bad, no step inside it is taken: as if the loop had said `continue`. Where
a gradient turns bad on the way, that step and those that follow in this backward are left out; those before it were
taken."""

import textwrap

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from helpers import TRAINING, run
from optimizer_support import BAD, BATCHES, NAN, Dense, digest, watching


def training(kind, bad=(), bad_gradient=(), skipped=(), half_skipped=(), schedule=False, accumulate=False):
    """Digests after every batch. bad_gradient: of the first layer, whose gradients come last; half_skipped: batches
    whose steps of the first layer are left out by the hook itself."""
    net = Dense()
    params = list(net.parameters())
    optimizers = {p: kind([p], lr=0.01) for p in params}
    schedulers = [StepLR(o, 2, 0.5) for o in optimizers.values()] if schedule else []
    first_layer = {net.a.weight, net.a.bias}
    batch = [0]

    def hook(p):
        if batch[0] in half_skipped and p in first_layer:
            return
        optimizers[p].step()
        optimizers[p].zero_grad(set_to_none=not accumulate)

    handles = [p.register_post_accumulate_grad_hook(hook) for p in params]
    digests = []
    for i in range(BATCHES):
        batch[0] = i
        if i not in skipped:
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(i))
            hidden = torch.tanh(net.a(x))
            if i in bad_gradient:
                hidden.register_hook(lambda g: g * NAN)
            ((net.b(hidden) - 1).pow(2).mean() * (NAN if i in bad else 1)).backward()
            for p in params:
                if i in half_skipped:
                    p.grad = None
            for scheduler in schedulers:
                scheduler.step()
        digests.append([digest(optimizers[p], [p]) for p in params])
    for handle in handles:
        handle.remove()
    return digests


class Signs(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            m = self.state[p].setdefault("m", torch.zeros_like(p))
            m.lerp_(p.grad, 0.1)
            p.sub_(m.sign(), alpha=self.param_groups[0]["lr"])


KINDS = [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adafactor, Signs]


@pytest.fixture
def quick(few_objects, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", KINDS)
def test_watching_changes_nothing_and_is_silent(kind):
    plain = training(kind)
    with watching() as watch:
        assert training(kind) == plain
        report = watch.report()
        assert not report["alarms"] and not report["advisories"]
        assert report["watched"]["steps"] == 4 * BATCHES and report["watched"]["handled_by_script"] == 0


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_bad_loss_alarms_once_and_skips_its_steps(kind, schedule):
    reference = training(kind, skipped=BAD, schedule=schedule)
    with watching() as watch:
        assert training(kind, bad=BAD, schedule=schedule) == reference
        assert [(a["step"], a["micro_batch"], a["sink"]["kind"], a["weights"]) for a in watch.alarms] == [
            (i, 0, "loss", "clean") for i in BAD
        ]
        assert not watch.report()["advisories"] and watch.report()["watched"]["steps"] == 4 * BATCHES


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", KINDS)
def test_bad_gradient_stops_its_own_and_following_steps(kind):
    reference = training(kind, half_skipped=BAD)
    with watching() as watch:
        assert training(kind, bad_gradient=BAD) == reference
        assert [(a["step"], a["sink"]["kind"], a["weights"]) for a in watch.alarms] == [
            (i, "gradient", "clean") for i in BAD
        ]
        assert not watch.report()["advisories"]


@pytest.mark.usefixtures("quick")
def test_warn_takes_steps_with_one_alarm_per_backward():
    plain = training(torch.optim.SGD, bad=(2,))
    with watching(on_alarm="warn") as watch:
        assert training(torch.optim.SGD, bad=(2,)) == plain
        assert [a["step"] for a in watch.alarms] == [2, 3, 4, 5, 6]  # the weights are NaN from then on
        assert {a["weights"] for a in watch.alarms} == {"damaged"}


@pytest.mark.usefixtures("quick")
def test_raise_comes_out_of_backward_before_any_step():
    with watching(on_alarm="raise") as watch:
        with pytest.raises(FloatingPointError):
            training(torch.optim.SGD, bad=(2,))
        assert len(watch.alarms) == 1


SCRIPT = (
    TRAINING
    + """
model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1), nn.Linear(3, 1, bias=False))
opts = {p: torch.optim.Adam([p], lr=0.01) for p in model.parameters()}
def hook(p):
    opts[p].step()
    opts[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(hook)
for i, x in enumerate(batches):
    h = model[:2](x * (1e30 if i == 3 else 1))
    loss = (model[2](h) - 1).pow(2).mean() - 1e-9 * h.log().mean()
    loss.backward()
    print(i)
print("ended", finite(), sorted({int(s["step"]) for o in opts.values() for s in o.state.values()}))
"""
)


@pytest.mark.parametrize("level", ["gate", "trace"])
def test_command_line_run_explains_step_and_continues_training(tmp_path, level):
    got = run(tmp_path, SCRIPT, "--on-alarm", "skip", "--level", level)
    assert (got.code, got.out) == (0, "0\n1\n2\n3\n4\n5\nended True [5]\n"), got.text()
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["rerun_by"]) == (
        3,
        "loss",
        {"gate": "restart"}.get(level, level),
    )
    assert alarm["births"][0]["op"] == "aten::log" and alarm["cause"]["class"] == "log-of-zero", got.text()


def test_stop_ends_the_program_out_of_backward(tmp_path):
    got = run(tmp_path, SCRIPT)
    assert (got.code, got.out) == (1, "0\n1\n2\n") and "loss.backward()" in got.err, got.text()
    assert got.the_alarm()["weights"] == "clean"


@pytest.mark.fast
def test_program_is_scanned_once_for_all_optimizers(tmp_path):
    """Not once for each optimizer: of a large model they are hundreds."""
    got = run(
        tmp_path,
        TRAINING
        + textwrap.dedent("""
        from finitude.program import rng_generators
        calls, original = [], rng_generators._reached
        rng_generators._reached = lambda: calls.append(1) or original()
        net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(30)])
        optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in net.parameters()}
        def step(p):
            optimizers[p].step()
            optimizers[p].zero_grad()
        for p in net.parameters(): p.register_post_accumulate_grad_hook(step)
        for x in batches: net(x).pow(2).mean().backward()
        print(len(calls))
    """),
    )
    assert got.code == 0 and not got.alarms and int(got.out) <= 2, got.text()
    assert got.watched["steps"] == 6 * 60, got.text()
