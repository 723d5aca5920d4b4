"""Hybrid -> hybrid with engines: the one build loop, and the backends."""

from intarsia.engines.build import build_engines, check_options
from intarsia.engines.methods import build_methods

__all__ = ["build_engines", "build_methods", "check_options"]
