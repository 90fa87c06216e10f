"""Lightning on two ranks: lightning_ranks.py BAD, the number of the sample that is all zero, or -1."""

import sys

import lightning.pytorch as pl
import torch
from bits import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))

    def training_step(self, batch, number):
        x, y, samples = batch
        if int(sys.argv[1]) in samples.tolist():
            print(
                f"bad rank {self.global_rank} step {self.trainer.global_step} row "
                f"{samples.tolist().index(int(sys.argv[1]))}",
                flush=True,
            )
        return nn.functional.cross_entropy(self.net(x / x.norm(dim=1, keepdim=True)), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


if __name__ == "__main__":
    pl.seed_everything(3)
    x = torch.randn(64, 6)
    y = (x[:, 0] > 0).long()
    if int(sys.argv[1]) >= 0:
        x[int(sys.argv[1])] = 0
    model = Model()
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(x, y, torch.arange(64)), batch_size=4))
    sys.stdout.write(f"rank {trainer.global_rank} weights {digest(model)}\n")
