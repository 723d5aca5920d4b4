"""Hybrid -> hybrid with engines: the one build loop, and the backends. Importing the package imports no torch."""
