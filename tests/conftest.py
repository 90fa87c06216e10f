"""Labels: a test without one of the others is `fast`."""

import pytest

OTHER_LABELS = ("zoo", "slow", "matrix", "gpu")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if not any(item.get_closest_marker(label) for label in OTHER_LABELS):
            item.add_marker("fast")
