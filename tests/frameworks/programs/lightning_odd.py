"""Lightning trainings that make it harder to run a step again. python lightning_odd.py CASE BATCH"""

import logging
import sys
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanMetric

warnings.filterwarnings("ignore")
SIZE = 4
case, BAD = sys.argv[1], int(sys.argv[2])


class Rows(Dataset):
    def __init__(self):
        self.rows = torch.randn(48, 6)
        if case != "nan_in_data":
            self.rows[BAD * SIZE + 2] = 0
        else:
            self.rows[BAD * SIZE + 2, 3] = float("nan")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i], i % 3


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 3))
        self.mean = MeanMetric()
        self.seen = []
        self.automatic_optimization = case != "manual_closure"

    def unit(self, x):
        if case == "in_backward":
            return self.net(x) + (x * self.net[0].weight[:1]).pow(2).sum(dim=1, keepdim=True).sqrt()
        if case == "nan_in_data":
            return self.net(x)
        return self.net(x / x.norm(dim=1, keepdim=True))

    def training_step(self, batch, batch_idx):
        x, y = batch
        logging.getLogger("mine").info("batch %d", batch_idx)
        self.logger.experiment.add_scalar("mine", batch_idx, batch_idx)
        self.seen.append(batch_idx)
        if case == "changed_in_place":
            x.mul_(2.0)
        loss = nn.functional.cross_entropy(self.unit(x), y)
        self.mean.update(torch.nan_to_num(loss.detach()))
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        if case == "raises" and not torch.isfinite(loss):
            raise ValueError("the loss is not finite")
        if case == "returns_none" and not torch.isfinite(loss):
            return None
        if case == "manual_closure":

            def closure():
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.unit(x), y)
                self.manual_backward(loss)
                return loss

            optimizer = self.optimizers()
            optimizer.step(closure)
            return None
        return loss

    def on_train_end(self):
        print("seen", len(self.seen), "mean", self.mean._update_count, flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    logging.getLogger("mine").setLevel(logging.INFO)
    logging.getLogger("mine").addHandler(logging.FileHandler("mine.log"))
    pl.seed_everything(3)
    torch.set_num_threads(1)
    workers = 2 if case == "workers" else 0
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=TensorBoardLogger(".", "tb", version=0),
        log_every_n_steps=1,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        profiler="simple" if case == "profiler" else None,
        gradient_clip_val=None if case == "manual_closure" else 1.0,
        callbacks=[pl.callbacks.TQDMProgressBar()],
    )
    trainer.fit(Model(), DataLoader(Rows(), SIZE, num_workers=workers))
