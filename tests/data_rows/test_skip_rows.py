"""finitude.skip_rows: samplers that leave rows out."""

import json

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import finitude
from finitude.base import skip_list
from finitude.program import skip_rows as module

ROWS = TensorDataset(torch.arange(20))
SKIPPED = [3, 7, 19]


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


def test_order_of_the_sampler_is_kept():
    plain = [one for one in RandomSampler(ROWS, generator=seeded()) if one not in SKIPPED]
    sampler = finitude.skip_rows(RandomSampler(ROWS, generator=seeded()), SKIPPED)
    assert list(sampler) == plain and len(sampler) == 17


@pytest.mark.parametrize(
    "make, left",
    [
        (lambda: SequentialSampler(ROWS), 17),
        (lambda: SubsetRandomSampler([1, 3, 5, 7]), 2),
        (lambda: RandomSampler(ROWS, replacement=True, num_samples=50), 50),
        (lambda: RandomSampler(ROWS, num_samples=5), 5),
        (lambda: WeightedRandomSampler([1.0] * 20, 30), 30),
    ],
)
def test_length_is_what_it_gives(make, left):
    sampler = finitude.skip_rows(make(), SKIPPED)
    given = list(sampler)
    assert len(sampler) == left == len(given) and not set(given) & set(SKIPPED)


@pytest.mark.parametrize("drop_last, sizes", [(False, [4, 4, 4, 4, 1]), (True, [4] * 4)])
def test_batches_keep_their_size(drop_last, sizes):
    batches = BatchSampler(SequentialSampler(ROWS), 4, drop_last)
    sampler = finitude.skip_rows(batches, SKIPPED)
    assert [len(batch) for batch in sampler] == sizes and len(sampler) == len(sizes)
    assert list(sampler)[0] == [0, 1, 2, 4] and list(batches)[0] == [0, 1, 2, 3]


class Pairs:
    """A sampler of batches of the program's own."""

    batch_size, drop_last = 2, False

    def __init__(self):
        self.data_source = ROWS

    def __iter__(self):
        return iter([[i, i + 1] for i in range(0, 20, 2)])

    def __len__(self):
        return 10


def test_batches_of_own_samplers_are_filled_up():
    sampler = finitude.skip_rows(Pairs(), SKIPPED)
    assert list(sampler)[:4] == [[0, 1], [2, 4], [5, 6], [8, 9]] and len(sampler) == len(list(sampler)) == 9
    assert list(finitude.skip_rows(Pairs(), [])) == list(Pairs())


@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_get_as_many_rows_each(drop_last):
    samplers = [DistributedSampler(ROWS, 4, rank, seed=5, drop_last=drop_last) for rank in range(4)]
    skipping = [finitude.skip_rows(one, SKIPPED) for one in samplers]
    for one in samplers:
        one.set_epoch(2)  # the program's own reference
    given = [list(one) for one in skipping]
    assert {len(one) for one in given} == {len(one) for one in skipping} == {4 if drop_last else 5}
    rows = set().union(*given)
    assert not rows & set(SKIPPED) and len(rows) == (16 if drop_last else 17)
    skipping[0].set_epoch(3)
    assert samplers[0].epoch == 3 and list(skipping[0]) != given[0]


def test_a_loader_obeys_and_is_returned():
    loader = DataLoader(ROWS, batch_size=4)
    assert finitude.skip_rows(loader, SKIPPED) is loader
    batches = [batch[0].tolist() for batch in loader]
    assert batches[0] == [0, 1, 2, 4] and len(loader) == len(batches) == 5
    single = finitude.skip_rows(DataLoader(ROWS, batch_size=None), SKIPPED)
    assert len(list(single)) == len(single) == 17


def test_a_file_is_of_its_data_set(tmp_path):
    path = str(tmp_path / "skip.jsonl")
    of = skip_list.Skipped
    skip_list.write(path, [of("TensorDataset", 20, [1]), of("TensorDataset", 21, [2]), of("Other", 20, [3])])
    assert set(range(20)) - set(finitude.skip_rows(SequentialSampler(ROWS), path)) == {1}
    with pytest.raises(ValueError, match="does not say of which data set"):
        finitude.skip_rows(SubsetRandomSampler([1, 2]), path)


def test_unknown_rows_are_refused():
    with pytest.raises(ValueError, match="20 rows, and no row 20, 99"):
        finitude.skip_rows(SequentialSampler(ROWS), [99, 20])


class OwnDistributed(DistributedSampler):
    pass


def test_own_distributed_samplers_are_refused():
    with pytest.raises(module.NotSkipped, match="different numbers of rows"):
        finitude.skip_rows(OwnDistributed(ROWS, 2, 0), SKIPPED)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        json.dumps({"ids": [1]}),
        json.dumps({"dataset": "A", "ids": [-1]}),
        json.dumps({"dataset": "A", "ids": [True]}),
        json.dumps({"dataset": "A", "length": "x", "ids": []}),
        json.dumps({"dataset": "a b", "ids": []}),
    ],
)
def test_damaged_lists_are_refused(tmp_path, line):
    path = tmp_path / "skip.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(skip_list.Unreadable):
        skip_list.read(path)


def test_a_list_reads_as_it_was_written(tmp_path):
    path = str(tmp_path / "skip.jsonl")
    skip_list.write(path, [skip_list.Skipped("A", None, [5, 1, 5]), skip_list.Skipped("B", 3, [2])])
    assert [(one.dataset, one.length, one.ids) for one in skip_list.read(path)] == [("A", None, [1, 5]), ("B", 3, [2])]


@pytest.fixture
def made(capsys):
    """Loaders made under --skip-rows, and what is said of them."""

    def make(lists, *args, **kwargs):
        loader = DataLoader(*args, **kwargs)
        skips = module.SkipsRows("skip.jsonl", lists, quiet=False)
        skips.begin()
        skips.made(loader)
        skips.made(loader)
        return loader, capsys.readouterr().err

    return make


def test_option_reaches_loaders_of_that_data_set(made):
    loader, said = made([skip_list.Skipped("TensorDataset", 20, SKIPPED)], ROWS, batch_size=4, shuffle=True)
    rows = [row for batch in loader for row in batch[0].tolist()]
    assert said == "finitude: --skip-rows skip.jsonl: 3 rows of TensorDataset are skipped\n"
    assert sorted(rows) == [row for row in range(20) if row not in SKIPPED]
    assert not isinstance(loader.batch_sampler.sampler.sampler, module.SkippingSampler)  # once


def test_option_leaves_other_data_sets_alone(made):
    loader, said = made([skip_list.Skipped("TensorDataset", 30, SKIPPED)], ROWS, batch_size=4)
    assert "error: --skip-rows: a data set TensorDataset has 20 rows, and the list is of one with 30" in said
    assert len(list(loader.sampler)) == 20
    loader, said = made([skip_list.Skipped("Texts", 20, SKIPPED)], ROWS, batch_size=4)
    assert "error" not in said and len(list(loader.sampler)) == 20


def test_option_says_unknown_rows_once(made):
    loader, said = made([skip_list.Skipped("TensorDataset", None, [2, 20])], ROWS, batch_size=4)
    assert said.count("error: --skip-rows: TensorDataset: it has 20 rows, and no row 20") == 1
    assert 2 not in list(loader.sampler)
