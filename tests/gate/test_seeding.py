"""finitude.seed_all and `finitude run --seed`: what is seeded, and when."""

import random

import numpy
import pytest
import torch

import finitude
from finitude.base import config
from helpers import run

DRAWS = """
import random, subprocess, sys
import numpy, torch
print(random.random(), numpy.random.rand(), torch.rand(1).item(), flush=True)
loader = torch.utils.data.DataLoader(range(8), shuffle=True, batch_size=8)
print(next(iter(loader)).tolist(), flush=True)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"])
"""


def drawn():
    return random.random(), numpy.random.rand(), torch.rand(1).item()


@pytest.fixture(autouse=True)
def generators_as_before():
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    numpy.random.set_state(states[1])
    torch.set_rng_state(states[2])


def test_seed_all_seeds_and_names_each_generator():
    done = finitude.seed_all(7)
    first = drawn()
    assert finitude.seed_all(7) == done and drawn() == first
    assert {k: v for k, v in done.items() if k != "torch.cuda"} == {"random": 7, "numpy": 7, "torch": 7}
    finitude.seed_all(8)
    assert all(a != b for a, b in zip(drawn(), first))


def test_seed_beyond_numpys_range_is_taken_modulo():
    assert finitude.seed_all(2**40 + 5)["numpy"] == 5
    assert finitude.seed_all(2**64 - 1)["torch"] == 2**64 - 1
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError):
            finitude.seed_all(wrong)


@pytest.mark.parametrize("wrong", ["x", "-1", str(2**64), "1.5"])
def test_seed_option_takes_whole_numbers_only(wrong):
    with pytest.raises(config.UsageError, match="seed takes a whole number"):
        config.load({"seed": wrong})


def test_run_seeds_the_program_and_its_children(tmp_path):
    one = run(tmp_path, DRAWS, "--seed", "11")
    finitude.seed_all(11)
    assert one.out.splitlines()[0] == " ".join(map(str, drawn())), one.text()
    own, child = one.out.splitlines()[:2], one.out.splitlines()[2:]
    assert own == child, one.text()
