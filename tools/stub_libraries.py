"""Replaces the CUDA libraries that a CUDA build of torch names but a machine without a GPU lacks.

    python tools/stub_libraries.py TORCH_FOLDER OUT_FOLDER

Every missing libcu*, libnv* and libnccl* that torch's own libraries need is written to OUT_FOLDER with the soname and
version nodes they ask for. Each of its functions returns 35 (cudaErrorInsufficientDriver), so that torch starts on the
CPU with LD_LIBRARY_PATH=OUT_FOLDER, as it does where the driver is too old. For testing only.
"""

import collections
import pathlib
import re
import subprocess
import sys

CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)")
CUDA_SYMBOL = re.compile(r"_*(cu|nv|nccl)")
ERROR_INSUFFICIENT_DRIVER = 35


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, check=True).stdout


def torch_libraries(torch_folder):
    return sorted(path for pattern in ("*.so*", "lib/*.so*") for path in torch_folder.glob(pattern) if path.is_file())


def installed_names(torch_folder):
    """Sonames the dynamic linker would find: torch's own, those of nvidia packages next to it, and the system's, but for
    those of a CUDA toolkit, which wheels_test.py hides."""
    names = {path.name for path in torch_libraries(torch_folder)}
    names |= {path.name for path in torch_folder.parent.glob("nvidia/**/lib/*.so*")}
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    return names | {line.split()[0] for line in cache.splitlines()[1:] if line.strip() and "/cuda" not in line}


def needed(library):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", str(library)))


def wanted_versions(library):
    """{number: (soname, version node)} of the library's version needs."""
    versions, soname = {}, None
    for line in readelf("-V", str(library)).splitlines():
        if match := re.search(r"File: (\S+)\s+Cnt:", line):
            soname = match.group(1)
        elif match := re.search(r"Name: (\S+)\s+Flags: .*Version: (\d+)", line):
            versions[int(match.group(2))] = (soname, match.group(1))
    return versions


def undefined_symbols(library):
    """(name, soname or None, version node or None) of what the library expects from others."""
    versions = wanted_versions(library)
    for line in readelf("--dyn-syms", str(library)).splitlines():
        fields = line.split()
        if len(fields) < 8 or fields[6] != "UND" or fields[4] == "WEAK":
            continue
        name = fields[7].split("@")[0]
        number = re.fullmatch(r"\((\d+)\)", fields[-1])
        yield (name, *versions.get(int(number.group(1)) if number else -1, (None, None)))


def wanted_stubs(torch_folder):
    """{soname: {version node or None: symbols}} of the missing CUDA libraries."""
    present = installed_names(torch_folder)
    stubs, unversioned = collections.defaultdict(lambda: collections.defaultdict(set)), set()
    for library in torch_libraries(torch_folder):
        for soname in needed(library):
            if CUDA_LIBRARY.match(soname) and soname not in present:
                stubs[soname][None]  # also a library of which no symbol is used must exist
        for name, soname, node in undefined_symbols(library):
            if soname is None and CUDA_SYMBOL.match(name):
                unversioned.add(name)
            elif soname is not None and CUDA_LIBRARY.match(soname) and soname not in present:
                stubs[soname][node].add(name)
    if stubs:
        # A symbol without a version may come from any library that is loaded.
        stubs[min(stubs)][None] |= unversioned
    return stubs


def write_stub(folder, soname, nodes):
    source, script = folder / f"{soname}.c", folder / f"{soname}.map"
    names = sorted(set().union(*nodes.values()))
    source.write_text("".join(f"int {name}(void) {{ return {ERROR_INSUFFICIENT_DRIVER}; }}\n" for name in names))
    command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{soname}", "-o", str(folder / soname)]
    versioned = {node: symbols for node, symbols in nodes.items() if node}
    if versioned:
        script.write_text(
            "".join(f"{node} {{ global: {'; '.join(sorted(symbols))}; }};\n" for node, symbols in versioned.items())
        )
        command.append(f"-Wl,--version-script={script}")
    subprocess.run([*command, str(source)], check=True)


def make_stubs(torch_folder, out_folder):
    """Writes the missing libraries; returns their sonames."""
    out_folder.mkdir(parents=True, exist_ok=True)
    stubs = wanted_stubs(torch_folder)
    for soname, nodes in sorted(stubs.items()):
        write_stub(out_folder, soname, nodes)
    return sorted(stubs)


if __name__ == "__main__":
    for made in make_stubs(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])):
        print(made)
