"""ExportedProgram -> hybrid: a plan first, then the split."""

from intarsia.partition.partition import Partitioned, partition, partition_methods

__all__ = ["Partitioned", "partition", "partition_methods"]
