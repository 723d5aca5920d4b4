"""What the tests of `core` share."""

from __future__ import annotations

from typing import Any

import pytest

from builders.standin import engine_tensor, standin

__all__ = ["standin"]


@pytest.fixture
def make_engine() -> Any:
    """`engine_tensor`, for tests that pack engines."""
    return engine_tensor
