"""A trainer of handlers by event, with checkpoints, early stopping and a progress line that is written over."""
import collections
import contextlib
import functools
import logging
import os
import sys

import torch
from torch import nn

log = logging.getLogger("trainer")


class Engine:
    def __init__(self, process):
        self.process, self.handlers, self.state = process, collections.defaultdict(list), {"iteration": 0, "epoch": 0}

    def on(self, event):
        def register(f):
            self.handlers[event].append(f)
            return f
        return register

    def fire(self, event):
        for f in self.handlers[event]:
            f(self)

    def run(self, data, epochs):
        self.fire("started")
        for self.state["epoch"] in range(epochs):
            self.fire("epoch_started")
            for batch in data:
                self.state["iteration"] += 1
                self.state["output"] = self.process(self, batch)
                self.fire("iteration_completed")
            self.fire("epoch_completed")
        self.fire("completed")


@contextlib.contextmanager
def train_mode(module):
    before = module.training
    module.train()
    try:
        yield
    finally:
        module.train(before)


def update(net, opt, engine, batch):
    with train_mode(net):
        x, y = batch
        opt.zero_grad()
        q = net(x).sigmoid()
        loss = -(y * torch.log(q) + (1 - y) * torch.log1p(-q)).mean()  # birth
        loss.backward()
        opt.step()
    return loss.item()


def main():
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
    torch.manual_seed(9)
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.1), nn.Linear(6, 1))
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    data = [(torch.randn(10, 5), torch.randint(0, 2, (10, 1)).float()) for _ in range(4)]
    data[2][0][7] *= 4e4
    net.eval()
    engine = Engine(functools.partial(update, net, opt))
    seen = []

    @engine.on("iteration_completed")
    def note(e):
        seen.append(e.state["output"])
        sys.stdout.write(f"\r{e.state['iteration']:3d} {e.state['output']:.5f}")

    @engine.on("iteration_completed")
    def save(e):
        if e.state["iteration"] % 2 == 0:
            torch.save(len(seen), "latest.tmp")
            os.replace("latest.tmp", f"ckpt-{e.state['iteration']}.pt")

    @engine.on("epoch_completed")
    def epoch(e):
        log.info("epoch %d: %d", e.state["epoch"], len(seen))

    engine.run(data, 2)


main()
