"""Progress without a terminal is one plain line for each step."""

from __future__ import annotations

import pytest
from rich.progress import Progress

from intarsia.cli.console import _TimeColumn, activity, error_console, output_console, progress_reporter


def test_progress_without_a_terminal_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_reporter("building engines") as report:
        report(1, 2, "openvino_1 [b]")
        report(2, 2, "")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "building engines: 1 of 2\nbuilding engines: 2 of 2\n"


def test_many_steps_without_a_terminal_are_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_reporter("timing") as report:
        for done in [*range(43), 42]:
            report(done, 42, "")
    counts = [int(line.split()[1]) for line in capsys.readouterr().err.splitlines()]
    assert counts == [0, 5, 10, 15, 20, 25, 30, 35, 40, 42]


def test_what_goes_on_before_the_first_step_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_reporter("building engines", before="capturing [x]") as report:
        report(0, 1, "openvino_0")
    assert capsys.readouterr().err == "capturing [x]\nbuilding engines: 0 of 1\n"


def test_an_activity_without_a_terminal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with activity("saving [m].pt2"):
        pass
    assert capsys.readouterr().err == "saving [m].pt2\n"


def test_a_terminal_that_cannot_draw_gets_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    with activity("saving m.pt2"), progress_reporter("building engines") as report:
        report(1, 2, "")
    assert capsys.readouterr().err == "saving m.pt2\nbuilding engines: 1 of 2\n"


def test_no_color_is_honoured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    error_console().print("text", style="bold red")
    assert capsys.readouterr().err == "\x1b[1;31mtext\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    error_console().print("text", style="bold red")
    assert capsys.readouterr().err == "text\n"


def test_a_message_without_a_terminal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error_console().print("word " * 100)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_time_left_is_told_once_it_is_known() -> None:
    seconds = iter(range(0, 100, 5))
    progress = Progress(_TimeColumn(), get_time=lambda: next(seconds))
    bar = progress.add_task("building engines", total=4)
    (task,) = progress.tasks
    assert "left" not in _TimeColumn().render(task).plain
    progress.update(bar, completed=1)
    progress.update(bar, completed=2)
    assert _TimeColumn().render(task).plain == "0:00:10 left"


def test_progress_on_a_terminal_is_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress_reporter("building engines") as report:
        report(1, 2, "openvino_0")
    assert "building engines: 1 of 2" in capsys.readouterr().err


def test_an_activity_whose_length_is_told_is_a_bar_on_a_terminal_and_one_line_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with activity("saving m.pt2") as report:
        report(3, 4, "weight_0")
    assert capsys.readouterr().err == "saving m.pt2\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with activity("saving m.pt2") as report:
        report(0, 4, "weight_0")
        unknown = capsys.readouterr().err
        report(4, 4, "")
    assert "━" * 40 in capsys.readouterr().err
    assert "━" * 40 not in unknown


def test_lines_without_a_terminal_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output_console().width == 160


def test_columns_say_how_wide_lines_are_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert output_console().width == 72
