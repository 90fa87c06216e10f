"""What a tape asks for that cannot be is reported: no memory outside of what it declares, no operator that it may not
call."""

import struct

import pytest

import tape_format as t
from finitude import _native

X = t.given(struct.pack("<4f", 1, 2, 3, 4))
MUL = [("aten::mul", "Tensor")]
Y = t.tensor(1, [2, 2])


def play(operators, storages, entries, outcomes=(), namespaces=("aten",), settings=()):
    return _native.tape_play(t.tape(operators, storages, entries, outcomes, settings), list(namespaces), 0)


def why(operators, storages, entries, outcomes=()):
    played = play(operators, storages, entries, outcomes)
    assert not played["identical"] and not played["missing"]
    return played["why_not"]


def square(arg):
    return [t.call(0, [arg, arg], [Y])]


def test_tape_written_from_documentation_is_played():
    played = play(MUL, [X, t.made(16)], square(t.tensor(0, [2, 2])), [Y])
    assert played["why_not"] == "" and played["calls"] == 1
    assert played["outcomes"] == [("value", "x", False)]  # its checksum says 0


@pytest.mark.parametrize(
    ("arg", "said"),
    [
        (t.tensor(0, [2, 3]), "outside its memory"),
        (t.tensor(0, [2, 2], [2, 1], 1), "outside its memory"),
        (t.tensor(0, [2, 2], [1 << 40, 1]), "outside its memory"),
        (t.tensor(0, [1 << 40, 1 << 40], [0, 0]), "impossible size"),
        (t.tensor(0, [1 << 20, 2], [1 << 48, 1 << 48]), "impossible size"),
        (t.tensor(0, [2, 2], dtype=13), "unknown dtype"),
        (t.tensor(0, [2, 2], dtype=200), "unknown dtype"),
        (t.tensor(0, [2, 2], dtype=7), "outside its memory"),
        (t.tensor(1, [2, 2]), "before it is made"),
        (t.string("x"), ""),
        (t.values(t.tensor(0, [2, 2])), "list where none belongs"),
        (t.NONE, ""),
    ],
)
def test_arguments_that_cannot_be(arg, said):
    reason = why(MUL, [X, t.made(16)], square(arg), [Y])
    assert reason.startswith("aten::mul.Tensor: ") and said in reason


def test_calls_that_cannot_be():
    x = t.tensor(0, [2, 2])
    assert "takes 2 arguments" in why(MUL, [X, t.made(16)], [t.call(0, [x], [Y])])
    assert "another number of results" in why(MUL, [X, t.made(16)], [t.call(0, [x, x], [Y, Y])])
    assert "another shape" in why(MUL, [X, t.made(16)], [t.call(0, [x, x], [t.tensor(1, [4])])])
    assert "another dtype" in why(MUL, [X, t.made(16)], [t.call(0, [x, x], [t.tensor(1, [2, 2], dtype=7)])])
    assert "new memory" in why(MUL, [X, t.made(16)], [t.call(0, [x, x], [x])])


def test_only_operators_that_may_be_called():
    for name, overload in [("aten::from_file", ""), ("prim::Print", ""), ("c10d::barrier", ""), ("no_such::thing", "")]:
        played = play([(name, overload)], [], [])
        assert len(played["missing"]) == 1 and "not allowed" in played["missing"][0]
    assert "not registered here" in play([("aten::no_such_thing", "")], [], [])["missing"][0]
    assert "not allowed" in play([("aten::from_file", "")], [], [], namespaces=("aten", "c10d"))["missing"][0]


FULL = [("aten::full", "")]


@pytest.mark.parametrize(
    ("position", "numbers", "what"),
    [(2, [-100, -1, 12, 13, 20, 45, 200, 1000, 1 << 40], "dtype"), (3, [-1, 8, 100, 1 << 40], "layout")],
)
def test_nonexistent_dtype_and_layout_numbers_are_refused(position, numbers, what):
    """Kernels index tables with them."""
    for number in numbers:
        args = [t.values(t.integer(2)), t.number(1.0), *[t.NONE] * 4]
        args[position] = t.integer(number)
        assert f"names a {what} that there is not" in why(FULL, [t.made(8)], [t.call(0, args, [t.tensor(0, [2])])]), (
            number
        )


@pytest.mark.parametrize("number", [-1, 4, 77, 1 << 33])
def test_numbers_of_memory_formats_that_there_are_not(number):
    args = [t.tensor(0, [2, 2]), t.integer(number)]
    assert "names a memory format that there is not" in why(
        [("aten::clone", "")], [X, t.made(16)], [t.call(0, args, [Y])]
    )


def test_every_dtype_in_between_is_an_answer():
    """Each that there is, also where the operator has no kernel for it."""
    for number in range(46):
        args = [t.values(t.integer(2)), t.number(1.0), t.integer(number), *[t.NONE] * 3]
        play(FULL, [t.made(8)], [t.call(0, args, [t.tensor(0, [2])])])


@pytest.mark.parametrize(
    "name",
    [
        ("_print", ""),
        ("from_file", ""),
        ("from_file", "out"),
        ("_cufft_clear_plan_cache", ""),
        ("_assert_scalar", ""),
        ("_cufft_set_plan_cache_max_size", ""),
    ],
)
def test_operators_that_act_outside_are_not_called(name, capfd):
    """They print, read a file, or set something in the process; none computes with tensors alone."""
    played = play([(f"aten::{name[0]}", name[1])], [], [t.call(0, [t.string("hello")], [])])
    assert len(played["missing"]) == 1 and "not allowed" in played["missing"][0]
    assert capfd.readouterr() == ("", "")


def test_memory_that_nobody_has():
    """An allocation that fails is an answer, not the end of the process."""
    empty = [("aten::empty", "memory_format")]
    args = [t.values(t.integer(1 << 46)), *[t.NONE] * 5]
    assert why(empty, [t.made(1 << 48)], [t.call(0, args, [t.tensor(0, [1 << 46])])])


def floats(*numbers):
    return t.given(struct.pack(f"<{len(numbers)}f", *numbers))


def longs(*numbers):
    return t.given(struct.pack(f"<{len(numbers)}q", *numbers))


def pair(number):
    return t.values(t.integer(number), t.integer(number))


FAR = 1 << 40
ONE, TWO_LONGS = t.tensor(1, [1], dtype=4), t.tensor(1, [2], dtype=4)
TRUSTING = {  # operators whose kernels of torch look at no number of an argument: what they are given
    "max_pool2d_with_indices_backward": (
        [floats(1), longs(FAR), floats(1, 2, 3, 4)],
        [
            t.tensor(0, [1, 1, 1]),
            t.tensor(2, [1, 2, 2]),
            pair(2),
            pair(2),
            pair(0),
            pair(1),
            t.boolean(False),
            t.tensor(1, [1, 1, 1], dtype=4),
        ],
    ),
    "adaptive_max_pool2d_backward": (
        [floats(1), longs(-FAR), floats(1, 2, 3, 4)],
        [t.tensor(0, [1, 1, 1]), t.tensor(2, [1, 2, 2]), t.tensor(1, [1, 1, 1], dtype=4)],
    ),
    "_ctc_loss": (
        [floats(*[-1] * 6), longs(FAR, 1)],
        [
            t.tensor(0, [2, 1, 3]),
            t.tensor(1, [1, 2], dtype=4),
            t.values(t.integer(2)),
            t.values(t.integer(2)),
            t.integer(0),
            t.boolean(False),
        ],
    ),
    "segment_reduce": (
        [floats(1, 2, 3), longs(100000, 5)],
        [t.tensor(0, [3]), t.string("sum"), TWO_LONGS, t.NONE, t.NONE, t.integer(0), t.boolean(True), t.NONE],
    ),
    "_convert_indices_from_coo_to_csr": ([floats(1), longs(FAR)], [ONE, t.integer(4), t.boolean(False)]),
    "_convert_indices_from_csr_to_coo": (
        [floats(1), longs(0, FAR)],
        [TWO_LONGS, TWO_LONGS, t.boolean(False), t.boolean(False)],
    ),
    "linalg_lu_solve": (
        [floats(1, 0, 0, 1), t.given(struct.pack("<2i", 1 << 30, 1))],
        [t.tensor(0, [2, 2]), t.tensor(1, [2], dtype=3), t.tensor(0, [2, 2]), t.boolean(True), t.boolean(False)],
    ),
}


@pytest.mark.parametrize("name", TRUSTING)
def test_numbers_that_a_kernel_would_take_for_granted(name):
    storages, args = TRUSTING[name]
    reason = why([(f"aten::{name}", "")], [*storages, t.made(64)], [t.call(0, args, [t.tensor(len(storages), [4])])])
    assert "has numbers that are not possible there" in reason


@pytest.mark.parametrize("index", [-1, 2, FAR])
def test_a_sparse_tensor_with_elements_outside(index):
    matrix = t.sparse([2, 2], t.tensor(1, [2, 1], dtype=4), t.tensor(0, [1]))
    reason = why(
        [("aten::mm", "")],
        [floats(1, 2, 3, 4), longs(0, index), t.made(16)],
        [t.call(0, [matrix, t.tensor(0, [2, 2])], [t.tensor(2, [2, 2])])],
    )
    assert "elements outside of it" in reason


def test_fills_and_generators():
    fill = b"\2" + t.var(0) + t.var(10) + t.text(b"1234567")
    assert "outside its memory" in why([], [X], [fill], [t.tensor(0, [2, 2])])
    fill = b"\2" + t.var(0) + t.var((1 << 64) - 4) + t.text(b"1234567")
    assert "outside its memory" in why([], [X], [fill], [t.tensor(0, [2, 2])])
    assert "not the state of a generator" in why([], [X], [b"\1" + t.var(0) + t.text(b"x" * 2530)], [])
    assert "too many generators" in why([], [X], [b"\1" + t.var(1 << 20) + t.text(b"")], [])


def test_settings_are_checked_and_put_back():
    import torch

    before = torch.get_num_threads(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    settings = [
        ("threads", "100000000"),
        ("threads", "-1"),
        ("default_dtype", "4"),
        ("default_dtype", "7"),
        ("unheard", "of"),
        ("deterministic", "1"),
        ("matmul_precision", "none"),
    ]
    play(MUL, [X, t.made(16)], square(t.tensor(0, [2, 2])), [Y], settings=settings)
    assert before == (torch.get_num_threads(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled())


def test_tape_text_is_escaped_on_the_terminal(tmp_path):
    said = "1 x \x1b]0;title\x07 \x9b2J \x7f caf\u00e9"
    (tmp_path / "a.tape").write_bytes(
        t.tape(MUL, [X, t.made(16)], square(t.tensor(0, [2, 2])), [Y], [("collectives", said)])
    )
    _, out, err, _ = _native.replay_command([str(tmp_path / "a.tape")])
    assert "(1 x \\x1b]0;title\\x07 \\x9b2J \\x7f caf\u00e9)\n" in out and not err, out


def test_a_text_that_is_none_is_written_out(tmp_path, capsys):
    from finitude.cli import offline

    for name, shown in ((b"aten::\xc4", "aten::\\xc4"), ("aten::\u202eno", "aten::\\u202eno")):
        (tmp_path / "a.tape").write_bytes(t.tape([(name, "")], [X, t.made(16)], square(t.tensor(0, [2, 2])), [Y]))
        assert offline.replay([str(tmp_path / "a.tape")]) == 4
        assert f"{shown} (not registered here)" in capsys.readouterr().err
    assert offline.diff([str(tmp_path / "a.tape")] * 2) == 4
    assert "\u202e" not in capsys.readouterr().err
