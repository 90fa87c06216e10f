"""--capsule-of-step: a healthy step leaves a capsule, and the training is what it is without."""

import re

import pytest

import helpers

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(1)
data = torch.utils.data.DataLoader(torch.rand(24, 6), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for i, x in enumerate(data):
    optimizer.zero_grad()
    (BAD * model(x)).pow(2).mean().backward()
    optimizer.step()
print(sum(p.double().sum().item() for p in model.parameters()).hex(), torch.rand(1).item())
"""
FINE = SCRIPT.replace("BAD", "1")
BAD = SCRIPT.replace("BAD", "(float('nan') if i == 3 else 1)")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chosen")
    return folder, helpers.run(folder, FINE, "--capsule-of-step", "3")


def capsule_of(kept):
    folder, result = kept
    return folder / re.search(r"capsule of step 3: (\S+)", result.err)[1]


def test_it_is_replayed_bit_by_bit(kept, tmp_path):
    folder, result = kept
    assert result.code == 0 and not result.report["alarms"], result.text()
    assert not [what for what in result.report["watched"]["not_watched"] if "capsule" in what], result.text()
    assert result.out == helpers.run(tmp_path, FINE).out, "the training has the bits that it has without"
    done = helpers.finitude(tmp_path, "replay", str(capsule_of(kept)))
    assert done.code == 0 and done.out.startswith("identical: "), done.text()
    assert re.search(r": 1[0-9] of 1[0-9] results", done.out), "the loss, six gradients, and the buffers of the norm"
    listed = helpers.finitude(tmp_path, "replay", "--step-through", str(capsule_of(kept))).out
    assert "aten::addmm" in listed and "train.py:9" in listed and "addcdiv" not in listed, "one step, and no optimizer"


def test_its_operations_can_be_perturbed(kept, tmp_path):
    done = helpers.finitude(tmp_path, "replay", "--perturb", "noise", str(capsule_of(kept)))
    assert done.code == 0 and "aten::addmm" in done.out, done.text()


def test_its_report_says_that_nothing_was_bad(kept, tmp_path):
    done = helpers.finitude(tmp_path, "report", str(capsule_of(kept)))
    assert done.code == 0 and "born" not in done.out, done.text()


def test_a_bad_step_leaves_its_own(tmp_path):
    result = helpers.run(tmp_path, BAD, "--capsule-of-step", "3")
    assert result.the_alarm()["step"] == 3 and result.the_alarm()["capsule"], result.text()
    assert any("it is a bad step" in what for what in result.report["watched"]["not_watched"])


def test_a_step_that_never_comes_is_said(tmp_path):
    result = helpers.run(tmp_path, FINE, "--capsule-of-step", "99")
    assert any("came to no such step" in what for what in result.report["watched"]["not_watched"]), result.text()


def test_it_is_not_put_into_a_program(kept, tmp_path):
    done = helpers.finitude(tmp_path, "replay", "--with", "python train.py", str(capsule_of(kept)))
    assert done.code == 4 and "is of a healthy step: there is nothing that could be fixed" in done.err, done.text()


def test_options_that_keep_none_are_said(tmp_path):
    result = helpers.run(tmp_path, FINE, "--capsule-of-step", "3", "--level", "tape")
    assert result.code == 0 and "--capsule-of-step keeps none with --redact, --tape-every" in result.err, result.text()
