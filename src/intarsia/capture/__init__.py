"""nn.Module -> ExportedProgram, in the operator set that backends want."""

from intarsia.capture.capture import EntryPoint, capture, capture_methods

__all__ = ["EntryPoint", "capture", "capture_methods"]
