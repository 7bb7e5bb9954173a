"""Where the files of the tests are."""

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.db"
