"""Damage for readers of what comes from elsewhere: seeded, so that what a reader falls over can be had again by its
number."""

import contextlib
import copy
import json
import os
import random
import resource
import time

ODD = (
    None,
    True,
    False,
    0,
    -1,
    1 << 31,
    1 << 63,
    -(1 << 70),
    10**400,
    0.5,
    1e308,
    float("nan"),
    float("-inf"),
    "",
    "x",
    "../../etc/passwd",
    "/etc/passwd",
    "NaN",
    "\x1b[31m\x00\u202e",
    "y" * 70_000,
    [],
    {},
    [[]],
    [{}],
    {"": None},
    "\ud800",
    "rank-\u00b2",
)


def _nodes(value, found, path=()):
    found.append(path)
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        _nodes(value[key], found, (*path, key))
    return found


def damaged(document, draw):
    """The document with one to three values of it replaced, taken out, doubled or put elsewhere."""
    document = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 2, 3))):
        nodes = _nodes(document, [])
        path = draw.choice(nodes)
        if not path:
            if draw.random() < 0.1:
                return draw.choice(ODD)
            continue
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        key, what = path[-1], draw.random()
        if what < 0.6:
            holder[key] = copy.deepcopy(draw.choice(ODD))
        elif what < 0.75:
            del holder[key]
        elif what < 0.85:
            other = document
            for step in draw.choice(nodes):
                other = other[step]
            holder[key] = copy.deepcopy(other)
        elif isinstance(holder, list):
            holder += [copy.deepcopy(holder[key])] * draw.choice((1, 40))
        else:
            holder[draw.choice(("", "other", "../x", "\u00b2"))] = holder.pop(key)
    return document


def text_of(document, draw):
    """Its bytes, at times with damage that JSON itself does not have."""
    data = bytearray(json.dumps(document).encode("utf-8", "surrogatepass"))
    what = draw.random()
    if what < 0.03:
        return b"[" * 100_000
    if what < 0.06:
        return b'{"a":' * 50_000
    if what < 0.12:
        del data[draw.randrange(len(data) + 1) :]
    elif what < 0.3 and data:
        for _ in range(draw.choice((1, 3, 20))):
            data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def damaged_bytes(good, draw):
    data = bytearray(good)
    for _ in range(draw.choice((1, 1, 3, 8))):
        what = draw.random()
        if not data or what < 0.05:
            data += bytes(draw.randrange(64))
        elif what < 0.15:
            del data[draw.randrange(len(data)) :]
        elif what < 0.25:
            at = draw.randrange(len(data))
            data[at:at] = data[at : at + draw.randrange(32)]
        else:
            data[draw.randrange(len(data))] = draw.choice((0, 1, 127, 128, 255, draw.randrange(256)))
    return bytes(data)


# make test tries every tenth; make test-thorough sets FINITUDE_ALL_TRIES and tries all.
SHARE = 1 if os.environ.get("FINITUDE_ALL_TRIES") else 10


def tries(count, seed, one):
    """Calls one(draw) count / SHARE times. The number of a failed try is reported; none may take seconds, and all
    together no more than 256 MB of memory."""
    count //= SHARE
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        began = time.monotonic()
        with _named(number, seed):
            one(random.Random(f"{seed} {number}"))
            assert time.monotonic() - began < 5, f"{time.monotonic() - began:.1f} s"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10, "kilobytes"


@contextlib.contextmanager
def _named(number, seed):
    """Names the try that failed."""
    try:
        yield
    except BaseException as e:
        if hasattr(e, "add_note"):  # Python 3.11
            e.add_note(f"try {number} of seed {seed}")
        raise


def tree(folder):
    """Every path below it: what a reader left behind."""
    return sorted(
        os.path.relpath(os.path.join(at, name), folder)
        for at, folders, files in os.walk(folder)
        for name in folders + files
    )
