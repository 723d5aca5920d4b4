"""Engines that torch's own compiler makes, inductor, ahead of time."""

from intarsia.engines.inductor.backend import InductorBackend

__all__ = ["InductorBackend"]
