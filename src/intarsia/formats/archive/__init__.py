"""Zip archives: written, found, and read in place."""
