"""What a file says of itself."""

from __future__ import annotations

import json

import pytest
import torch

from intarsia.core.ledger import Entry, Ledger
from intarsia.errors import FormatError
from intarsia.formats.archive.writer import MemberEntry
from intarsia.formats.contents import Contents, Method
from intarsia.formats.description import describe


@pytest.fixture(scope="module")
def contents() -> Contents:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    ledger = Ledger((Entry("node", "relu", "kept", "relu"),)).to_json()
    facts = {"prefill": {"ledger": ledger}, "decode": {"coverage": {"placements": []}}}
    methods = {name: Method(name, describe(program, (), known)) for name, known in facts.items()}
    return Contents(methods, {"models/decode.json": MemberEntry(3, "ab")})


def test_contents_are_read_as_they_were_written(contents: Contents) -> None:
    assert Contents.from_text(contents.to_text(), "file") == contents


def test_versions_stand_once(contents: Contents) -> None:
    fields = json.loads(contents.to_text())
    assert (fields["format_version"], fields["torch_version"]) == (1, torch.__version__)
    assert fields["methods"]["prefill"].keys() == {"program", "engines", "writes", "ledger", "coverage", "packages"}


def test_contents_without_a_method_are_an_error(contents: Contents) -> None:
    text = json.dumps({**json.loads(contents.to_text()), "methods": {}})
    with pytest.raises(FormatError, match=r"file: found a manifest that cannot be read \(it has no method\)"):
        Contents.from_text(text, "file")


@pytest.mark.parametrize("key", ["methods", "members", "torch_version"])
def test_a_part_that_is_missing_is_an_error(contents: Contents, key: str) -> None:
    fields = json.loads(contents.to_text())
    del fields[key]
    with pytest.raises(FormatError, match=rf"file: found a manifest that cannot be read \(KeyError: '{key}'"):
        Contents.from_text(json.dumps(fields), "file")


def changed(contents: Contents, *path: str | int, value: object) -> str:
    """The text of some contents with one value changed."""
    fields = json.loads(contents.to_text())
    place = fields
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(fields)


LIES: dict[str, tuple[tuple[str | int, ...], object, str]] = {
    "a text that steers the terminal": (("intarsia_version",), "\x1b[2J", r"the text '\\x1b\[2J'"),
    "text that turns round": (("methods", "prefill", "coverage"), {"a": "\u202e"}, r"the text '\\u202e'"),
    "a size that is a text": (
        ("members", "models/decode.json", "size_bytes"),
        "3",
        "size_bytes of MemberEntry is '3', a str",
    ),
    "a version that is a list": (("torch_version",), [], r"torch_version of Manifest is \[\], a list"),
    "members that are a list": (("members",), [], "AttributeError"),
    "engines that are numbers": (("methods", "prefill", "engines"), [1], "TypeError"),
    "packages that are a list": (("methods", "prefill", "packages"), [], "AttributeError"),
    "packages that are numbers": (("methods", "prefill", "packages"), {"a": 1}, "TypeError: 1 for a text"),
    "a coverage that is a list": (("methods", "decode", "coverage"), [], "TypeError"),
    "a coverage of nothing": (("methods", "decode", "coverage"), {}, "KeyError: 'placements'"),
    "half a placement": (("methods", "decode", "coverage", "placements"), [{"node": "a"}], "TypeError"),
    "a placement of numbers": (
        ("methods", "decode", "coverage", "placements"),
        [dict.fromkeys(["node", "operator", "place", "reason"], 1)],
        "node of OperatorPlacement is 1, a int",
    ),
    "removed operators that are numbers": (
        ("methods", "decode", "coverage"),
        {"placements": [], "removed": [[1, 2]]},
        "TypeError: 1 for a text",
    ),
    "removed operators that are no pairs": (
        ("methods", "decode", "coverage"),
        {"placements": [], "removed": ["abc"]},
        "ValueError: too many values",
    ),
    "a fate of no kind": (
        ("methods", "prefill", "ledger"),
        [Entry("node", "relu", "eaten", "relu")._asdict()],  # type: ignore[arg-type]
        "fate of Entry is 'eaten', a str",
    ),
    "a version before the first": (("format_version",), 0, "format version 0"),
    "fewer test vectors than none": (("test_vectors",), -1, "and -1 test vectors"),
    "an infinite format": (("format_version",), 1e400, "OverflowError|cannot be read"),
}


@pytest.mark.parametrize("case", LIES)
def test_values_of_another_kind_are_an_error(contents: Contents, case: str) -> None:
    path, value, message = LIES[case]
    with pytest.raises(FormatError, match=message) as raised:
        Contents.from_text(changed(contents, *path, value=value), "file")
    assert str(raised.value).isprintable()


def test_a_nested_manifest_is_an_error() -> None:
    with pytest.raises(FormatError, match="RecursionError"):
        Contents.from_text("[" * 100_000 + "]" * 100_000, "file")
