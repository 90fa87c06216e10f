"""Models, optimizers and scalers that are made, copied, loaded and dropped in one process: the bad step of each is left
out, with what its forward pass wrote into buffers. The weights are those of a program without that step."""

import copy
import io

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from optimizer_support import NAN, watching


@pytest.fixture(autouse=True)
def quick(few_objects, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh(), torch.nn.Linear(5, 1))


class Steps:
    """Takes the steps of a program. leaves_out: no bad step is taken, as in the program to compare with."""

    def __init__(self, leaves_out):
        self.leaves_out, self.bad = leaves_out, 0

    def take(self, model, opt, bad=-1, count=4, scaler=None):
        for i in range(count):
            self.bad += i == bad
            if i == bad and self.leaves_out:
                continue
            opt.zero_grad()
            loss = model(torch.randn(4, 3, generator=torch.Generator().manual_seed(i))).pow(2).mean()
            loss = loss * NAN if i == bad else loss
            if scaler is None:
                loss.backward()
                opt.step()
            else:
                scaler.scale(loss).backward()
                scaler.unscale_(opt)
                scaler.step(opt)
                scaler.update()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def folds(steps):
    for fold in range(3):
        model = net()
        opt = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(opt, 1)
        steps.take(model, opt, bad=fold)
        schedule.step()
        steps.take(model, opt)
        yield model
        del model, opt, schedule  # the next ones may lie at their addresses


def sweep(steps):
    base = net()
    for lr in (0.1, 0.01):
        model = copy.deepcopy(base)
        steps.take(model, torch.optim.SGD(model.parameters(), lr=lr), bad=0)
        yield model


def restart_with_lower_rate(steps):
    model, lr = net(), 0.1
    for turn in range(3):
        steps.take(model, torch.optim.Adam(model.parameters(), lr=lr), bad=3 - turn)
        lr /= 2
    yield model


def deep_copies(steps):
    model = net()
    opt = sgd(model)
    steps.take(model, opt)
    for bad in (1, 0):
        model, opt = copy.deepcopy((model, opt))
        steps.take(model, opt, bad)
    yield model


def out_of_a_file(steps):
    model = net()
    opt = sgd(model)
    steps.take(model, opt, bad=2)
    file = io.BytesIO()
    torch.save((model, opt), file)
    file.seek(0)
    model, opt = torch.load(file, weights_only=False)
    steps.take(model, opt, bad=0)
    yield model


def loaded_state(steps):
    model = net()
    opt, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu", init_scale=4.0)
    steps.take(model, opt, scaler=scaler)
    states = copy.deepcopy([one.state_dict() for one in (model, opt, scaler)])
    model = net()
    model.load_state_dict(states[0])
    opt, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu", init_scale=4.0)
    opt.load_state_dict(states[1])
    scaler.load_state_dict(states[2])
    steps.take(model, opt, bad=0, scaler=scaler)
    yield model


def loaded_between_steps(steps):
    model = net()
    opt = sgd(model)
    steps.take(model, opt)
    state = copy.deepcopy(model.state_dict())
    steps.take(model, opt)
    model.load_state_dict(state)
    steps.take(model, opt, bad=0)
    yield model
    model = net()
    opt = sgd(model)
    model.load_state_dict(state)
    steps.take(model, opt, bad=0)
    yield model


def averaged_model_swapped_in(steps):
    model = net()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    steps.take(model, sgd(model), bad=2)
    averaged.update_parameters(model)
    model = copy.deepcopy(averaged.module)
    steps.take(model, sgd(model), bad=0)
    yield model


def groups_added(steps):
    model = net()
    opt = torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9)
    steps.take(model, opt, bad=1)
    opt.add_param_group({"params": [*model[0].parameters(), *model[1].parameters()], "lr": 0.01})
    steps.take(model, opt, bad=0)
    opt = torch.optim.SGD([{"params": g["params"], "lr": g["lr"]} for g in opt.param_groups], momentum=0.9)
    steps.take(model, opt, bad=0)
    yield model


PROGRAMS = (
    folds,
    sweep,
    restart_with_lower_rate,
    deep_copies,
    out_of_a_file,
    loaded_state,
    loaded_between_steps,
    averaged_model_swapped_in,
    groups_added,
)


def trained(program, steps):
    torch.manual_seed(0)
    return [{name: v.clone() for name, v in model.state_dict().items()} for model in program(steps)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_bad_steps_of_replaced_optimizers_leave_nothing(program):
    reference = trained(program, Steps(leaves_out=True))
    steps = Steps(leaves_out=False)
    with watching() as watch:
        got = trained(program, steps)
        assert len(watch.alarms) == steps.bad and all(a["weights"] == "clean" for a in watch.alarms)
    for one, other in zip(got, reference, strict=True):
        assert [name for name in other if not torch.equal(one[name], other[name])] == []
