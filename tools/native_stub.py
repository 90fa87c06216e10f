#!/usr/bin/env python3
"""native_stub.py [--check]: writes python/finitude/_native.pyi, what type checkers know of the extension module.

Names are those of the module that is installed. Types and counts of arguments are what pybind11 wrote into docstrings;
what a function of a PyMethodDef table takes is known from its flags and from the comment above it, `// name(a, b) -> ...`. pybind11
knows no names of arguments, so they come from the sources. With --check nothing is written: exit code 1 where the file is
not what would be written.
"""

import importlib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
STUB = ROOT / "python/finitude/_native.pyi"
# A null pointer of C++ is None, which pybind11 does not write down.
MAY_BE_NONE = {"window_generators"}
# Dictionaries whose keys are known (base/records.py).
RECORDS = {"statistics": "Figures | None", "window": "Window", "window_verdict": "WindowVerdict"}
# A std::string takes str and bytes; arguments of these names are the bytes of a tape.
HOLD_BYTES = {"bytes", "tape"}
TYPES = (
    (r"typing\.SupportsInt( \| typing\.SupportsIndex)?", "int"),
    (r"typing\.SupportsFloat( \| typing\.SupportsIndex)?", "float"),
    (r"(?:collections\.abc|typing)\.Sequence\[", "Sequence["),
    (r"(?:collections\.abc|typing)\.Mapping\[", "Mapping["),
    (r"(?:collections\.abc|typing)\.Iterable\b(?!\[)", "Iterable[Any]"),
    (r"\bList\[", "list["),
    (r"\bTuple\[", "tuple["),
    (r"\bDict\[", "dict["),
    (r"\bfinitude\._native\.", ""),
    (r"\bobject\b|\bhandle\b", "Any"),
    (r"\bdict\b(?!\[)", "dict[Any, Any]"),
    (r"\blist\b(?!\[)", "list[Any]"),
    (r"\btuple\b(?!\[)", "tuple[Any, ...]"),
    (r"(?<![\w.])Callable\b|typing\.Callable|collections\.abc\.Callable", "Callable"),
)


def split(text):
    """At the commas that stand in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += letter in "([{<"
        depth -= letter in ")]}>"
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def balanced(text, at):
    """The text between the bracket at that place and the one that closes it."""
    depth = 0
    for end in range(at, len(text)):
        depth += text[end] == "("
        depth -= text[end] == ")"
        if depth == 0:
            return text[at + 1 : end]
    return ""


def argument_names(text):
    """Of a C++ parameter list; "" where one has no name."""
    names = []
    for part in split(text):
        found = re.fullmatch(r"(?:.*[\s*&>])(\w+)", re.sub(r"\s*=.*", "", part), re.S)
        names.append(
            found.group(1) if found and not re.fullmatch(r"const|int|bool|double|float", found.group(1)) else ""
        )
    return names


class Sources:
    """What the C++ sources say of functions that Python calls."""

    def __init__(self, root):
        paths = sorted(p for p in (root / "src").rglob("*") if p.suffix in (".cpp", ".h"))
        self.text = "\n".join(p.read_text() for p in paths if not p.stem.endswith(("_test", "_fuzz")))
        table = r'\{\s*"(\w+)",\s*(?:reinterpret_cast<PyCFunction>\()?([\w:<>]+)\)?,\s*(METH_[\w |]+?),\s*nullptr\s*\}'
        self.raw = {name: (function, flags) for name, function, flags in re.findall(table, self.text)}

    def of_definition(self, function, count):
        """The names in the parameter list of that length of a function, or None."""
        name = function.rpartition("::")[2]
        for found in re.finditer(rf"^[ \t]*[\w:<>,&*\[\] ]*[\w>&*\]] [*&]?(?:\w+::)*{name}\(", self.text, re.M):
            names = argument_names(balanced(self.text, found.end() - 1))
            if len(names) == count and not re.match(r"\s*(return|throw|else|if)\b", found.group()):
                return names
        return None

    def bound(self, name, count, owner=None):
        """The names of the `count` arguments of m.def("name", ...), without self; None where they are not found."""
        scope = self.text
        if owner:
            found = re.search(rf'py::class_<[^;]*?"{owner}"(.*?);\n', self.text, re.S)
            scope = self.text[found.start() :] if found else ""
        if name == "__init__":
            found = re.search(r"py::init\(\s*\[.*?\](\()", scope)
            return argument_names(balanced(scope, found.start(1))) if found else []
        found = re.search(rf'\.def(?:_static)?\(\s*"{name}",\s*(?:\[[^\]]*\]\s*(\()|&([\w:]+)|(\[\]\s*\{{))', scope)
        if not found:
            return None
        if found.group(3):
            return []
        if found.group(2):
            with_self = bool(owner) and "::" not in found.group(2)
            names = self.of_definition(found.group(2), count + with_self)
            return names[with_self:] if names else None
        names = argument_names(balanced(scope, found.start(1)))
        return names[1:] if owner and not scope[found.start() :].startswith(".def_static") else names

    def comment(self, name, function):
        """The line of comment above the definition of a function of a table: (arguments, what it returns) or None."""
        found = re.search(rf"^// {name}(\()", self.text, re.M)
        if not found:
            return None
        arguments = balanced(self.text, found.start(1))
        returns = re.match(r"\)\s*->\s*(\w+)", self.text[found.end() + len(arguments) :])
        return arguments, returns.group(1) if returns else ""


def python_type(text):
    for pattern, instead in TYPES:
        text = re.sub(pattern, instead, text)
    return text


def raw_signature(name, sources):
    function, flags = sources.raw[name]
    comment = sources.comment(name, function)
    returns = {"None": "Any", "True": "bool"}.get(comment[1] if comment else "", "Any")
    if "METH_NOARGS" in flags:
        return f"def {name}() -> {returns}: ..."
    if "METH_O" in flags:
        names = sources.of_definition(function, 2)
        return f"def {name}({names[-1] if names and names[-1] else 'it'}: Any, /) -> {returns}: ..."
    words = split(comment[0]) if comment else []
    if words and all(re.fullmatch(r"\w+|\[\w+\]", word) for word in words):
        listed = ", ".join(f"{word.strip('[]') + ('s' if word[0] == '[' else '')}: Any" for word in words)
        return f"def {name}({listed}, /) -> {returns}: ..."
    return f"def {name}(*args: Any{', **kwargs: Any' if 'KEYWORDS' in flags else ''}) -> {returns}: ..."


def bound_signature(name, docstring, sources, owner=None):
    """From the docstring that pybind11 wrote. Of a method with self."""
    line = docstring.splitlines()[0]
    at = line.index("(")
    words, returns = split(balanced(line, at)), line[at + len(balanced(line, at)) + 2 :].removeprefix(" -> ")
    is_static = bool(owner) and not (words and words[0].startswith("self"))
    if owner and not is_static:
        words = words[1:]
    names = sources.bound(name, len(words), owner)
    if names is None or len(names) != len(words):
        names = [""] * len(words)
    out, by_position = [], False
    for word, name_of in zip(words, names):
        given, _, kind = word.partition(": ")
        kind, _, default = kind.partition(" = ")
        if re.fullmatch(r"arg\d+", given):
            by_position, given = True, name_of or given
        if name_of in HOLD_BYTES and kind == "str":
            kind = "bytes"
        # The "*" before arguments that have to be named is of no type.
        out.append(f"{given}: {python_type(kind)}{' = ...' if default else ''}" if kind else given)
    if by_position:
        out.append("/")
    returns = python_type(returns) if name != "__init__" else "None"
    if name in MAY_BE_NONE:
        returns += " | None"
    if not owner:
        returns = RECORDS.get(name, returns)
    if name == "__eq__":
        out = ["other: object", "/"]
    listed = ", ".join(([] if is_static or not owner else ["self"]) + out)
    return ("@staticmethod\n    " if is_static else "") + f"def {name}({listed}) -> {returns}: ..."


def members(kind, name, sources):
    for key in sorted(vars(kind)):
        value = vars(kind)[key]
        docstring = getattr(value, "__doc__", None) or ""
        if key.startswith("_") and key not in ("__init__", "__eq__", "__contains__"):
            continue
        if isinstance(value, property):
            yield "@property"
            returns = re.search(r"-> (\S+)", getattr(value.fget, "__doc__", "") or "")
            yield f"def {key}(self) -> {python_type(returns.group(1)) if returns else 'bool'}: ..."
        elif key == "__init__" and "(self: " not in docstring:
            continue  # cannot be made from Python
        else:
            signature = bound_signature(key, getattr(kind, key).__doc__, sources, name)
            yield re.sub(r"(: |-> )bytes\b", r"\1builtins.bytes", signature)  # a method may have the name of the type


def stub(module):
    sources = Sources(ROOT)
    classes, constants, functions = [], [], []
    for name in sorted(n for n in dir(module) if not n.startswith("__")):
        value = getattr(module, name)
        if isinstance(value, type):
            inside = "".join(f"\n    {line}" for line in members(value, name, sources))
            classes.append(f"class {name}:{inside or ' ...'}\n")
        elif not callable(value):
            constants.append(f"{name}: {type(value).__name__}")
        elif re.match(rf"{name}\(", value.__doc__ or ""):
            functions.append(bound_signature(name, value.__doc__, sources))
        else:
            functions.append(raw_signature(name, sources))
    return "\n".join([
        "# Written by tools/native_stub.py from the extension module; `tools/native_stub.py --check` is part of the tests.",
        "import builtins",
        "from collections.abc import Iterable, Mapping, Sequence",
        "from typing import Any",
        "",
        "import torch",
        "",
        "from .base.types import Figures, Window, WindowVerdict",
        "",
        *constants,
        "",
        *classes,
        *functions,
        "",
    ])  # fmt: skip


def main(arguments):
    importlib.import_module("torch")  # its libraries are what the extension links
    text = stub(importlib.import_module("finitude._native"))
    if "--check" not in arguments:
        STUB.write_text(text)
    elif not STUB.exists() or STUB.read_text() != text:
        print(f"{STUB.relative_to(ROOT)} is not what the module holds: run tools/native_stub.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
