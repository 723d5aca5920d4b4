"""Files with parts changed at random: each answers as the good one does, or is refused by an error of intarsia."""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from builders.good_files import CALLS, GoodFile, read_good_files, write_good_files
from builders.mutations import MUTATIONS, applies, mutate_file
from builders.trial import COMMANDS, Fault, Trial, try_file

CHECKED = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[GoodFile]:
    folder = tmp_path_factory.mktemp("good")
    write_good_files(folder)
    return read_good_files(folder)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """torch logs and warns of what it overlooks."""
    logging.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", MUTATIONS)
@given(seed=st.integers(0, 2**32))
@CHECKED
def test_a_changed_file_answers_the_same_or_is_refused(
    name: str, seed: int, good: list[GoodFile], tmp_path: Path
) -> None:
    draw = random.Random(seed)  # noqa: S311 - no secret
    chosen = draw.choice([one for one in good if applies(name, one)])
    path = tmp_path / "changed.pt2"
    is_honest = mutate_file(draw, chosen, path, name)
    try_file(Trial(path, chosen, is_honest), [draw.choice(COMMANDS[:3])])


@pytest.mark.parametrize("kind", CALLS)
def test_good_files_answer(kind: str, good: list[GoodFile]) -> None:
    chosen = next(one for one in good if one.kind == kind)
    assert try_file(Trial(chosen.path, chosen, is_honest=False), ["inspect", "diff"]) == "answers the same"


def test_other_answers_are_seen(good: list[GoodFile]) -> None:
    one, other = (next(found for found in good if found.kind == kind) for kind in ("engines", "small"))
    with pytest.raises(Fault, match="other answers"):
        Trial(one.path, one._replace(answers=other.answers), is_honest=False).load_and_call()
