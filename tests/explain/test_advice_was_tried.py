"""What a report calls verified is what was tried, and what it calls finite is what the step has."""

import helpers

MADE_BAD = """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, i):
        x = torch.full((3,), i / 16)
        if i == 13:
            x[1] = float("nan")
        return x
layer = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(Data(), batch_size=4):
    optimizer.zero_grad()
    layer(x).pow(2).mean().backward()
    optimizer.step()
"""

RAISES_BEFORE_BACKWARD = """
import torch
torch.manual_seed(0)
layer = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
for step in range(4):
    x = torch.rand(4, 3)
    low = torch.tensor([1.0, 1.0, 0.0 if step == 2 else 1.0, 1.0])
    optimizer.zero_grad()
    loss = (layer(x).squeeze(1) * low.log().exp() + low.log()).mean()
    if not torch.isfinite(loss):
        raise ValueError("bad loss")
    loss.backward()
    optimizer.step()
"""


def test_advice_for_the_data_set_was_not_tried(tmp_path):
    fix = helpers.run(tmp_path, MADE_BAD, "--on-alarm", "stop").the_alarm()["fix"]
    assert fix["verified"] and fix["line"] == 8, fix
    assert "(not tried here); tried: nan" in fix["text"].lower() and fix["tried"] in fix["text"], fix


def test_loss_without_gradients_is_all_that_is_finite(tmp_path):
    alarm = helpers.run(tmp_path, RAISES_BEFORE_BACKWARD, "--on-alarm", "stop").the_alarm()
    outcomes = [e["outcome"] for e in alarm["cause"]["experiments"]] + [alarm["fix"]["outcome"]]
    assert alarm["fix"]["verified"] and any(o.startswith("loss finite") for o in outcomes), alarm
    assert not any("gradients" in o for o in outcomes), outcomes
