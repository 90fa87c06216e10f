"""What the tests of --tape-every share: a training with one bad sample, and what is said of it."""

EVERY = ("--tape-every", "16")  # the second step, then the 18th

# Eight rows to a batch; what makes a step bad is in one sample.
LOADER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(1)
class Rows(Dataset):
    def __len__(self): return 48
    def __getitem__(self, i):
        x = torch.full((6,), 0.5) + i
        return (x * 0 if i == 33 else x), torch.tensor([float(i % 2)])
model = MODEL
optimizer = OPTIMIZER
loader = DataLoader(Rows(), batch_size=8, num_workers=WORKERS, shuffle=SHUFFLE)
for epoch in range(EPOCHS):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = ((model(torch.log(x)) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        print(epoch, i, float(loss))
"""
MODELS = {
    "plain": "nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))",
    "dropout": "nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 1))",
    "statistics": "nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))",
    "wide": "nn.Sequential(nn.Linear(6, 900), nn.Dropout(0.1), nn.Linear(900, 900), "
    "nn.BatchNorm1d(900), nn.Linear(900, 1))",
}
OPTIMIZERS = {
    "sgd": "torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)",
    "adam": "torch.optim.AdamW(model.parameters(), lr=0.01)",
}


def script(model="plain", optimizer="sgd", workers=0, shuffle=False, epochs=1):
    return (
        LOADER.replace("MODEL", MODELS[model])
        .replace("OPTIMIZER", OPTIMIZERS[optimizer])
        .replace("WORKERS", str(workers))
        .replace("SHUFFLE", str(shuffle))
        .replace("EPOCHS", str(epochs))
    )


def by_template(got, step, recorded=1):
    """The alarm of that step is explained by the one that was recorded."""
    alarm = got.the_alarm()
    assert (alarm["rerun_by"], alarm["rerun"], alarm["rerun_verified"]) == ("tape", "persistent", True), got.text()
    assert f"the operators of step {recorded}, recorded as it ran (--tape-every" in alarm["rerun_text"], alarm[
        "rerun_text"
    ]
    assert alarm["step"] == step
    return alarm


def refused_template(got, why):
    """The template was tried, and the step explained in another way."""
    alarm = got.the_alarm()
    assert alarm["rerun_by"] != "tape" and alarm["births"], got.text()
    assert "tape of step " in alarm["rerun_text"] and why in alarm["rerun_text"], alarm["rerun_text"]
    return alarm


def same_birth(got, gate):
    alarm, was = got.the_alarm(), gate.the_alarm()
    assert alarm["rerun_by"] == "tape" and was["rerun_by"] in ("rewind", "restart"), got.text()
    assert alarm["births"] == was["births"]
    assert (
        alarm["cause"]["class"] == was["cause"]["class"]
        and alarm["sink"] == was["sink"]
        and alarm["loss"] == was["loss"]
    )
    assert alarm.get("gradients") == was.get("gradients") and alarm["path"] == was["path"]
    assert (alarm["fix"] or {}).get("text") == (was["fix"] or {}).get("text")
