"""The tensors of programs in files."""
