"""A browser and a trace whose every weight can be seen, for the tests of the viewer."""

from __future__ import annotations

import pytest

from views import kept_shown


@pytest.fixture(scope="session")
def chrome(tmp_path_factory):
    from chromium import Chromium

    started = Chromium(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def shown():
    return kept_shown()
