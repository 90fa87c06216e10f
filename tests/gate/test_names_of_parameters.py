"""What a parameter is called that is in no module."""

import pytest
import torch

from finitude.program import optimizer_members


def closure():
    w, b = torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)
    return torch.optim.SGD([w, b], lr=0.1), lambda x: x @ w + b


class Trainer:
    def __init__(self):
        self.scale = torch.ones(1, requires_grad=True)
        self.layers = [{"w": torch.ones(2, requires_grad=True)}]
        self.opt = torch.optim.SGD([self.scale, self.layers[0]["w"]], lr=0.1)


def attributes():
    trainer = Trainer()
    return trainer.opt, trainer


def nothing():
    return torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1), None


@pytest.mark.parametrize(
    "made, names",
    [
        (closure, ["w", "b"]),
        (attributes, ["Trainer.scale", "Trainer.layers[0]['w']"]),
        (nothing, ["parameter 0"]),
    ],
)
def test_held_by_what_a_function_left(made, names):
    held = made()
    assert optimizer_members.names(held[0]) == names


def test_its_groups_name_no_parameter():
    opt = torch.optim.SGD([{"params": [torch.ones(1, requires_grad=True)]} for _ in range(2)], lr=0.1)
    assert optimizer_members.names(opt) == ["parameter 0", "parameter 1"]
