"""Finitude: a flight recorder for PyTorch training.

Most users need nothing from here: `finitude run train.py` watches an unchanged script. In code:

    with finitude.watch(model, optimizer):
        ...train...

`watch` also returns a handle with ``close()``; afterwards no hook is left behind. In a notebook, `%load_ext finitude`
watches every cell from then on, and the report of a bad step is shown below it.
"""

from .errors import NonFiniteError

TYPE_CHECKING = False
if TYPE_CHECKING:  # for type checkers: what __getattr__ finds below
    from .api import allow, metrics, save, step, watch
    from .explain_value import explain
    from .program.seeding import seed_all
    from .program.skip_rows import skip_rows
    from .rules import Cause, rule

    __version__: str

__all__ = [
    "Cause",
    "NonFiniteError",
    "allow",
    "explain",
    "metrics",
    "rule",
    "save",
    "skip_rows",
    "seed_all",
    "step",
    "watch",
    "__version__",
]


def load_ipython_extension(ipython: object) -> None:
    from . import notebook

    notebook.load(ipython)


def unload_ipython_extension(ipython: object) -> None:
    from . import notebook

    notebook.unload(ipython)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # torch is imported with the first use of the recorder, not with the package: `finitude --help` stays fast.
        if name == "explain":
            from .explain_value import explain

            return explain
        if name in ("watch", "save", "allow", "metrics", "step"):
            from . import api

            return getattr(api, name)
        if name == "skip_rows":
            from .program import skip_rows

            return skip_rows.skip_rows
        if name in ("rule", "Cause"):
            from . import rules

            return getattr(rules, name)
        if name == "seed_all":
            from .program import seeding

            return seeding.seed_all
        if name == "__version__":
            from importlib import metadata

            try:
                return metadata.version("finitude")
            except metadata.PackageNotFoundError:  # used from a source tree
                return "unknown"
        raise AttributeError(f"module 'finitude' has no attribute {name!r}")

    def _warn_of_torch() -> None:
        """Reports at the import that this torch is not supported. The commands say it themselves."""
        import os
        import sys

        if sys.argv[:1] == ["-m"] or os.path.basename((sys.argv or [""])[0]).startswith("finitude"):
            return
        from .base import engines

        version = engines.torch_here() if engines.folders() else ""  # in a source tree nothing is
        why = engines.why_none(version) if version else None
        if why is not None:
            import warnings

            warnings.warn(f"finitude: nothing can be watched here: {why}", RuntimeWarning, stacklevel=3)

    _warn_of_torch()
