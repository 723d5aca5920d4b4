"""Files with parts changed at random: each loads, or raises an error of intarsia."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import intarsia
from builders.hostile import Members, read_members, small_program
from builders.mutations import mutate_bytes, mutate_members
from intarsia.errors import IntarsiaError

CHECKED = settings(
    max_examples=80,
    deadline=20_000,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, program = tmp_path_factory.mktemp("good"), small_program()
    intarsia.save(program, folder / "ours.pt2")
    torch.export.save(program, folder / "foreign.pt2")
    return [folder / "ours.pt2", folder / "foreign.pt2"]


@pytest.fixture(scope="module")
def members(good: list[Path]) -> list[Members]:
    return [read_members(path) for path in good]


@pytest.fixture(autouse=True)
def quiet() -> None:
    """torch logs what it overlooks."""
    logging.getLogger("torch").setLevel(logging.CRITICAL)


def drawer(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - no secret


def loads(path: Path) -> bool:
    try:
        intarsia.load(path)
    except IntarsiaError as error:
        assert str(error).isprintable()  # noqa: PT017 - that it is raised is not required
        return False
    return True


@given(seed=st.integers(0, 2**32), which=st.sampled_from([0, 1]))
@CHECKED
def test_changed_values(seed: int, which: int, members: list[Members], tmp_path: Path) -> None:
    mutate_members(drawer(seed), tmp_path / "a.pt2", members[which])
    loads(tmp_path / "a.pt2")


@given(seed=st.integers(0, 2**32), which=st.sampled_from([0, 1]))
@CHECKED
def test_changed_bytes(seed: int, which: int, good: list[Path], tmp_path: Path) -> None:
    (tmp_path / "a.pt2").write_bytes(mutate_bytes(drawer(seed), good[which].read_bytes()))
    loads(tmp_path / "a.pt2")


def test_good_files_load(good: list[Path]) -> None:
    assert all(map(loads, good))
