"""How much a file may hold of each thing; what is beyond a limit is refused before torch sees any of it."""

from __future__ import annotations

MEMBERS = 200_000
"""Members of an archive: about as many as there are weights."""

DIRECTORY_BYTES = 64 << 20
"""Size of an archive's directory."""

TEXT_BYTES = 512 << 20
"""Size of a member that is read as JSON. A node takes about 1.5 KB."""

NODES = 1_000_000
"""Nodes of a program, with those of its operators' bodies."""

SYMBOLS = 2_000
"""Symbols in the sizes of a program: torch looks at all of them for each size that it reads."""

EXPRESSIONS = 100_000
"""Different expressions over these symbols."""

EXPRESSION_CHARACTERS = 16_384
"""Length of one expression, as torch writes it: about 45 characters for each mention of a symbol."""

EXPRESSION_TERMS = 400
"""Terms that an expression has when every product is multiplied out."""

EXPRESSION_BITS = 1_024
"""Bits of the largest number in it."""

EXPRESSION_WORK = 5_000
"""What sympy does for the expressions of a program beyond what grows with their length, in comparisons of two sizes, or
terms that it multiplies out: some thousand a second. Each mention counts."""

NODE_WORK = 10
"""As much more for each node."""

DEPTH = 32
"""Nesting of graphs in graphs, of calls in an expression, and of containers in containers."""

NAME_CHARACTERS = 1_000
"""Length of a name."""

REPEATED_BYTES = 1 << 30
"""Size of a tensor that is larger than the bytes that it is made of, because it repeats some of them."""
