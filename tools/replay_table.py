"""Writes docs/replay.md: which programs come out of a replay with the same bits. usage: replay_table.py [OUT]

Run it with the Python that finitude is installed for. A program that does not replay is listed as such; the exit code
is 1."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402

import tape_programs  # noqa: E402
from finitude import _native  # noqa: E402

PLAYER = pathlib.Path(_native.__file__).with_name("finitude-replay")

PAGE = """# What replays

One step of each program is recorded as in the second run of a bad step, and computed again from the tape: in the same process,
and by `finitude-replay`, which has no Python and none of the program's code. "=" means that the loss, every gradient and, where
the optimizer is part of the step, every parameter, buffer and optimizer state have the bits they had. Programs:
`tests/tape_programs.py`; each is also a test. Calls: operator calls on the tape; inputs: what it reads that was there before.

Written by `tools/replay_table.py` with torch {torch}, {threads} thread.

| program | calls | inputs, bytes | results | in process | without Python |
|---|---|---|---|---|---|
{rows}

Calls that take a matrix in CSR, CSC or blocks, or in mkldnn's layout, have no place on a tape: what they gave is on it instead, and is taken
as recorded. What is not on a tape, and so makes a replay differ or fail, which is then reported: [limits](limits.md). How to replay a capsule:
[capsules](capsules.md). What a replay costs: [cost](replay-cost.md).
"""


def played(name, folder):
    """(row, came out the same)."""
    tape, seen, _ = tape_programs.record(_native, name)
    about = _native.tape_about(tape)
    inside = _native.tape_play(tape, ["aten"], 0)["identical"]
    file = folder / "step.tape"
    file.write_bytes(tape)
    outside = subprocess.run([PLAYER, file], capture_output=True, check=False).returncode == 0
    file.unlink()
    words = {True: "=", False: "differs"}
    return (
        f"| {name} | {about['calls']} | {about['input_bytes']} | {sum(seen.values())} | "
        f"{words[inside]} | {words[outside]} |",
        inside and outside,
    )


def main(out):
    import tempfile

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [played(name, pathlib.Path(folder)) for name in tape_programs.PROGRAMS]
    text = PAGE.format(torch=torch.__version__, threads=torch.get_num_threads(), rows="\n".join(row for row, _ in rows))
    pathlib.Path(out).write_text(text, encoding="utf-8")
    return 0 if all(same for _, same in rows) else 1


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or [ROOT / "docs" / "replay.md"])))
