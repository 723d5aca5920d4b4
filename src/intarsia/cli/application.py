"""The application: its commands, its exit codes, and what becomes of an error."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from intarsia.cli.compiling import compile_target
from intarsia.cli.console import error_console
from intarsia.cli.doctor import examine_installation
from intarsia.cli.inspecting import inspect_file
from intarsia.cli.target import FactoryError
from intarsia.errors import IntarsiaError


class _ReportingGroup(TyperGroup):
    """Commands whose faults end as one message and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except IntarsiaError as error:
            if ctx.params.get("debug"):
                raise
            if isinstance(error, FactoryError):
                error_console().print(error.own_traceback, markup=False, end="")
            error_console().print(f"error: {error}", style="red", markup=False)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_ReportingGroup,
    help="Compile, inspect and check PyTorch programs that mix compiled engines and torch operators.",
    epilog="Exit codes: 0 right, 1 checked and wrong, 2 cannot be done as asked.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its frames leave an option's help a third of the line
)
app.command("compile")(compile_target)
app.command("inspect")(inspect_file)
app.command("doctor")(examine_installation)


@app.callback()
def common_options(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options that stand before the command."""
