"""The count of cache lines: what valgrind writes is read as it means it, and the page says whose the lines are."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from bench.lines import (
    __main__ as lines,  # noqa: E402
    callgrind,  # noqa: E402
)

WRITTEN = """# callgrind format
version: 1
positions: line
events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw

ob=(1) /lib/libtorch_cpu.so
fl=(1) ???
fn=(1) at::mul
12 100 20 10 4 3 2 1 1
+3 50
cob=(2) /site/finitude/_native.cpython-311.so
cfn=(2) pre_hook
calls=1 0
* 900 90 90 90 90 90 90 90 90
fn=(3) at::add
0 7

ob=(2)
fn=(2)
5 30 0 0 2 0 0 0 0 1
"""


def test_own_costs_go_to_library_without_double_counting():
    found = callgrind.by_object(WRITTEN)
    assert found == {
        "/lib/libtorch_cpu.so": [157, 20, 10, 4, 3, 2, 1, 1, 0],
        "/site/finitude/_native.cpython-311.so": [30, 0, 0, 2, 0, 0, 0, 0, 1],
    }
    assert callgrind.misses(found["/lib/libtorch_cpu.so"]) == (157, 9, 2)


def test_calls_are_counted_where_the_library_is_ours():
    text = (
        WRITTEN + "cob=(1)\ncfn=(1)\ncalls=7 0\n* 1\ncfn=(9) 0x1f0\ncalls=300 0\n* 4\ncfn=(9)\ncalls=2 0\n* "
        "4\ncfn=(10) 0x20'2\ncalls=5 0\n* 4\n"
    )
    assert callgrind.calls_into(text, "_native.") == {0x1F0: 302, 0x20: 5}


def test_a_file_without_caches_is_refused():
    with pytest.raises(ValueError, match="cache-sim"):
        callgrind.by_object("events: Ir\nob=(1) a\n1 2\n")


def test_page_separates_our_lines_from_the_programs():
    few = callgrind.by_object(WRITTEN)
    many = {name: [10 * count for count in counts] for name, counts in few.items()}
    one = lines.per_step(few, many, (2, 5))
    assert one == {"ours": (90.0, 6.0, 3.0), "program": (471.0, 27.0, 6.0)}
    off = {"ours": (0.0, 0.0, 0.0), "program": (400.0, 20.0, 1.0)}
    text = lines.page({("tiny", "off"): off, ("tiny", "gate"): one, ("tiny", "all"): one})
    assert "| MLP 8-8-2, b8 | all | 561 | 90 | 71 | 33 | 6 | 7 | 9 | 3 | 5 |" in text


def test_simulated_caches_have_power_of_two_sets():
    for word in lines.geometry():
        size, ways, line = map(int, word.split("=")[1].split(","))
        sets = size // (ways * line)
        assert sets * ways * line == size and sets & (sets - 1) == 0, word
