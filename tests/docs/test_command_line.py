"""The page about the command line names every command, and each command's own options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from intarsia.cli.application import app

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
FIRST, *REST = re.split(r"^## ", PAGE, flags=re.MULTILINE)
SECTIONS = {section.partition("\n")[0]: section for section in REST}
COMMANDS = typer.main.get_command(app).commands


def test_every_command_has_a_section() -> None:
    assert list(SECTIONS) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_named(name: str) -> None:
    flags = [parameter.opts for parameter in COMMANDS[name].params if parameter.param_type_name == "option"]
    text = FIRST + SECTIONS[name]
    assert [names for names in flags if not any(re.search(rf"(?<![\w-]){flag}\b", text) for flag in names)] == []
