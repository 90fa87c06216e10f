"""Labels: a test without one of the others is `fast`. Those that are `thorough` add values or programs to what another
test shows already, and are left out of `make test` for the time they take: `make test-thorough` runs them. Those marked
`timed` run while no other test does. Those marked `cuda` run where a GPU is expected (FINITUDE_EXPECT_GPU=1, set by
`make gpu`), and fail there rather than skip where there is none."""

import os

import pytest
import torch  # noqa: F401  the extension links its libraries, and any file of tests may be the first to import it

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # what tests start leaves nothing beside its program
OTHER_LABELS = ("zoo", "slow", "thorough", "matrix", "cuda", "frameworks")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if not any(item.get_closest_marker(label) for label in OTHER_LABELS):
            item.add_marker("fast")
        elif _shares_what_is_made(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    if os.environ.get("FINITUDE_EXPECT_GPU") == "1":
        return
    left_out = [item for item in items if item.get_closest_marker("cuda")]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker("cuda")]
        config.hook.pytest_deselected(items=left_out)


def _shares_what_is_made(item):
    """Whether a fixture of a module serves this test: with `--dist loadgroup` one process makes it, once."""
    made = item._fixtureinfo.name2fixturedefs.values()
    return any(one[-1].scope == "module" for one in made)


@pytest.fixture
def replays(monkeypatch):
    """The runs of this test have their capsules replayed as they are written (helpers.REPLAYS)."""
    import helpers

    monkeypatch.setattr(helpers, "REPLAYS", True)
