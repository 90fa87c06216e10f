"""Reads what valgrind's callgrind counted (its manual, "Callgrind Format Specification"): own costs, by library."""

import collections
import re

COUNTED = ("Ir", "Dr", "Dw", "I1mr", "D1mr", "D1mw", "ILmr", "DLmr", "DLmw")
_NAMED = re.compile(r"\((\d+)\)(?: (.*))?")


def by_object(text):
    """{library: [events in the order of COUNTED]} of a callgrind.out file. What a call costs inclusively is left
    out."""
    events = next((line.split()[1:] for line in text.splitlines() if line.startswith("events:")), [])
    if tuple(events) != COUNTED:
        raise ValueError(
            f"counted {' '.join(events) or 'nothing'}, wanted {' '.join(COUNTED)}: was --cache-sim=yes given?"
        )
    names, costs = {}, collections.defaultdict(lambda: [0] * len(COUNTED))
    current, of_call = "", False

    def named(word):  # "(id) name" defines, "(id)" refers
        found = _NAMED.fullmatch(word)
        if found is None:
            return word
        if found[2] is not None:
            names[found[1]] = found[2]
        return names[found[1]]

    for line in text.splitlines():
        if line.startswith("ob="):
            current = named(line[3:])
        elif line.startswith("cob="):
            named(line[4:])
        elif line.startswith("calls="):
            of_call = True
        elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
            if not of_call:
                for i, count in enumerate(line.split()[1:]):  # the first is the line; zeros at the end are not written
                    costs[current][i] += int(count)
            of_call = False
    return dict(costs)


def calls_into(text, part):
    """{address: calls} of the functions of the library whose file name begins with `part`, which valgrind knows by
    address alone."""
    names, calls = {"ob": {}, "fn": {}}, collections.Counter()
    current = called = function = ""

    def named(kind, word):
        found = _NAMED.fullmatch(word)
        if found is None:
            return word
        if found[2] is not None:
            names[kind][found[1]] = found[2]
        return names[kind].get(found[1], "")

    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "ob":
            current = named("ob", value)
        elif key == "cob":
            called = named("ob", value)
        elif key == "fn":
            named("fn", value)
        elif key == "cfn":
            function = named("fn", value)
        elif key == "calls":
            if (called or current).rsplit("/", 1)[-1].startswith(part) and function.startswith("0x"):
                calls[int(function.split("'")[0], 16)] += int(value.split()[0])
            called = ""
    return dict(calls)


def misses(counts):
    """(instructions, lines that were not in L1, lines that were not in L2) of one list of events."""
    return counts[0], sum(counts[3:6]), sum(counts[6:9])
