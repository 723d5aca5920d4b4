"""Programs that can be called: arguments in, checks, the flat graph, writes to state, outputs."""
