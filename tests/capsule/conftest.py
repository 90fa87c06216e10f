"""Capsules are the subject here: each that a run leaves is replayed, as it is for a user."""

import pytest


@pytest.fixture(autouse=True)
def _replayed(replays):
    pass
