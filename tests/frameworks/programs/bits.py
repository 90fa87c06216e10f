"""What the programs here print of the state they end in, so that runs can be compared bit by bit."""

import hashlib

import torch
from torch import nn


def digest(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def digest_of_rest(model, optimizers, schedulers):
    """Of all else that training moves: buffers, optimizer state, where the schedulers are, the generator."""
    tensors = [
        *model.buffers(),
        *(v for o in optimizers for s in o.state.values() for v in s.values()),
        torch.get_rng_state(),
    ]
    found = hashlib.sha256(repr([(s.last_epoch, s.get_last_lr()) for s in schedulers]).encode())
    for value in tensors:
        found.update(value.detach().numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())
    return found.hexdigest()


def note_digest(name, model):
    """After every step: what the weights are when a later one is stopped."""
    with open(f"{name}/digests.txt", "a") as f:
        f.write(digest(model) + "\n")


def without_dropout(module):
    if isinstance(module, nn.Dropout):
        module.p = 0.0
