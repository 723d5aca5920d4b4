"""What works on this machine: backends and file formats, with versions, and how to get what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, Literal

from rich.console import Group, RenderableType

from intarsia.report.drawing import plain_table

State = Literal["works", "missing", "broken"]


@dataclass(frozen=True)
class PartFacts:
    """One backend or file format on this machine.

    Attributes:
        name: Its name, for instance "openvino".
        kind: "backend" or "format".
        state: "works" (a small model went through it rightly, or the note says that none was tried), "missing" (a
            package is not installed, or it needs something else that is not there) or "broken".
        versions: Package -> installed version, or "" when it is not installed.
        note: Command that installs what is missing, or what else is, or what went wrong.
    """

    name: str
    kind: Literal["backend", "format"]
    state: State
    versions: Mapping[str, str]
    note: str = ""


@dataclass(frozen=True)
class InstallationFacts:
    """What `intarsia doctor` tells.

    Attributes:
        versions: Python, torch and intarsia -> version.
        parts: Backends and formats.
    """

    versions: Mapping[str, str]
    parts: tuple[PartFacts, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing that is installed is broken."""
        return all(part.state != "broken" for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON values."""
        return asdict(self)


def extra_requirements(extra: str) -> dict[str, str]:
    """Packages that an extra of intarsia asks for: name -> version bounds.

    Example:
        >>> sorted(extra_requirements("openvino"))
        ['openvino']
    """
    found = {}
    for requirement in requires("intarsia") or ():
        package, _, marker = requirement.partition(";")
        if marker.replace("'", '"').strip() == f'extra == "{extra}"':
            name = _package_name(package)
            found[name] = package.strip().removeprefix(name)
    return found


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Package -> installed version, or "" when it is not installed."""
    return {package: _version(package) for package in packages}


def draw_installation(facts: InstallationFacts) -> RenderableType:
    """A table of versions, and one of backends and formats.

    Args:
        facts: What the command gathered.

    Returns:
        Something that a rich console prints.
    """
    rows = [
        (
            part.kind,
            part.name,
            part.state,
            ", ".join(f"{name} {v or '-'}" for name, v in part.versions.items()),
            part.note,
        )
        for part in facts.parts
    ]
    return Group(
        plain_table(("package", "version"), facts.versions.items()),
        plain_table(("kind", "name", "state", "versions", "note"), rows),
    )


def _package_name(requirement: str) -> str:
    end = next((i for i, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None)
    return requirement[:end]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
