"""What a capsule says of the start of its step is checked before it is used: whatever it says, nothing but Misfit comes
of it."""

import copy
import json
import random

import torch

from finitude.capsules import placing
from finitude.capsules.start_check import is_sound

START = {
    "tensors": {
        "parameter.w": {"dtype": "float32", "shape": [2, 3]},
        "batch.0.0": {"dtype": "int64", "shape": [2]},
        "state.w.exp_avg": {"dtype": "float32", "shape": [2, 3]},
        "generators.step": {"dtype": "uint8", "shape": [9]},
    },
    "optimizers": [
        {
            "class": "Adam",
            "ordinal": 0,
            "failed": True,
            "parameters": {"w": "parameter.w"},
            "buffers": {},
            "state": {"w": {"exp_avg": "state.w.exp_avg"}},
            "scalars": {"w": {"step": 3}},
            "groups": [{"lr": 0.1, "initial_lr": 0.2}],
        }
    ],
    "batches": [
        {
            "loader": 0,
            "ahead": 0,
            "samples": [4, 5],
            "generators": "generators.step",
            "batch": {
                "list": [
                    {"tensor": "batch.0.0"},
                    {"dict": [["name", {"value": "a"}], ["o", {"object": [["x", {"value": 1}]], "class": "C"}]]},
                ]
            },
        }
    ],
    "generators": "generators.step",
    "schedulers": [],
    "scaler": {"scale": 2.0, "growth_tracker": 1},
}
DATA = {"parameter.w": bytes(24), "state.w.exp_avg": bytes(24), "batch.0.0": bytes(16), "generators.step": bytes(9)}
VALUES = [
    None,
    True,
    -1,
    0,
    3,
    1 << 60,
    1.5,
    float("nan"),
    "",
    "parameter.w",
    "batch.0.0",
    "float64",
    [],
    {},
    [1],
    {"tensor": "x"},
    {"value": []},
    {"list": [{"value": 1}]},
    "x" * 5000,
]


class Thing:
    def __init__(self):
        self.x = 1


def mutate(document, draw):
    """One place of it is replaced, removed or doubled."""
    node = document
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and draw.random() < 0.8:
            node = node[key]
            continue
        what = draw.random()
        if what < 0.15:
            del node[key]
        elif what < 0.3 and isinstance(node, dict):
            node[draw.choice(("tensor", "list", "value", "x"))] = copy.deepcopy(node[key])
        else:
            node[key] = copy.deepcopy(draw.choice(VALUES))
        return


def use(start):
    """All that is done with one that was found sound, apart from the program's loop."""
    held = placing.Held(start, DATA)
    w = torch.zeros(2, 3, requires_grad=True)
    optimizer = torch.optim.Adam([w])
    template = [torch.zeros(2, dtype=torch.int64), {"name": "b", "o": Thing()}]
    for described in start["optimizers"]:
        if not placing.misfits(held, described["parameters"], {"w": w}):
            placing.put_tensors(held, described["parameters"], {"w": w})
            placing.put_state(held, described, optimizer, {"w": w})
        placing.rate(described, optimizer)
    for batch in start["batches"]:
        placing.fill(held, batch["batch"], template)


def test_a_sound_one_is_used():
    assert is_sound(START)
    use(START)


def test_whatever_it_says_it_is_refused_or_used():
    draw, sound, refused, misfits = random.Random(3), 0, 0, 0
    for _ in range(20_000):
        start = copy.deepcopy(START)
        for _ in range(draw.choice((1, 1, 2, 4))):
            mutate(start, draw)
        if not is_sound(start):
            refused += 1
            continue
        try:
            use(start)
            sound += 1
        except placing.Misfit:
            misfits += 1
    assert min(sound, refused, misfits) > 200, (sound, refused, misfits)
    assert not is_sound(json.loads("[" * 60 + "]" * 60))
