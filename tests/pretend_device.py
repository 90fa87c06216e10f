"""A device that is none (tests/native/pretend_device.cpp), and what a program has to begin with that uses it."""

import pathlib
import subprocess

import helpers
import native_library

# Ends by os._exit after `END`: torch's backward thread of that device would outlive its interpreter.
BEGIN = """
import os, sys, types
import torch
from torch import nn
torch.ops.load_library({library!r})
torch.utils.rename_privateuse1_backend({name!r})
pretend = types.ModuleType("pretend")
pretend.is_available = lambda: False  # nothing of it can be captured into a graph
torch._register_device_module({name!r}, pretend)
torch.random.default_generator.manual_seed(0)
from finitude import _native
"""
END = "\nsys.stdout.flush()\nos._exit(0)\n"


def library():
    """The path of the library."""
    return native_library.compiled("pretend_device.cpp", "pretend_device.so")


def run(folder, body, name="pretend"):
    """Runs a program on that device, by the name that it is to have; what it printed."""
    script = pathlib.Path(folder, "train.py")
    script.write_text(BEGIN.format(library=library(), name=name) + body + END)
    done = subprocess.run(
        [*helpers.warm_python(), str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=helpers.environment(None),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
