"""Progress without a terminal is one plain line for each step."""

from __future__ import annotations

import pytest

from intarsia.cli.console import output_console, progress_reporter


def test_progress_without_a_terminal_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_reporter("building engines") as report:
        report(1, 2, "openvino_1 [b]")
        report(2, 2, "")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "building engines: 1/2 openvino_1 [b]\nbuilding engines: 2/2\n"


def test_progress_on_a_terminal_is_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_reporter("building engines") as report:
        report(1, 2, "openvino_0")
    assert "1/2" in capsys.readouterr().err


def test_lines_without_a_terminal_are_wide() -> None:
    assert output_console().width == 160
