"""ExportedProgram -> hybrid: a plan first, then the split."""

from intarsia.partition.partition import Partitioned, partition

__all__ = ["Partitioned", "partition"]
