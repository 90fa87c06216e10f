"""A recorded step, replayed in this process and by a program without Python, comes out with the same bits."""

import pathlib
import resource
import subprocess

import pytest
import torch

import tape_programs
from finitude import _native

PLAYER = pathlib.Path(_native.__file__).with_name("finitude-replay")


@pytest.fixture(scope="module")
def tapes(tmp_path_factory):
    """The tape of each program, recorded once: name -> (bytes, what is on it, file)."""
    folder = tmp_path_factory.mktemp("tapes")
    made = {}

    def tape(name):
        if name not in made:
            torch.set_num_threads(1)
            tape_bytes, seen, _ = tape_programs.record(_native, name)
            file = folder / f"{len(made)}.tape"
            file.write_bytes(tape_bytes)
            made[name] = tape_bytes, seen, file
        return made[name]

    return tape


def player(*words):
    done = subprocess.run([PLAYER, *words], capture_output=True, text=True, timeout=120, env={"PATH": "/nowhere"})
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", tape_programs.PROGRAMS)
def test_the_same_bits_in_process(tapes, name):
    tape, seen, _ = tapes(name)
    # What no operator touches has no place on a tape: a counter of batches that is only there to be saved.
    missing = [key for key, on_tape in seen.items() if not on_tape and "num_batches_tracked" not in key]
    assert not missing
    state = torch.get_rng_state()
    played = _native.tape_play(tape, ["aten"], 0)
    assert played["why_not"] == "" and not played["missing"] and not _native.tape_about(tape)["gaps"]
    assert [name for _, name, same in played["outcomes"] if not same] == []
    assert played["identical"] and len(played["outcomes"]) == sum(seen.values())
    assert torch.equal(state, torch.get_rng_state())


# It is the code that plays them in this process, with no Python around: every third shows that.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if number % 3 == 0 else pytest.mark.thorough)
        for number, name in enumerate(tape_programs.PROGRAMS)
    ],
)
def test_the_same_bits_without_python(tapes, name):
    code, said = player(tapes(name)[2])
    assert code == 0 and said.startswith("identical"), said


@pytest.mark.parametrize(
    "name",
    [
        "transformer with SDPA, clipping, AdamW foreach",
        "CNN with BatchNorm and dropout, Adam",
        "LSTM of two layers with dropout, RMSprop",
    ],
)
def test_two_threads(name):
    torch.set_num_threads(2)
    try:
        tape, _, _ = tape_programs.record(_native, name)
        assert _native.tape_play(tape, ["aten"], 0)["identical"]
        torch.set_num_threads(1)
        assert _native.tape_play(tape, ["aten"], 0)["identical"], "the tape knows how many threads there were"
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)


def values_after(name, recorded):
    """Loss and results of four steps, with every step recorded or none."""
    torch.manual_seed(5)
    step = tape_programs.PROGRAMS[name]()
    for _ in range(4):
        if recorded:
            _native.tape_start()
        loss, found = step()
        _native.tape_clear()
    return {"loss": loss, **found}


@pytest.mark.parametrize("name", tape_programs.PROGRAMS)
def test_recording_changes_no_bit(name):
    plain, recorded = values_after(name, False), values_after(name, True)
    assert plain.keys() == recorded.keys()
    for key, value in plain.items():
        bits = [_native.checksum(v.detach().to_dense() if v.is_sparse else v.detach()) for v in (value, recorded[key])]
        assert bits[0] == bits[1], key


def test_one_bit_of_an_input_is_noticed(tapes):
    """The comparison can fail: the first float of the batch with another last bit gives other results."""
    torch.manual_seed(0)
    step = tape_programs.PROGRAMS["MLP, SGD with momentum"]()
    step()
    _native.tape_start()
    loss, found = step()
    _native.tape_stop()
    # What is read at the end is what an input held: nobody wrote it during the step, so the tape takes this for its
    # content.
    batch = [c.cell_contents for c in step.__closure__ if callable(c.cell_contents)][0].__closure__
    x = next(
        c.cell_contents for c in batch if isinstance(c.cell_contents, torch.Tensor) and c.cell_contents.shape == (8, 16)
    )
    x.view(torch.int32)[0, 0] ^= 1
    _native.tape_outcome("loss", "loss", loss)
    for key, tensor in found.items():
        _native.tape_outcome("value", key, tensor.detach())
    played = _native.tape_play(_native.tape_take(), ["aten"], 0)
    assert played["why_not"] == "" and not played["identical"]
    assert sum(not same for *_, same in played["outcomes"]) > len(played["outcomes"]) / 2


@pytest.fixture(scope="module")
def custom():
    """The tape of an operator that the program registered itself, in Python."""
    with torch.library._scoped_library("tapetest", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: torch.from_numpy(x.numpy() * 2), "CPU")
        x = torch.randn(4)
        _native.tape_start()
        out = torch.ops.tapetest.twice(x).exp()
        _native.tape_stop()
        assert _native.tape_outcome("value", "out", out)
        yield _native.tape_take()


def test_operators_of_others_are_called_only_when_named(custom):
    assert _native.tape_play(custom, ["aten"], 0)["missing"] == ["tapetest::twice (not allowed)"]
    assert _native.tape_play(custom, ["aten", "tapetest"], 0)["identical"]


def test_unregistered_foreign_operators_are_named(custom, tmp_path):
    file = tmp_path / "custom.tape"
    file.write_bytes(custom)
    code, said = player("--allow", "tapetest", file)
    assert code == 4 and "tapetest::twice (not registered here)" in said


def test_in_memory_data_set_is_not_on_tape():
    """Of a large tensor only the part that the step read is kept."""
    data, weight = torch.randn(100_000, 4), torch.randn(4, requires_grad=True)
    _native.tape_start()
    loss = (data[500:508] @ weight).sum()
    loss.backward()
    _native.tape_stop()
    assert _native.tape_outcome("loss", "loss", loss) and _native.tape_outcome("gradient", "weight", weight.grad)
    tape = _native.tape_take()
    assert len(tape) < 10_000
    assert _native.tape_play(tape, ["aten"], 0)["identical"]


def resident_mb():
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * resource.getpagesize() >> 20


def test_memory_is_freed_as_always_while_recording():
    """Only what was there when the step began is kept: not what the step made itself."""
    x = torch.ones(16 << 20)
    _native.tape_start()
    before = resident_mb()
    for _ in range(4):
        y = x * 2
        del y
    after = resident_mb()
    _native.tape_clear()
    assert after - before < 48, "four times 64 MB were made and dropped"


def test_files_that_are_no_tape(tapes, tmp_path):
    tape = tapes("MLP, SGD with momentum")[0]
    cases = {
        "empty": b"",
        "text": b"hello",
        "cut": tape[:-1],
        "damaged": tape[:100] + b"\0\0\0" + tape[103:],
        "later": tape[:8] + b"\2" + tape[9:],
    }
    for name, content in cases.items():
        file = tmp_path / name
        file.write_bytes(content)
        code, said = player(file)
        assert code == 3, (name, said)
    assert player(tmp_path / "missing")[0] == 3 and player(tmp_path)[0] == 3
    assert player()[0] == 2 and player("--wrong", "x")[0] == 2 and player("--threads", "none", "x")[0] == 2
    with pytest.raises(ValueError, match="cut off"):
        _native.tape_play(tape[:-1], ["aten"], 0)


def test_without_python(tapes):
    """The program needs neither Python's library nor torch's Python half."""
    needed = subprocess.run(["ldd", PLAYER], capture_output=True, text=True, check=True).stdout
    libraries = {line.split()[0] for line in needed.splitlines()}
    assert any("torch_cpu" in name for name in libraries)
    assert not [name for name in libraries if "python" in name]


def test_what_version_1_wrote_is_still_read():
    """Formats are a promise. The file was written by the first version; its step took the logarithm of a zero."""
    tape = pathlib.Path(__file__).parents[1].joinpath("data", "tapes", "version_1.tape").read_bytes()
    about = _native.tape_about(tape)
    assert (about["calls"], about["outcomes"], about["input_bytes"], about["gaps"]) == (8, 2, 12, [])
    played = _native.tape_play(tape, ["aten"], 0)
    assert played["why_not"] == "" and [(kind, name) for kind, name, _ in played["outcomes"]] == [
        ("loss", "loss"),
        ("value", "gradient"),
    ]


def test_version_1_tape_with_notes_is_readable():
    """The same with the lines that calls come from, which readers of before leave alone."""
    tape = pathlib.Path(__file__).parents[1].joinpath("data", "tapes", "version_1_with_notes.tape").read_bytes()
    about = _native.tape_about(tape)
    assert (about["outcomes"], about["gaps"]) == (2, [])
    log, *_ = about["lines"]
    assert log == ("aten::log", "/project/train.py", 4, "logp = torch.log(w)", False)
    assert ("aten::div", "/project/train.py", 4, "logp = torch.log(w)", True) in about["lines"], "the node of the log"
    played = _native.tape_play(tape, ["aten"], 0)
    assert played["why_not"] == "" and [(kind, name) for kind, name, _ in played["outcomes"]] == [
        ("loss", "loss"),
        ("gradient", "w"),
    ]


def test_notes_are_optional():
    """A tape whose header says that there are none is the same tape without lines."""
    import tape_format

    tape = pathlib.Path(__file__).parents[1].joinpath("data", "tapes", "version_1_with_notes.tape").read_bytes()
    header = tape[:48] + bytes(8)
    plain = header + tape_format.checksum(header).to_bytes(8, "little") + tape[64:]
    assert not any(file for _, file, *_ in _native.tape_about(plain)["lines"])
    assert _native.tape_play(plain, ["aten"], 0)["outcomes"] == _native.tape_play(tape, ["aten"], 0)["outcomes"]


def test_the_table_in_docs_is_of_these_programs():
    page = pathlib.Path(__file__).parents[2].joinpath("docs", "replay.md").read_text()
    rows = [
        [cell.strip() for cell in row.strip("|\n").split("|")] for row in page.splitlines() if row.startswith("| ")
    ][1:]
    assert {row[0]: row[4:] for row in rows} == dict.fromkeys(tape_programs.PROGRAMS, ["=", "="])
