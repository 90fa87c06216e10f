"""What is said of a training while its values are still finite: on stderr, in events.jsonl and in the report."""

import json
import math
import pathlib

import pytest
import torch

import finitude
from finitude import _native
from finitude.session import native_callbacks
from helpers import run

GROWS = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.0)
for i in range(120):
    x, y = torch.randn(64, 16), torch.randn(64, 1)
    loss = (model(x) - y).pow(2).mean() * 1.15 ** max(0, i - 20)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def events_of(result):
    (file,) = pathlib.Path(result.folder).glob("finitude-runs/*/events.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_growth_is_warned_of_everywhere(tmp_path):
    result = run(tmp_path, GROWS)
    warnings = result.report["warnings"]
    assert result.report["outcome"] == "clean" and result.code == 0, result.text()
    first = warnings[0]
    assert (first["what"], first["name"], first["optimizer"]) == ("growth", "loss", "SGD")
    assert abs(first["since"] - 20) <= 4 and first["step"] < 45 and first["horizon"][0] < first["horizon"][1]
    assert first["evidence"]["factor_per_step"] == pytest.approx(1.15, rel=0.05)
    assert f"finitude: warning: step {first['step']}: the loss grew" in " ".join(result.err.split())
    assert f"{len(warnings)} warnings" in result.err
    events = events_of(result)
    assert [e["kind"] for e in events] == ["start"] + ["warning"] * len(warnings) + ["end"]
    assert all({"schema", "time", "step", "rank", "optimizer", "kind", "text"} <= set(e) for e in events)
    assert events[1]["text"] == first["text"] and events[1]["horizon"] == first["horizon"]


@pytest.mark.parametrize("option", ["off", "spike,dead"])
def test_warnings_that_are_not_wanted(tmp_path, option):
    result = run(tmp_path, GROWS, "--warnings", option)
    assert not result.report["warnings"] and "finitude: warning" not in result.err, result.text()


def test_an_unknown_kind_is_named(tmp_path):
    result = run(tmp_path, GROWS, "--warnings", "grwoth")
    assert result.code == 2 and "did you mean 'growth'?" in result.err, result.err


def test_an_alarm_is_an_event_twice(tmp_path):
    body = GROWS.replace("1.15 ** max(0, i - 20)", '(float("nan") if i == 5 else 1)')
    result = run(tmp_path, body, "--on-alarm", "skip")
    alarms = [e for e in events_of(result) if e["kind"] == "alarm"]
    assert [(e["step"], e["explained"]) for e in alarms] == [(5, False), (5, True)], result.text()
    assert alarms[1]["alarm"]["births"] == result.the_alarm()["births"]


def test_events_hold_nothing_redacted(tmp_path):
    result = run(tmp_path, GROWS.replace("range(120)", "range(40)"), "--redact")
    events = events_of(result)
    assert [e["kind"] for e in events][0] == "start" and not any(e["text"] for e in events)


def test_warnings_of_watch(tmp_path):
    weight = torch.nn.Parameter(torch.ones(4))
    opt = torch.optim.SGD([weight], lr=0.0)
    with finitude.watch(runs=str(tmp_path), warnings="growth") as watch:
        for i in range(60):
            opt.zero_grad()
            ((weight**2).sum() * 1.2**i).backward()
            opt.step()
        assert {w["what"] for w in watch.report()["warnings"]} == {"growth"}


def watched_training(tmp_path, steps, loss_of, make, clip=None, dtype=torch.float32, **options):
    """The warnings of a small training. loss_of(model, step); make(parameters): the optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)).to(dtype)
    opt = make(model.parameters())
    with finitude.watch(model, opt, runs=str(tmp_path), **options) as watch:
        for i in range(steps):
            opt.zero_grad()
            loss_of(model, i).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            opt.step()
        return watch.report()["warnings"]


def mean_square(model, step):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step)).to(model[0].weight.dtype)
    return (model(x) - 1).pow(2).mean()


def test_growing_weights_are_named(tmp_path):
    def loss(model, step):  # its gradient does not depend on the weights
        return sum(p.sum() * 0.01 for p in model.parameters())

    def make(parameters):
        first, *others = parameters
        return torch.optim.SGD([{"params": [first], "weight_decay": -0.1}, {"params": others}], lr=0.1)

    (first, *_) = watched_training(tmp_path, 700, loss, make, warnings="growth")
    assert (first["what"], first["name"]) == ("growth", "0.weight") and first["since"] < 320, first
    assert first["evidence"]["factor_per_step"] == pytest.approx(1.01, abs=0.002)
    assert first["text"].startswith("the largest weight of 0.weight grew") and first["horizon"]


def test_gradients_that_die_together_are_one_line(tmp_path, capfd):
    def loss(model, step):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        return (model[1](model[0](x) * (step < 10)) - 1).pow(2).mean()

    found = watched_training(tmp_path, 230, loss, lambda p: torch.optim.SGD(p, lr=1e-3), warnings="dead")
    assert [(w["what"], w["name"]) for w in found] == [("dead", name) for name in ("0.weight", "0.bias", "1.weight")]
    said = " ".join(capfd.readouterr().err.split())
    assert said.count("finitude: warning") == 1
    assert "the gradient of 0.weight has been exactly zero since step 10, and 2 more" in said


def test_the_layer_whose_weights_grow_is_named(tmp_path):
    """Of all gradients its own grows least."""

    def loss(model, step):
        with torch.no_grad():
            model[0].weight.mul_(1.01)
        return mean_square(model, step)

    (first, *_) = watched_training(tmp_path, 300, loss, lambda p: torch.optim.SGD(p, lr=0.0), warnings="growth")
    assert first["name"] == "0.weight" and ", with the weights of 0.weight" in first["text"], first


def test_an_explosion_of_four_steps_is_warned_of_before_its_alarm(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    opt = torch.optim.SGD(model.parameters(), lr=5.0)
    x, y = torch.randn(64, 16), torch.randn(64, 1)
    with (
        finitude.watch(model, opt, on_alarm="raise", runs=str(tmp_path)) as watch,
        pytest.raises(finitude.NonFiniteError),
    ):
        for _ in range(20):
            opt.zero_grad()
            (model(x) - y).pow(2).mean().backward()
            opt.step()
    report = watch.report()
    assert report["warnings"] and report["warnings"][0]["what"] == "growth"
    assert report["warnings"][0]["step"] < report["alarms"][0]["step"] <= 4


def test_updates_below_the_dtype_are_no_learning(tmp_path):
    (found,) = watched_training(tmp_path, 400, mean_square, lambda p: torch.optim.SGD(p, lr=1e-7), dtype=torch.bfloat16)
    assert found["what"] == "no-learning" and found["text"].startswith("no parameter has changed since step"), found


def test_gradients_clipped_to_nothing_are_noticed(tmp_path):
    (found,) = watched_training(
        tmp_path, 250, mean_square, lambda p: torch.optim.SGD(p, lr=1e-3), clip=1e-3, warnings="clipping"
    )
    assert (found["what"], found["since"], found["step"]) == ("clipping", 0, 199), found
    assert found["evidence"]["from"] == pytest.approx(1e-3)


def test_half_gradients_near_their_limit_are_noticed(tmp_path):
    def loss(model, step):  # of the half layer the gradient grows by 1.03 a step, up to 3600
        return (model[0].weight * (10 * 1.03**step)).sum().float() + model[1].weight.sum()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8).half(), torch.nn.Linear(8, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    with finitude.watch(model, opt, runs=str(tmp_path), warnings="headroom") as watch:
        for i in range(200):
            opt.zero_grad()
            loss(model, i).backward()
            opt.step()
        first, *_ = watch.report()["warnings"]
    assert (first["what"], first["name"]) == ("headroom", "0.weight"), first
    left = math.log(65504 / 10) / math.log(1.03) - first["step"]
    assert first["horizon"][0] <= left + 1 and left - 1 <= first["horizon"][1] and left > 50, (first, left)
    assert (
        first["evidence"]["from"] == 65504
        and "bits below the largest number of the dtype it is computed in" in first["text"]
    )


@pytest.mark.parametrize(("how", "limit"), [("autocast", 65504), ("cast", 65504), ("float32", None), ("scaled", None)])
def test_headroom_is_that_of_the_dtype_computed_in(tmp_path, how, limit):
    """The weights and their gradients are float32 in each of these; those of the bias come through float16 nowhere."""
    torch.manual_seed(0)
    model = torch.nn.ParameterDict({"weight": torch.full((4, 8), 0.01), "bias": torch.zeros(8)})
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, enabled=how == "scaled")
    with finitude.watch(model, opt, runs=str(tmp_path), warnings="headroom") as watch:
        for _ in range(20):
            with torch.autocast("cpu", torch.float16, enabled=how in ("autocast", "scaled")):
                weight = model["weight"].half() if how == "cast" else model["weight"]
                out = torch.ones(1, 4, dtype=weight.dtype) @ weight
            loss = out.float().sum() * 8192 + (model["bias"] * 8192).sum()
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        found = watch.report()["warnings"]
        headroom = finitude.metrics()["headroom_bits"]
    assert [(w["name"], w["evidence"]["from"]) for w in found] == ([("weight", limit)] if limit else []), found
    assert headroom == pytest.approx(math.log2((limit or torch.finfo(torch.float32).max) / 8192))


def dropped_in(tmp_path, how, every, steps=240):
    """The warnings of a training that drops each so-manieth step, and the steps that it applied before each of them."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=every, enabled=how == "scaler")
    with finitude.watch(model, opt, runs=str(tmp_path), warnings="dropped", max_skips=50) as watch:
        for i in range(steps):
            loss = 64 * model(torch.randn(8, 4)).pow(2).mean()  # so that the scale overflows at 2^125 or so
            if how != "scaler" and i % every == 3:
                loss = loss * float("nan")
            if how == "loss" and not torch.isfinite(loss):
                continue
            opt.zero_grad()
            scaler.scale(loss).backward()
            if how == "gradients" and not torch.isfinite(model.weight.grad).all():
                continue
            scaler.step(opt)
            scaler.update()
        return watch.report()["warnings"]


@pytest.mark.parametrize("how", ["gradients", "loss", "scaler"])
def test_many_dropped_steps_are_noticed(tmp_path, how):
    (found,) = dropped_in(tmp_path, how, 5)
    assert (found["what"], found["name"]) == ("dropped", "steps") and found["evidence"]["to"] >= 10, found
    assert found["evidence"].get("by_scaler", 0) == (found["evidence"]["to"] if how == "scaler" else 0), found
    said = "a GradScaler skipped" if how == "scaler" else "the program dropped"
    assert said in found["text"], found


@pytest.mark.parametrize("how", ["gradients", "loss"])
def test_a_few_dropped_steps_are_usual(tmp_path, how):
    assert dropped_in(tmp_path, how, 40) == []


@pytest.mark.parametrize(("factor", "kind"), [(0.2, "vanishing-depth"), (5.0, "exploding-depth"), (1.0, None)])
def test_gradients_over_the_depth_are_noticed(tmp_path, factor, kind):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8, bias=False) for _ in range(8)])
    for layer in model:
        torch.nn.init.orthogonal_(layer.weight)
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    with finitude.watch(model, opt, runs=str(tmp_path), warnings="vanishing-depth,exploding-depth") as watch:
        for _ in range(130):
            opt.zero_grad()
            x = torch.randn(16, 8)
            for layer in model:  # its values are those of the layer, its gradient is that times the factor
                y = layer(x)
                x = y * factor + (y * (1 - factor)).detach()
            x.sum().backward()
            opt.step()
        found = watch.report()["warnings"]
    assert [w["what"] for w in found] == ([kind] if kind else []), found
    if kind:
        assert found[0]["name"] == "0.weight" and "7.weight" in found[0]["text"], found
        assert found[0]["evidence"]["layers"] == 8


@pytest.mark.parametrize("clip", [None, 0.5])
def test_grad_warn_is_a_limit_of_the_norm(tmp_path, clip):
    norms = []

    def loss(model, step):
        scale = 100 if step == 20 else 1
        value = mean_square(model, step) * scale
        gradients = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
        norms.append(torch.cat([g.flatten() for g in gradients]).norm().item())
        return value

    found = watched_training(
        tmp_path, 40, loss, lambda p: torch.optim.SGD(p, lr=1e-3), clip=clip, warnings="norm", grad_warn=50
    )
    assert [w["step"] for w in found] == [i for i, norm in enumerate(norms) if norm > 50] == [20]
    assert found[0]["evidence"]["to"] == pytest.approx(norms[20], rel=1e-4)


def test_an_alarm_opens_with_its_onset(tmp_path):
    result = run(tmp_path, GROWS.replace("1.15 ** max(0, i - 20)", "3.0 ** max(0, i - 20)"))
    alarm = result.the_alarm()
    onset = alarm["onset"]
    assert abs(onset["step"] - 20) <= 3 and onset["rate"] == pytest.approx(3, rel=0.1) and onset["lr"] == 0
    text = " ".join(result.err.split())
    assert text.index("grew since step") < text.index("born in"), result.err


def test_a_series_gives_the_same_warnings_later():
    steps = [(i, 1.2**i, 1.2**i, 0.1, 0.0, [1.0, 1.2**i]) for i in range(100)]
    first, again = (json.loads(_native.step_warnings(steps, 3e38)) for _ in range(2))
    assert first == again and first[0]["what"] == "growth" and first[0]["since"] <= 1


def test_a_quiet_run_says_nothing(tmp_path):
    result = run(tmp_path, GROWS, "--quiet")
    assert result.err == "" and result.report["warnings"], result.text()


def test_a_quiet_run_reports_its_alarm(tmp_path):
    result = run(tmp_path, GROWS.replace("1.15 ** max(0, i - 20)", '(float("nan") if i == 5 else 1)'), "-q")
    assert result.the_alarm()["step"] == 5 and "step 5 stopped before the optimizer" in result.err


def test_an_interrupt_during_a_warning_reaches_the_program(tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    weight = torch.nn.Parameter(torch.ones(4))
    opt = torch.optim.SGD([weight], lr=0.0)
    with finitude.watch(runs=str(tmp_path)):
        native_callbacks.session.on_warning = interrupted
        with pytest.raises(KeyboardInterrupt):
            for i in range(60):
                opt.zero_grad()
                ((weight**2).sum() * 1.2**i).backward()
                opt.step()
