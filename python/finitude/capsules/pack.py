"""A capsule as one file, and back: a zip archive of the files that a capsule consists of, and of nothing else.

An archive from elsewhere is hostile: entries are taken by name from the few that a capsule can have, so that no path of
the archive is ever used; links, encryption, doubled entries and sizes beyond a limit are refused, and what is unpacked
is counted while it is read, whatever the archive says of its sizes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
import zlib

from ..base import plain_file, programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

EXIT_USAGE, EXIT_INPUT, EXIT_CANNOT = 2, 3, 4
SUFFIX = ".capsule.zip"
ABOUT = "capsule.json"
NAMES = (ABOUT, "tape.bin", "tensors.safetensors", "start.safetensors", "statistics.bin")
MOST_MB = 4096
MOST_ABOUT = 64 << 20  # bytes of capsule.json
CHUNK = 1 << 20

USAGE = {
    "pack": f"""usage: finitude pack [CAPSULE [FILE]]
Puts the folder of a capsule (the newest one in finitude-runs) into one file
(default: CAPSULE{SUFFIX}), which `finitude replay` and `finitude diff` take
as it is. A packed capsule of that name is replaced; any other file stays.
""",
    "unpack": f"""usage: finitude unpack FILE [FOLDER] [--max-mb N]
Makes the folder of a capsule again (default: the name of the file without
{SUFFIX}). Refuses what is no packed capsule, and more than --max-mb
({MOST_MB}) in all.
""",
}


_scratch = []  # folders of `unpacked`


def clear() -> None:
    """Before a process ends that cannot continue: removes what was unpacked for it."""
    for folder in _scratch:
        shutil.rmtree(folder, ignore_errors=True)


class Refused(Exception):
    """Why a folder or file is not taken; without its name."""


class NotChecked(Exception):
    """Why a capsule could not be checked here, whatever it holds."""


def _about(read):
    """The list of files in capsule.json, checked. read: a function that gives so many bytes of it."""
    data = read(MOST_ABOUT + 1)
    if len(data) > MOST_ABOUT:
        raise Refused(f"its {ABOUT} is larger than {MOST_ABOUT >> 20} MB")
    try:
        about = json.loads(data.decode("utf-8"))
        files = about["files"]
        sizes = {name: files[name]["bytes"] for name in files}
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        raise Refused(f"its {ABOUT} is not that of a capsule") from None
    if (
        about.get("kind") != "finitude capsule"
        or not set(sizes) <= set(NAMES[1:])
        or "tape.bin" not in sizes
        or not all(type(size) is int and size >= 0 for size in sizes.values())
    ):
        raise Refused(f"its {ABOUT} is not that of a capsule")
    return sizes


def pack(folder, out):
    """Writes the file `out`, whole or not at all."""
    try:
        with plain_file.opened(os.path.join(folder, ABOUT)) as f:
            sizes = _about(f.read)
    except OSError as e:
        raise Refused(f"is not the folder of a capsule: {ABOUT}: {e.strerror}") from None
    if os.path.isdir(out):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, name the file that is to be made", out)
    if os.path.lexists(out) and not is_packed(out):
        raise FileExistsError(errno.EEXIST, "it is there already, and no packed capsule", out)
    handle, partial = _made_beside(tempfile.mkstemp, out)
    try:
        # Numbers hardly shrink; the tape and the text do.
        with os.fdopen(handle, "wb") as f, zipfile.ZipFile(f, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name in (ABOUT, *sizes):
                path = os.path.join(folder, name)
                if (
                    os.path.islink(path)
                    or not os.path.isfile(path)
                    or os.path.getsize(path) != sizes.get(name, os.path.getsize(path))
                ):
                    raise Refused(f"is not whole: {name} is missing or has another size")
                archive.write(path, name)
        os.chmod(partial, 0o666 & ~_umask())
        os.replace(partial, out)
    except BaseException as e:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        if isinstance(e, OSError) and e.filename in (None, partial):  # it was written to
            e.filename = out
        raise


def _made_beside(make, out):
    """What a function of tempfile makes where `out` is to be; its failure is one of `out`."""
    try:
        return make(prefix=os.path.basename(out) + ".partial-", dir=os.path.dirname(os.path.abspath(out)))
    except OSError as e:
        e.filename = out
        raise


def _entries(archive):
    """{name: entry} of an archive that may be unpacked."""
    found = {}
    for entry in archive.infolist():
        mode = entry.external_attr >> 16
        if entry.filename not in NAMES:
            raise Refused(f"holds {entry.filename[:80]!r}, which no capsule has")
        if entry.filename in found:
            raise Refused(f"holds {entry.filename} twice")
        if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise Refused(f"holds {entry.filename} as something else than a file")
        if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Refused("is encrypted, or compressed in an unusual way")
        found[entry.filename] = entry
    if ABOUT not in found:
        raise Refused(f"holds no {ABOUT}")
    return found


@contextlib.contextmanager
def _archive(file):
    with (
        plain_file.opened(file) if isinstance(file, (str, os.PathLike)) else contextlib.nullcontext(file) as opened,
        zipfile.ZipFile(opened) as archive,
    ):
        yield archive


def contents(file, most=MOST_MB << 20):
    """The files of a packed capsule, piece by piece: (name, bytes). `file`: a path, or what zipfile takes for one. May
    raise Refused after some pieces: what came before is then of no worth."""
    try:
        with _archive(file) as archive:
            entries = _entries(archive)
            with archive.open(entries[ABOUT]) as f:
                sizes = _about(f.read)
            if set(sizes) | {ABOUT} != set(entries):
                raise Refused(f"holds other files than its {ABOUT} lists")
            left = most
            for name, entry in entries.items():
                taken = 0
                with archive.open(entry) as source:
                    yield name, b""  # of an empty file, too
                    while data := source.read(CHUNK):
                        taken += len(data)
                        if taken > left or taken > sizes.get(name, MOST_ABOUT):
                            raise Refused(f"is larger than it says, or than {most >> 20} MB in all (--max-mb)")
                        yield name, data
                if taken != sizes.get(name, taken):
                    raise Refused(f"holds a part of {name} only")
                left -= taken
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, ValueError, RuntimeError) as e:
        raise Refused(f"is not a packed capsule, or damaged: {e}") from None
    except OSError as e:
        if e.errno != errno.EINVAL:  # that is an offset in the archive before its beginning
            raise
        raise Refused(f"is not a packed capsule, or damaged: {e}") from None


def unpack(file, folder, most=MOST_MB << 20, checked=lambda folder: None):
    """Makes the folder, which must not be there, whole or not at all. checked: of it, before it has its name; may
    raise."""
    if os.path.lexists(folder):
        raise Refused(f"is not unpacked: {folder} is there already")
    partial = _made_beside(tempfile.mkdtemp, folder)
    try:
        for name, data in contents(file, most):
            with open(os.path.join(partial, name), "ab") as target:
                target.write(data)
        checked(partial)
        os.chmod(partial, 0o777 & ~_umask())
        os.rename(partial, folder)
    except BaseException as e:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(e, OSError) and e.filename is None:
            e.filename = folder
        raise


def check(folder):
    """Raises Refused where a file of the capsule is missing or damaged, also one that a replay does not read."""
    program = programs.path_of(programs.OFFLINE)
    command = [program, "damage", "--", folder]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as e:
        raise NotChecked(f"cannot be checked: cannot start {program}: {e.strerror}") from None
    if done.returncode == EXIT_INPUT:
        raise Refused(done.stdout.decode("utf-8", "replace").partition("\n")[0] or "cannot be checked")
    if done.returncode:
        raise NotChecked(f"cannot be checked: {program} ended with {done.returncode}")


def _umask():
    umask = os.umask(0)
    os.umask(umask)
    return umask


def is_packed(path: str) -> bool:
    return plain_file.head(path, 4) == b"PK\x03\x04"


@contextlib.contextmanager
def unpacked(words: Sequence[str]) -> Iterator[tuple[list[str], Callable[[str], str]]]:
    """(the words of a command line with folders in place of packed capsules, a function that puts the names of those
    files back into a text). The folders are there for as long. May raise Refused, with the name of the file."""
    with tempfile.TemporaryDirectory(prefix="finitude-") as scratch:
        _scratch.append(scratch)
        taken, instead = [], {}
        for number, word in enumerate(words):
            if not word.startswith("-") and os.path.isfile(word) and is_packed(word):
                folder = os.path.join(scratch, str(number))
                try:
                    unpack(word, folder)
                except (Refused, OSError) as e:
                    raise Refused(f"{word} {e}") from None
                instead[folder] = word
                word = folder
            taken.append(word)

        def with_packed_names(text):
            for folder, word in instead.items():
                text = text.replace(folder, word)
            return text

        yield taken, with_packed_names


def command(word: str, rest: Sequence[str]) -> int:
    """`finitude pack` and `finitude unpack`."""
    paths, most, words = [], MOST_MB, list(rest)
    while words:
        one = words.pop(0)
        if one in ("-h", "--help"):
            sys.stdout.write(USAGE[word])
            return 0
        name, eq, value = one.partition("=")
        if word == "unpack" and name == "--max-mb":
            value = value if eq else words.pop(0) if words else ""
            if not value.isdecimal() or not 0 < int(value) < 1 << 24:
                sys.stderr.write(f"finitude unpack: --max-mb takes a number of megabytes, not {value!r}\n")
                return EXIT_USAGE
            most = int(value)
        elif one.startswith("-"):
            sys.stderr.write(f"finitude {word}: unknown option {one}\n{USAGE[word]}")
            return EXIT_USAGE
        else:
            paths.append(one)
    if len(paths) not in (1, 2):
        sys.stderr.write(USAGE[word])
        return EXIT_USAGE
    source, target = paths[0].rstrip(os.sep) or paths[0], None
    try:
        if word == "pack":
            target = paths[1] if len(paths) == 2 else source + SUFFIX
            if os.path.isfile(os.path.join(source, ABOUT)):  # else pack says what is missing
                check(source)
            pack(source, target)
        else:
            bare = os.path.basename(source)
            default = bare[: -len(SUFFIX)] if bare.endswith(SUFFIX) else os.path.splitext(bare)[0]
            target = paths[1] if len(paths) == 2 else os.path.join(os.path.dirname(source), default)
            if os.path.abspath(target) == os.path.abspath(source):
                raise Refused("has no suffix: name the folder that is to be made")
            unpack(source, target, most << 20, check)
    except (Refused, NotChecked) as e:
        sys.stderr.write(f"finitude: {source} {e}\n")
        return EXIT_INPUT if isinstance(e, Refused) else EXIT_CANNOT
    except OSError as e:
        made = e.filename is not None and e.filename == target
        sys.stderr.write(f"finitude: {'cannot write ' * made}{e.filename or source}: {e.strerror or e}\n")
        return EXIT_CANNOT if made else EXIT_INPUT
    print(target)
    return 0
