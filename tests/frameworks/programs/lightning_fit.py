"""A Lightning training. python lightning_fit.py CONFIGURATION,... [BAD BATCH | - [callback | callback-skip | without]]

without: all batches of the step that the bad one is in are left out, as if the loop had said `continue` there.
"""

import os
import sys
import warnings

import torch
from bits import digest, digest_of_rest, note_digest, without_dropout
from torch import nn
from torch.utils.data import DataLoader, Dataset

try:
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.plugins import MixedPrecision
except ImportError:
    import pytorch_lightning as pl
    from pytorch_lightning.loggers import CSVLogger
    from pytorch_lightning.plugins import MixedPrecision

warnings.filterwarnings("ignore")
SIZE = 4


class Rows(Dataset):
    def __init__(self, bad):
        self.rows = torch.randn(48, 6)
        self.labels = torch.arange(48) % 3
        if bad is not None:
            self.rows[bad * SIZE + 2] = 0

    def leave_out(self, first, batches):
        for name in ("rows", "labels"):
            whole = getattr(self, name)
            setattr(self, name, torch.cat([whole[: first * SIZE], whole[(first + batches) * SIZE :]]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i], self.labels[i]


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 3))

    def forward(self, x):
        return self.net(x / x.norm(dim=1, keepdim=True))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Logging(Model):
    """Writes to its loggers itself, the norms of gradients as well, and checks its rows in a validation loop."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.logger.log_metrics({"mine": float(batch_idx)}, step=1000 + self.global_step)
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.log("norm", sum(p.grad.pow(2).sum() for p in self.parameters()).sqrt())

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("checked", nn.functional.cross_entropy(self(x), y))


class Manual(Model):
    """Two micro-batches to a step, done by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss / 2)
        if batch_idx % 2 == 1:
            self.clip_gradients(optimizer, gradient_clip_val=1.0)
            optimizer.step()
            optimizer.zero_grad()
            self.lr_schedulers().step()


class Searching(Model):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)


class Adversarial(pl.LightningModule):
    """Two optimizers that take turns in one training_step."""

    judge_fails = True

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.judge = nn.Linear(6, 6), nn.Linear(6, 1)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        makes, judges = self.optimizers()
        bad = x.norm(dim=1, keepdim=True)
        first, second = (bad, torch.ones_like(bad)) if self.judge_fails else (torch.ones_like(bad), bad)
        self.toggle_optimizer(judges)
        unit = x / first
        loss = self.judge(self.maker(unit)).mean() - self.judge(unit).mean()
        judges.zero_grad()
        self.manual_backward(loss)
        judges.step()
        self.untoggle_optimizer(judges)
        self.toggle_optimizer(makes)
        loss = -self.judge(self.maker(torch.randn_like(x) + x / second)).mean()
        makes.zero_grad()
        self.manual_backward(loss)
        makes.step()
        self.untoggle_optimizer(makes)

    def configure_optimizers(self):
        return [torch.optim.Adam(self.maker.parameters(), lr=1e-3), torch.optim.SGD(self.judge.parameters(), lr=1e-3)]


class MakerFails(Adversarial):
    judge_fails = False


class Counter(pl.Callback):
    """What a user's callback sees and leaves behind."""

    def __init__(self, name):
        self.name, self.backwards, self.batches = name, 0, 0

    def on_after_backward(self, trainer, pl_module):
        self.backwards += 1
        with open(f"{self.name}/backwards.txt", "a") as f:
            f.write(f"{self.backwards}\n")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.batches += 1
        note_digest(self.name, pl_module)
        with open(f"{self.name}/batches.txt", "a") as f:
            f.write(f"{batch_idx} {trainer.global_step} {self.batches} {self.backwards}\n")


CONFIGURATIONS = {
    "automatic": (Model, {}),
    "accumulating": (Model, {"accumulate_grad_batches": 3}),
    "bf16": (Model, {"precision": "bf16-mixed"}),
    "half": (Model, {"plugins": "scaler"}),
    "clip_norm": (Model, {"gradient_clip_val": 0.5}),
    "clip_value": (
        Model,
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value", "accumulate_grad_batches": 2},
    ),
    "manual": (Manual, {}),
    "adversarial": (Adversarial, {}),
    "adversarial_maker": (MakerFails, {}),
    "lbfgs": (Searching, {}),
    "own_logging": (Logging, {"val_check_interval": 1.0, "gradient_clip_val": 1.0}),
    "callbacks": (
        Model,
        {
            "callbacks": lambda: [
                pl.callbacks.ModelCheckpoint("callbacks/checkpoints", every_n_train_steps=2, save_top_k=-1),
                pl.callbacks.EMAWeightAveraging(decay=0.9),
                pl.callbacks.LearningRateMonitor(),
                pl.callbacks.GradientAccumulationScheduler({0: 1}),
            ]
        },
    ),
}


SIZES = {"accumulating": 3, "clip_value": 2, "manual": 2}  # batches of a step


def train(name, bad, mode):
    pl.seed_everything(3)
    torch.set_num_threads(1)
    kind, options = CONFIGURATIONS[name]
    if options.get("plugins") == "scaler":
        options = {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0))]}
    os.makedirs(name, exist_ok=True)
    model, counter = kind(), Counter(name)
    if SIZES.get(name, 1) > 1:  # a step left out gives back the numbers that its last batch drew, not those of all
        model.apply(without_dropout)
    callbacks = [counter, *options.get("callbacks", list)()]
    options = {key: value for key, value in options.items() if key != "callbacks"}
    if mode.startswith("callback"):
        from finitude.integrations.lightning import Finitude

        callbacks.append(Finitude(report="report.json", on_alarm="skip" if mode.endswith("skip") else "stop"))
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=CSVLogger(name, version=0, flush_logs_every_n_steps=1),
        callbacks=callbacks,
        enable_model_summary=False,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        **options,
    )
    rows = Rows(bad)
    if mode == "without":
        size = SIZES.get(name, 1)
        rows.leave_out(bad // size * size, size)
    validation = DataLoader(Rows(None), SIZE) if "val_check_interval" in options else None
    try:
        trainer.fit(model, DataLoader(rows, SIZE, shuffle=bad is None), validation)
    finally:
        rest = digest_of_rest(model, trainer.optimizers, [c.scheduler for c in trainer.lr_scheduler_configs])
        averaged = [
            digest(c._average_model) for c in callbacks if hasattr(c, "_average_model") and c._average_model is not None
        ]
        print(name, "batches", counter.batches, "backwards", counter.backwards, flush=True)
        print(name, "rest", rest, *averaged, "weights", digest(model), flush=True)


if __name__ == "__main__":
    for configuration in sys.argv[1].split(","):
        train(configuration, int(sys.argv[2]) if sys.argv[2:3] not in ([], ["-"]) else None, "".join(sys.argv[3:]))
