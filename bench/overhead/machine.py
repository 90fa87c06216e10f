"""On what, with what and when something was measured: the lines that every page begins with."""

import datetime
import os
import pathlib
import platform
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _first(path, pattern):
    try:
        found = re.search(pattern, pathlib.Path(path).read_text(), re.M)
    except OSError:
        return ""
    return found.group(1).strip() if found else ""


def _cache():
    sizes = []
    for index in (0, 2, 3):
        base = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        level, size = _first(f"{base}/level", r"(.*)"), _first(f"{base}/size", r"(.*)")
        if level and size:
            sizes.append(f"L{level} {size}")
    return ", ".join(sizes)


def revision():
    run = lambda *words: subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()  # noqa: E731
    name = run("rev-parse", "--short=12", "HEAD")
    changed = run("status", "--porcelain", "--", "src", "python", "include", "bench")
    return f"{name}{' with changes' if changed else ''}" if name else "unknown"


def versions():
    """{package: version} of what decides about the figures."""
    import importlib.metadata as metadata

    out = {"Python": platform.python_version()}
    for package in ("torch", "numpy", "transformers", "mindstudio-probe"):
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return out


def lines(command):
    """Markdown lines, one fact each."""
    model = _first("/proc/cpuinfo", r"^model name\s*:\s*(.*)$") or platform.processor() or platform.machine()
    flags = _first("/proc/cpuinfo", r"^flags\s*:\s*(.*)$").split()
    simd = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else platform.machine()
    memory = _first("/proc/meminfo", r"^MemTotal:\s*(\d+)")
    version = (ROOT / "VERSION").read_text().strip()
    return [
        f"- date: {datetime.date.today().isoformat()}; command: `{command}`",
        f"- machine: {model}, {os.cpu_count()} CPUs, {simd}, {_cache()}"
        + (f", {int(memory) >> 20} GB" if memory else "")
        + f"; {platform.system()} {platform.release()}",
        f"- finitude {version}, revision {revision()}; " + ", ".join(f"{k} {v}" for k, v in versions().items()),
    ]


def load():
    """Processes that want a CPU, over the last minute."""
    return os.getloadavg()[0]


def python():
    return sys.executable
