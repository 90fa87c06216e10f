"""The make-believe device is compiled once for all tests of a process."""

import pytest

from device_support import build


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The path of the library that stands for libfinitude_cuda: its C interface over host memory."""
    return build(tmp_path_factory.mktemp("device"))
