"""Exported programs to and from files."""
