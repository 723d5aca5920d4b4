"""nn.Module -> ExportedProgram, in the operator set that backends want."""

from intarsia.capture.capture import capture

__all__ = ["capture"]
