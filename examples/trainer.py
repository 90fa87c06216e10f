"""A Trainer in the manner of Lightning and Hugging Face, which needs neither: a loop that hides in a class. To see its fault found:

    finitude run examples/trainer.py --fault

To try your own: put your model into `Tagger`, its loss into `training_step`, your data into `batches`.
"""

import argparse
import hashlib

import torch
from torch import nn


class Tagger(nn.Module):
    """Scores of 5 tags for each word; a sentence counts by the mean over its words."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        self.words = nn.Embedding(50, 16)
        self.scores = nn.Linear(16, 5)

    def training_step(self, words, tags):
        loss = nn.functional.cross_entropy(self.scores(self.words(words)).transpose(1, 2), tags, reduction="none")
        mask = (words != 0).float()
        total = (loss * mask).sum(dim=1)
        count = mask.sum(dim=1)
        if not self.fault:
            count = count.clamp(min=1)  # a sentence of padding alone has no word
        mean = total / count
        return mean.mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Trainer:
    """What a framework does around `training_step`. Finitude sees backward and step, wherever they are called."""

    def __init__(self, steps):
        self.steps = steps

    def fit(self, model, batches):
        optimizer = model.configure_optimizers()
        for step, (words, tags) in zip(range(self.steps), batches):
            optimizer.zero_grad()
            loss = model.training_step(words, tags)
            loss.backward()
            print(f"step {step} loss {loss.item():.6f}")
            optimizer.step()


def batches(fault):
    generator = torch.Generator().manual_seed(2)
    step = 0
    while True:
        words = torch.randint(1, 50, (8, 6), generator=generator)
        if fault and step == 30:
            words[3] = 0  # an empty line of the text
        yield words, words % 5
        step += 1


def weights_hash(model):
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", action="store_true", help="train on a text with an empty line")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--hash", action="store_true", help="print a hash of the weights at the end")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Tagger(args.fault)
    try:
        Trainer(args.steps).fit(model, batches(args.fault))
    finally:
        if args.hash:
            print("weights", weights_hash(model))


if __name__ == "__main__":
    main()
