"""Looking at the program's objects leaves them as they are: CPython 3.11 and 3.12 make the dict of an object's
attributes for who asks for `__dict__`, and every later access goes through it, which is slower."""

import pytest

import helpers
from helpers import run

pytestmark = pytest.mark.fast

SCRIPT = """
import gc, random, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self):
        self.rows, self.labels = torch.randn(48, 4), torch.zeros(48, 1)
    def __len__(self):
        return 48
    def __getitem__(self, i):
        return self.rows[i], self.labels[i]

class Config:
    def __init__(self, inner=None):
        self.lr, self.inner = 0.1, inner

def has_dict(it, attribute):
    return any(type(value) is dict and attribute in value for value in gc.get_referents(it))

def main():
    torch.manual_seed(0)
    model, config, rows = nn.Linear(4, 1), Config(Config()), Rows()
    opt = torch.optim.Adam(model.parameters(), lr=config.lr)
    batches = iter(DataLoader(rows, batch_size=8))
    for x, y in batches:
        opt.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        opt.step()
    print([has_dict(*pair) for pair in ((opt, "param_groups"), (config, "lr"), (config.inner, "lr"), (rows, "rows"),
                                        (batches, "_num_yielded"), (random._inst, "gauss_next"))])
main()
"""


def test_objects_have_dicts_only_where_unwatched_ones_do(tmp_path):
    got = run(tmp_path, SCRIPT)
    plain = helpers.plain(tmp_path, "train.py").out
    assert got.code == 0 and not got.alarms and got.out == plain, got.text()
