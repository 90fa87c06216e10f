"""Which names a program may read before it binds them again, read from its bytecode: any version of Python."""

import sys

import pytest

from finitude.effects.name_liveness import will_read

pytestmark = pytest.mark.fast
A_GLOBAL = ANOTHER = None


def reads_a_global():
    return A_GLOBAL


def here(*names):
    frame = sys._getframe(1)
    return will_read(frame, [(name, frame.f_code) for name in names])


def test_loop_names_read_before_binding_are_live():
    found = []
    for i in range(2):
        bound = unused = kept = i
        found.append(here("bound", "unused", "kept", "i", "again"))
        again = i
        if i > 5:
            print(bound, again)
        for _ in range(1):
            again = unused = i
    assert found == [["bound", "i", "kept"]] * 2 and kept == 1


def test_branch_reads_are_live_and_unreachable_reads_not():
    first, second = 1, 2

    def inner(gone):
        seldom = bound_anew = gone
        found = here("gone", "seldom", "bound_anew")
        if found == 5:
            return seldom
        bound_anew = 3
        return found, bound_anew

    assert inner(first) == (["seldom"], 3) and second == 2


def test_variables_of_functions_inside_and_of_modules():
    captured = free = 1
    assert here("captured", "free", "A_GLOBAL", "ANOTHER") == ["captured"]
    free = captured
    assert free == (lambda: captured)()


def test_a_name_of_another_function_is_another_name():
    def inner():
        gone = captured = shared = 1
        frame = sys._getframe()
        found = will_read(frame, [(name, frame.f_code) for name in ("gone", "captured", "shared")])
        return found, lambda: (captured, shared, gone) if found is None else captured

    def around():
        gone = 2
        found, _ = inner()
        return found, gone

    assert around()[0] == ["captured", "gone", "shared"], "a function inside reads them"

    def plain():
        gone = 1
        frame = sys._getframe()
        return will_read(frame, [("gone", frame.f_code)]), [gone for _ in ()][:0] or None

    def outside():
        gone = 2
        found, _ = plain_without()
        return found, gone

    def plain_without():
        frame = sys._getframe()
        gone = frame
        return will_read(frame, [("gone", frame.f_code)]), None

    assert outside()[0] == [] and plain()[1] is None


def test_a_module_knows_what_its_functions_read():
    names = {"will_read": will_read, "sys": sys}
    exec(
        compile(
            "wanted_later = bound_anew = 1\ndef reads():\n    return wanted_later\n"
            "found = will_read(sys._getframe(), [('wanted_later', None), ('bound_anew', None)])\nbound_anew = 2\n",
            "program.py",
            "exec",
        ),
        names,
    )
    assert names["found"] == ["wanted_later"] and reads_a_global() is None
