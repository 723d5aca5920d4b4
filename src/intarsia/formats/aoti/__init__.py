"""AOTInductor packages of whole programs: torch operators compiled, engines called."""
