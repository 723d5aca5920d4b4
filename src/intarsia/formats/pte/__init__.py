"""ExecuTorch files: `ExportedProgram`s ↔ `.pte`."""
