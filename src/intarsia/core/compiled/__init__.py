"""Programs that AOTInductor compiles: what engines of inductor and whole files have in common."""
