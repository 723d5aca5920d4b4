"""Every example of the site and of the README runs, and prints what the page says.

The blocks of a page are run in order, in one namespace and one empty folder:

- `python` is executed, or compared with what it prints where it is written with `>>>`; a block whose first line names a
  file (`# models.py`) is written to that file;
- `console` holds commands after `$`, each with the output that it must print;
- `sh` holds commands, of which those of intarsia must end well; those of other tools are left out.

Outputs are compared but for white space and the length of a table's rule, and `...` stands for anything.
"""

from __future__ import annotations

import doctest
import re
import shlex
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser
from typer.testing import CliRunner

from intarsia.cli.application import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
if find_spec("executorch") is None:  # the extra intarsia[pte]
    PAGES.remove(ROOT / "docs" / "executorch.md")
# "text" is read, "mermaid" is drawn; "" is text as well
LANGUAGES = {"python", "console", "sh", "text", "toml", "mermaid", ""}
LANGUAGES |= {"{eval-rst}", "{toctree}", "{include}", "{literalinclude}"}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# The commands of the README speak of a package that the reader has.
MODELS_OF_THE_READER = """
import torch

def encoder():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 4), (torch.ones(2, 8),), {}, None

def hybrid():
    return torch.export.export(torch.nn.Linear(8, 4), (torch.ones(2, 8),)).module(check_guards=False)
"""


def run_python(example: Example) -> None:
    named = re.match(r"# (\S+\.py)\n", example.parsed)
    if named:
        Path(named[1]).write_text(example.parsed, encoding="utf-8")
    else:
        PythonEvaluator()(example)


def run_console(example: Example) -> str | None:
    _, *parts = re.split(r"^\$ (.*)\n", example.parsed, flags=re.MULTILINE)
    for command, expected in zip(parts[::2], parts[1::2], strict=True):
        result = run_command(command)
        printed = result.stdout or result.stderr  # progress goes to standard error, and so do faults
        if not doctest.OutputChecker().check_output(_short_rules(expected), _short_rules(printed), OPTIONS):
            return f"`{command}` printed\n{printed}"
    return None


def _short_rules(text: str) -> str:
    """The text with its tables' rules cut short: they are as long as versions and names of processors make them."""
    return re.sub("─+", "─", text)


def run_shell(example: Example) -> str | None:
    for line in example.parsed.splitlines():
        if line.startswith("intarsia "):
            result = run_command(line)
            if result.exit_code != 0:
                return f"`{line}` ended with {result.exit_code} and printed\n{result.output}"
    return None


def run_command(line: str):
    program, *arguments = shlex.split(line, comments=True)
    assert program == "intarsia", line
    return CliRunner().invoke(app, arguments, prog_name=program)


def read_examples(page: Path) -> list[Example]:
    python = PythonCodeBlockParser(doctest_optionflags=OPTIONS)
    python.codeblock_parser = CodeBlockParser("python", run_python)
    parsers = [python, CodeBlockParser("console", run_console), CodeBlockParser("sh", run_shell)]
    return list(Sybil(parsers, path=str(ROOT)).parse(page))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, whose modules are forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = sys.modules.copy()
    yield tmp_path
    for name in sys.modules.keys() - known.keys():
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page: Path, folder: Path) -> None:
    if page.name == "README.md":
        (folder / "my_package").mkdir()
        (folder / "my_package" / "models.py").write_text(MODELS_OF_THE_READER)
    for example in read_examples(page):
        example.evaluate()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_are_of_known_languages(page: Path) -> None:
    fences = re.findall(r"^ *```+(\S*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(fences) <= LANGUAGES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nraise ValueError('broken')\n```", "broken"),
        ("```python\n>>> 1 + 1\n3\n```", "Expected"),
        ("```console\n$ intarsia --version\nsomething else\n```", "printed"),
        ("```sh\nintarsia inspect nothing.pt2\n```", "ended with 2"),
    ],
)
def test_an_example_that_is_wrong_is_found(text: str, message: str, folder: Path) -> None:
    page = folder / "page.md"
    page.write_text(text + "\n")
    (example,) = read_examples(page)
    with pytest.raises(Exception, match=message):
        example.evaluate()


def test_the_blocks_of_a_page_share_names_and_files(folder: Path) -> None:
    page = folder / "page.md"
    blocks = ["x = 2", ">>> x + 1\n3", "# part.py\ny = 5", "import part\n\nz = part.y", ">>> z\n5"]
    page.write_text("".join(f"```python\n{block}\n```\n\n" for block in blocks))
    examples = read_examples(page)
    assert len(examples) == len(blocks)
    for example in examples:
        example.evaluate()
