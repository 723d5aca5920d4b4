"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")]
FileFormat = Annotated[
    Literal["pt2", "aoti"],
    typer.Option("--format", help="What FILE holds: graphs, or code that AOTInductor compiles of them (aoti)."),
]
