"""The make-believe device of the tests."""

import pytest

from device_support import build


@pytest.fixture(scope="session")
def library():
    """The path of the library that stands for libfinitude_cuda: its C interface over host memory."""
    return build()
