"""Jupyter: `%load_ext finitude` watches every cell from then on; the report of a bad step is shown below its cell.

`finitude.watch(...)` in a cell needs no extension and shows its reports in the same way.
"""

_watch = None


def load(ipython):
    """%load_ext finitude"""
    global _watch
    from . import api

    if _watch is None:
        _watch = api.watch()


def unload(ipython):
    """%unload_ext finitude"""
    global _watch
    if _watch is not None:
        _watch.close()
        _watch = None
