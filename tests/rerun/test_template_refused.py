"""--tape-every N, where the recorded step does not fit the bad one: it is skipped, and the reason reported."""

import pytest

import helpers
from template_runs import EVERY, by_template, refused_template, same_birth, script


def test_before_anything_is_recorded_it_is_as_without(tmp_path):
    alarm = helpers.run(tmp_path, script().replace("i == 33", "i == 1"), *EVERY).the_alarm()
    assert alarm["step"] == 0 and "tape" not in alarm["rerun_text"] and alarm["births"], alarm["rerun_text"]


def test_batch_of_another_shape_rejects_the_template(tmp_path):
    got = helpers.run(tmp_path, script().replace("return 48", "return 36"), *EVERY)
    assert refused_template(got, "tape of step 1: the batch has another shape")["step"] == 4


def test_different_batch_count_rejects_the_template(tmp_path):
    text = script().replace(
        "for i, (x, y) in enumerate(loader):",
        """it = iter(loader)
    for i in range(4):
        x, y = next(it)
        if i == 3: x, y = next(it)""",
    )
    refused_template(helpers.run(tmp_path, text, *EVERY), "it took 1 batches of its loader, this step 2")


# The loss overflows and the gradients do not; so their bits decide.
SCHEDULE = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
data = torch.rand(48, 6)
data[33] = 1e38
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i, (x,) in enumerate(DataLoader(TensorDataset(data), batch_size=8)):
    optimizer.zero_grad()
    loss = (model(x * 1e-38) * WEIGHT).mean() + (x * 100).REDUCED().detach() * 0.5
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("weight", ["1.5", "(1.5 + i / 10)"])
@pytest.mark.parametrize(
    "reduced", ["sum", "max"]
)  # the kernel of the second reads the largest and calls fill_ with that number
def test_a_number_in_the_program(tmp_path, weight, reduced):
    text = SCHEDULE.replace("WEIGHT", weight).replace("REDUCED", reduced)
    got = helpers.run(tmp_path, text, *EVERY)
    if "i" in weight:
        refused_template(got, "it comes out with other bits")
    else:
        by_template(got, 4)
        same_birth(got, helpers.run(tmp_path, text))


def test_all_nan_step_requires_the_same_operations(tmp_path):
    text = (
        script()
        .replace("x * 0 if", "-x if")
        .replace("torch.log(x)", "(torch.log if i < 4 else torch.sqrt)(x + model[0].bias[:1])")
    )
    alarm = refused_template(helpers.run(tmp_path, text, *EVERY), "this step's loss was computed by other operations")
    assert alarm["births"][0]["op"] == "aten::sqrt", alarm["births"]


def test_batch_written_by_the_step_rejects_the_template(tmp_path):
    refused_template(
        helpers.run(tmp_path, script().replace("optimizer.zero_grad()", "x.mul_(2); optimizer.zero_grad()"), *EVERY),
        "this step wrote into its batch",
    )


# What comes of no loader is as it was recorded.
LISTED = (
    helpers.TRAINING
    + """
for i in range(6):
    opt.zero_grad()
    x = batches[i]
    if i == 4: x = x * NAN
    loss = loss_of(x)
    loss.backward()
    opt.step()
"""
)


def test_data_without_a_loader_reject_the_template(tmp_path):
    alarm = refused_template(helpers.run(tmp_path, LISTED, *EVERY), "it comes out with other bits")
    assert alarm["births"][0]["op"] == "aten::mul", alarm


def test_prefetched_batches_reject_the_template(tmp_path):
    text = script().replace(
        "for i, (x, y) in enumerate(loader):",
        """it = iter(loader)
    ahead = next(it)
    for i in range(5):
        (x, y), ahead = ahead, next(it)""",
    )
    assert (
        refused_template(helpers.run(tmp_path, text, *EVERY), "it comes out with other bits")["births"][0]["op"]
        == "aten::log"
    )


def test_step_reading_too_much_is_no_template(tmp_path):
    text = script("wide").replace("loss.backward()", "loss.backward(); big = torch.rand(1 << 19); (big * 2).sum()")
    text = text.replace(
        "        optimizer.zero_grad()\n",
        "        optimizer.zero_grad()\n        import numpy\n        for _ in range(3): "
        "torch.from_numpy(numpy.ones(1 << 18, dtype='f4')).sum()\n",
    )
    refused_template(helpers.run(tmp_path, text, *EVERY, "--capsule-max", "1"), "the step reads more than 1 MB")


def test_programs_own_operator_uses_the_next_way(tmp_path):
    text = (
        script()
        .replace(
            "model =",
            """library = torch.library.Library("mine", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CPU")
model =""",
        )
        .replace("torch.log(x)", "torch.log(torch.ops.mine.twice(x))")
    )
    alarm = helpers.run(tmp_path, text, *EVERY).the_alarm()
    assert alarm["births"][0]["op"] == "aten::log"
    assert alarm["rerun_by"] == "tape" or "operators of other libraries: mine::twice" in alarm["rerun_text"], alarm[
        "rerun_text"
    ]
