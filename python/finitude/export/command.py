"""`finitude export RUN --to FORMAT`."""

from __future__ import annotations

import contextlib
import io
import os
import sys

from ..base import option_words, pages
from ..base.say import printable
from ..store import reader, runs
from . import packages, picture, points, tensorboard, texts
from .options import FORMATS, HELP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from .points import Process

EXIT_USAGE, EXIT_INPUT, EXIT_CANNOT = 2, 3, 4
TEXTS = {"csv": texts.write_csv, "jsonl": texts.write_jsonl}
FILES = {  # with the package that writes it
    "parquet": (packages.write_parquet, "pyarrow"),
    "tensorboard": (tensorboard.write, ""),
    "wandb": (packages.write_wandb, "wandb"),
    "mlflow": (packages.write_mlflow, "mlflow"),
    "png": (picture.write, "matplotlib"),
}


_WITH_VALUE = {"--to": "--to", "-o": "--output", "--output": "--output"}


def _parsed(rest):
    """(paths, format, output path or "", is quiet)"""
    words = option_words.Words(rest, _WITH_VALUE, option_words.QUIET)
    form, output = words.values.get("--to", ""), words.values.get("--output", "")
    if form not in FORMATS:
        raise option_words.Wrong(f"--to takes {', '.join(FORMATS)}" + (f", not {form!r}" if form else ""))
    if len(words.paths) > 1:
        raise option_words.Wrong("one run at a time")
    if form in (*FILES, "dcp") and not output:
        raise option_words.Wrong(f"--to {form} needs -o PATH")
    return words.paths, form, output, words.has("--quiet")


def main(
    rest: Sequence[str],
    newest: Callable[[bool], tuple[list[str], int]],
    write_dcp: Callable[[str, str], tuple[int, list[str]]],
) -> int:
    """newest(is quiet): the path of the newest run, or none and the exit code. write_dcp(path, output): of --to dcp;
    the exit code, and what is to be said."""
    if any(word in ("-h", "--help") for word in rest):
        sys.stdout.write(HELP)
        return 0
    try:
        paths, form, output, quiet = _parsed(rest)
    except option_words.Wrong as e:
        sys.stderr.write(option_words.usage("export", str(e), HELP))
        return EXIT_USAGE
    if not paths:
        paths, code = newest(quiet)
        if not paths:
            return code
    if form == "dcp":
        code, notes = write_dcp(paths[0], output)
        if code != 0 or not quiet:
            sys.stderr.writelines(f"finitude: {printable(note)}\n" for note in notes)
        return code
    run = next(iter(runs.found(paths[0])), "")
    try:
        if not run:
            raise reader.Unreadable("it is no run and holds none")
        found = points.processes(run)
        return _write(form, output, os.path.basename(os.path.abspath(run)), found, quiet)
    except reader.Unreadable as e:
        sys.stderr.write(f"finitude: {printable(paths[0])}: {e}\n")
        return EXIT_INPUT


def _write(form, output, name, processes, quiet):
    try:
        if form in FILES:
            write, package = FILES[form]
            try:
                where = write(output, name, processes)
            except ImportError as e:
                if (e.name or "").partition(".")[0] != package:
                    raise
                sys.stderr.write(f"finitude: --to {form} needs the package {package}: pip install {package}\n")
                return EXIT_CANNOT
            except (reader.Unreadable, OSError):
                raise
            except Exception as e:  # of a package, which is of any version
                why = printable(f"{type(e).__name__}: {e}")[:300]
                sys.stderr.write(f"finitude: {package or form} could not write it: {why}\n")
                return EXIT_CANNOT
            if not quiet:
                sys.stderr.write(f"finitude: written to {where}\n")
        else:
            with _output(output) as out:
                if form == "prometheus":
                    out.write(_newest(name, processes))
                else:
                    TEXTS[form](out, processes)
    except OSError as e:
        if output and not isinstance(e, BrokenPipeError):
            sys.stderr.write(f"finitude: cannot write {printable(output)}: {e.strerror or e}\n")
            return EXIT_CANNOT
        raise
    return 0


def _newest(name: str, processes: Sequence[Process]) -> str:
    newest = texts.Newest()
    for process in processes:
        texts.add_newest(newest, name, process)
    return newest.text()


@contextlib.contextmanager
def _output(path: str) -> Iterator[TextIO]:
    """The file, whole or not at all; standard output where there is no path, or it is `-`."""
    if path in ("", "-"):
        yield sys.stdout
        return
    with pages.whole(path) as f:
        text = io.TextIOWrapper(f, encoding="utf-8", newline="")
        yield text
        text.flush()
        text.detach()
