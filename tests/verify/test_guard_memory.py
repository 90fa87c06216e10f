"""--guard-memory: a second process with guard zones around tensors' memory names who wrote out of bounds."""

from helpers import run
from memory_programs import BEHIND, TRAIN

FOUND = (
    "256 bytes were written from byte 64 behind the end of the result of aten::ones at train.py:11 (130,816 bytes), "
    "after aten::ones at train.py:11 and before aten::add at train.py:19, by code that is no operator"
)


def test_writer_out_of_bounds_is_named(tmp_path):
    got = run(tmp_path, TRAIN.replace("WRITE", BEHIND), "--guard-memory")
    alarm = got.the_alarm()
    assert alarm["step"] == 3 and alarm["cause"]["class"] == "memory-corruption", got.text()
    assert alarm["cause"]["text"].startswith(FOUND), alarm["cause"]["text"]
    assert alarm["rerun_by"] == "restart" and "with guard zones around the memory" in alarm["rerun_text"], alarm


def test_overflow_is_still_an_overflow(tmp_path):
    got = run(tmp_path, TRAIN.replace("WRITE", "norms[-1] = norms[-1] * 1e30"), "--guard-memory")
    alarm = got.the_alarm()
    assert alarm["cause"]["class"] == "overflow" and alarm["rerun"] == "persistent", got.text()
