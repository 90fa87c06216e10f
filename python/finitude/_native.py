"""Becomes the engine that was built for the torch which is here; its names are in _native.pyi.

ImportError, in one line, where no engine was built for it."""

import os
import sys
from importlib import machinery, util

from .base import compat, engines


def _load():
    version = engines.torch_here()
    if not version:
        raise ImportError("torch is not installed, and finitude's engine runs with torch")
    why = engines.why_none(version)
    if why is not None:
        raise ImportError(why)
    import torch  # noqa: F401  its libraries, which the engine does not know where to find

    folder = engines.folders()[compat.torch_version(version)]
    for suffix in machinery.EXTENSION_SUFFIXES:
        path = os.path.join(folder, "_native" + suffix)
        if os.path.exists(path):
            break
    else:
        python = ".".join(map(str, sys.version_info[:2]))
        raise ImportError(f"{folder} holds no engine for Python {python} (install finitude again)")
    spec = util.spec_from_file_location(__name__, path)
    engine = util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    return engine


sys.modules[__name__] = _load()
