"""Finitude: a flight recorder for PyTorch training.

Most users need nothing from here: `finitude run train.py` watches an unchanged script. In code:

    with finitude.watch(model, optimizer):
        ...train...

`watch` also returns a handle with ``close()``; afterwards no hook is left behind. In a notebook, `%load_ext finitude`
watches every cell from then on, and the report of a bad step is shown below it.
"""

from .errors import NonFiniteError

__all__ = ["Cause", "NonFiniteError", "allow", "rule", "save", "step", "watch", "__version__"]


def load_ipython_extension(ipython):
    from . import notebook

    notebook.load(ipython)


def unload_ipython_extension(ipython):
    from . import notebook

    notebook.unload(ipython)


def __getattr__(name):
    # torch is imported with the first use of the recorder, not with the package: `finitude --help` stays fast.
    if name in ("watch", "save", "allow", "step"):
        from . import api

        return getattr(api, name)
    if name in ("rule", "Cause"):
        from . import rules

        return getattr(rules, name)
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("finitude")
        except metadata.PackageNotFoundError:  # used from a source tree
            return "unknown"
    raise AttributeError(f"module 'finitude' has no attribute {name!r}")
