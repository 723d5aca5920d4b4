"""The stand-in backend of the tests of `core`, for programs with engines."""

from core.conftest import make_engine, standin  # noqa: F401 - fixtures
