"""A home-grown Trainer with callbacks, a CSV file and a global step."""
import csv
import logging
import sys
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
log = logging.getLogger("trainer")


@dataclass
class Config:
    epochs: int = 2
    batch: int = 5
    lr: float = 3e-3
    log_every: int = 1
    hidden: list = field(default_factory=lambda: [16, 8])


class Counts(Dataset):
    def __init__(self, n=40):
        g = torch.Generator().manual_seed(8)
        self.x = torch.randn(n, 6, generator=g)
        self.rate = torch.rand(n, generator=g) * 3
        self.x[22] *= 4000

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "rate": self.rate[i]}


class CsvLogger:
    def __init__(self, path):
        self.file = open(path, "w", newline="")
        self.writer = csv.writer(self.file)
        self.writer.writerow(["step", "loss"])

    def on_step(self, trainer, loss):
        self.writer.writerow([trainer.global_step, f"{loss:.6f}"])

    def on_end(self, trainer):
        self.file.close()


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(1)
        layers, width = [], 6
        for h in cfg.hidden:
            layers += [nn.Linear(width, h), nn.BatchNorm1d(h), nn.Tanh()]
            width = h
        self.skip = nn.Linear(6, 1)
        self.model = nn.ModuleDict({"body": nn.Sequential(*layers, nn.Linear(width, 1)), "skip": self.skip})
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.global_step, self.best = 0, None
        self.callbacks = [CsvLogger("loss.csv")]

    def poisson_nll(self, log_rate, rate):
        expected = log_rate.exp()  # birth
        return (expected - rate * log_rate).mean()

    def training_step(self, batch):
        log_rate = (self.model["body"](batch["x"]) + self.model["skip"](batch["x"])).squeeze(1)
        return self.poisson_nll(log_rate, batch["rate"])

    def fit(self, loader):
        for epoch in range(self.cfg.epochs):
            for batch in loader:
                self.global_step += 1
                loss = self.training_step(batch)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                for callback in self.callbacks:
                    callback.on_step(self, loss.item())
                if self.global_step % self.cfg.log_every == 0:
                    log.info("step %d loss %.6f", self.global_step, loss)
            log.info("epoch %d done after %d steps", epoch, self.global_step)
        for callback in self.callbacks:
            callback.on_end(self)


if __name__ == "__main__":
    config = Config()
    Trainer(config).fit(DataLoader(Counts(), batch_size=config.batch))
