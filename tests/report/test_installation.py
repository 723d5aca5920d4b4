"""What is installed, and what would have to be."""

from __future__ import annotations

import pytest
from rich.console import Console

from intarsia.report import installation
from intarsia.report.installation import InstallationFacts, PartFacts, draw_installation, extra_requirements


def test_requirements_of_an_extra_come_with_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ["numpy", 'bead-lib<3,>=2 ; extra == "bead"', "other; extra == 'bead'", 'more>=1; extra == "beads"']
    monkeypatch.setattr(installation, "requires", lambda name: told)
    assert extra_requirements("bead") == {"bead-lib": "<3,>=2", "other": ""}


def test_the_openvino_extra_is_the_one_of_the_package() -> None:
    assert extra_requirements("openvino")["openvino"] == "<2026,>=2025.4"


def test_versions_are_looked_up_and_may_be_missing() -> None:
    versions = installation.installed_versions(("torch", "a-package-that-is-not-there"))
    assert versions["torch"].startswith("2.")
    assert versions["a-package-that-is-not-there"] == ""


def test_an_installation_is_sound_until_something_installed_fails() -> None:
    missing = PartFacts("bead", "backend", "missing", {"bead-lib": ""}, "pip install 'bead-lib>=2'")
    broken = PartFacts("pt2", "format", "broken", {}, "ValueError: wrong")
    assert InstallationFacts({}, (missing,)).is_sound
    assert not InstallationFacts({}, (missing, broken)).is_sound


def test_the_drawing_tells_state_versions_and_cure() -> None:
    part = PartFacts("bead", "backend", "missing", {"bead-lib": "", "other": "1.5"}, "pip install 'bead-lib[x]>=2'")
    console = Console(width=160)
    with console.capture() as capture:
        console.print(draw_installation(InstallationFacts({"python": "3.10.1"}, (part,))))
    text = capture.get()
    for expected in ("python", "3.10.1", "bead-lib -, other 1.5", "missing", "pip install 'bead-lib[x]>=2'"):
        assert expected in text
