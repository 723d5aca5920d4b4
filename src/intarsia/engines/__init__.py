"""Hybrid -> hybrid with engines: the one build loop, and the backends."""

from intarsia.engines.build import build_engines, check_options

__all__ = ["build_engines", "check_options"]
