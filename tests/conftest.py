"""Labels: a test without one of the others is `fast`. Those that are `thorough` add values or programs to what another
test shows already, and are left out of `make test` for the time they take: `make test-thorough` runs them. Those marked
`cuda` run where a GPU is expected (FINITUDE_EXPECT_GPU=1, set by `make gpu`), and fail there rather than skip where
there is none."""

import os

import pytest
import torch  # noqa: F401  the extension links its libraries, and any file of tests may be the first to import it

OTHER_LABELS = ("zoo", "slow", "thorough", "matrix", "cuda", "frameworks")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if not any(item.get_closest_marker(label) for label in OTHER_LABELS):
            item.add_marker("fast")
    if os.environ.get("FINITUDE_EXPECT_GPU") == "1":
        return
    left_out = [item for item in items if item.get_closest_marker("cuda")]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker("cuda")]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def replays(monkeypatch):
    """The runs of this test have their capsules replayed as they are written (helpers.REPLAYS)."""
    import helpers

    monkeypatch.setattr(helpers, "REPLAYS", True)
