"""The engines of programs in files."""
