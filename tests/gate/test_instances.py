"""Looking for objects of some classes again and again: what a look at everything finds, at the price of the young
ones."""

import gc
import weakref

import pytest
from torch import nn

from finitude import _native

CLASSES = (nn.Module,)


def both():
    quick, all_of_them = _native.instances_again(CLASSES), _native.instances(CLASSES)
    assert len(quick) == len({id(it) for it in quick})
    return {id(it) for it in quick}, {id(it) for it in all_of_them}


@pytest.mark.fast
@pytest.mark.parametrize("collect", [None, 0, 1, 2])
def test_finds_what_came_and_not_what_went(collect):
    kept = [nn.Linear(2, 2) for _ in range(20)]
    _native.instances_again(CLASSES)
    for turn in range(5):
        came = nn.Sequential(nn.ReLU(), nn.Linear(3, 3))
        if collect is not None:
            gc.collect(collect)
        kept[turn] = came
        del kept[10 + turn]
        if turn == 3:
            gc.disable()
        quick, all_of_them = both()
        assert quick == all_of_them and {id(it) for it in kept} | {id(came[0])} <= quick
    gc.enable()


@pytest.mark.fast
def test_keeps_nothing_alive():
    gone = weakref.ref(nn.Linear(2, 2))
    it = nn.Linear(2, 2)
    there = weakref.ref(it)
    del it
    _native.instances_again(CLASSES)
    assert gone() is None and there() is None


@pytest.mark.fast
def test_other_classes_are_searched_for_from_scratch():
    other = (nn.Linear,)
    layers = [nn.Linear(2, 2), nn.ReLU()]
    assert any(it is layers[1] for it in _native.instances_again(CLASSES))
    found = _native.instances_again(other)
    assert any(it is layers[0] for it in found) and not any(it is layers[1] for it in found)
