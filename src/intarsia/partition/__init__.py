"""ExportedProgram -> hybrid: a cut first, then the split."""

from intarsia.partition.partition import Partitioned, Wishes, partition, partition_methods

__all__ = ["Partitioned", "Wishes", "partition", "partition_methods"]
