"""Labels: a test without one of the others is `fast`. Those that are `thorough` add values or programs to what another
test shows already, and are left out of `make test` for the time they take: `make test-thorough` runs them. Those marked
`timed` run while no other test does. Those marked `cuda` run where a GPU is expected (FINITUDE_EXPECT_GPU=1, set by
`make gpu`), and fail there rather than skip where there is none."""

import collections
import functools
import gc
import os
import pathlib

import _pytest
import pluggy
import pytest
import torch  # noqa: F401  the extension links its libraries, and any file of tests may be the first to import it

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # what tests start leaves nothing beside its program
OTHER_LABELS = ("zoo", "slow", "thorough", "matrix", "cuda", "frameworks")
ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if not any(item.get_closest_marker(label) for label in OTHER_LABELS):
            item.add_marker("fast")
    if "PYTEST_XDIST_WORKER" in os.environ:
        of_file = collections.Counter(item.path for item in items)
        slow = {item.path for item in items if item.get_closest_marker("slow")}  # a file stays in one piece
        items.sort(key=lambda item: (item.path not in slow, -of_file[item.path]))
    if os.environ.get("FINITUDE_EXPECT_GPU") == "1":
        return
    left_out = [item for item in items if item.get_closest_marker("cuda")]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker("cuda")]
        config.hook.pytest_deselected(items=left_out)


@functools.cache
def _stays_together(file):
    """One process runs all tests of the file: its fixtures serve the whole file, or its tests are short."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return 'scope="module"' in text or "mark.slow" not in text


@pytest.hookimpl(optionalhook=True)  # a machine with a GPU may be without xdist
def pytest_xdist_make_scheduler(config, log):
    """`--dist loadgroup`: files that stay together are given out whole, the tests of others one by one; long tests
    first, so that at the end no process has one left while the others have none. The groups that xdist 3.8 makes of
    marks are lost with pytest 9.2, where a test has no `_nodeid`."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class LongestFirst(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return file if _stays_together(file) else nodeid

    config.option.loadscopereorder = False  # the order is that of pytest_collection_modifyitems
    return LongestFirst(config, log)


@pytest.fixture
def replays(monkeypatch):
    """The runs of this test have their capsules replayed as they are written (helpers.REPLAYS)."""
    import helpers

    monkeypatch.setattr(helpers, "REPLAYS", True)


@pytest.fixture(scope="session", autouse=True)
def _what_tests_compile(tmp_path_factory):
    import built_once

    base = tmp_path_factory.getbasetemp()
    built_once.share(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


@pytest.fixture(scope="module")
def few_objects():
    """For tests that watch many short trainings in this process. What lives as the first of them in a file begins is
    taken out of the garbage collector's sight, and the frames of pytest are those of a library: a recorder looks
    through all that a program reaches from its own frames, which is little where no pytest runs it."""
    from finitude.base import _places

    gc.collect()
    gc.freeze()
    prefixes = _places.library_prefixes()
    runner = [os.path.dirname(os.path.abspath(package.__file__)) + os.sep for package in (_pytest, pluggy)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_places, "library_prefixes", lambda: prefixes)
        patch.setattr(_places, "_PACKAGE", (_places._PACKAGE, *runner))
        yield
    gc.unfreeze()
