"""Real models go the whole way: compiled, exported, saved, loaded, called at several sizes, compared with eager."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.models.cases import CASES, draw_chunk
from tests.models.networks import load_voice_stream
from transformers import modeling_outputs

import intarsia

OUTPUTS = {
    "T5": modeling_outputs.Seq2SeqLMOutput,
    "Llama": modeling_outputs.CausalLMOutputWithPast,
    "ViT": modeling_outputs.ImageClassifierOutput,
}
DOCUMENT = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


class Trip:
    """A hybrid of a model, and the file that it went to."""

    def __init__(self, name: str, path: Path) -> None:
        case = CASES[name]
        args, kwargs = case.calls()[0]
        self.path = path
        self.hybrid = intarsia.compile(case.build(), args, kwargs, dynamic_shapes=case.dynamic_shapes)
        intarsia.save(intarsia.export(self.hybrid), path)


@pytest.fixture(scope="module")
def trip_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trip]:
    return cache(lambda name: Trip(name, tmp_path_factory.mktemp("models") / "model.pt2"))


@pytest.mark.parametrize("name", CASES)
def test_hybrid_and_file_answer_like_the_model(name: str, trip_of: Callable[[str], Trip]) -> None:
    case, trip = CASES[name], trip_of(name)
    for subject in (trip.hybrid, intarsia.load(trip.path)):
        model = case.build()
        with torch.no_grad():
            for args, kwargs in case.calls():
                found, expected = subject(*args, **kwargs), model(*args, **kwargs)
                assert type(found) is type(expected)
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_file_is_verified(name: str, trip_of: Callable[[str], Trip]) -> None:
    case = CASES[name]
    result = intarsia.verify(trip_of(name).path, case.build(), inputs=case.calls()[1:3])
    assert result.ok, str(result)


@pytest.mark.skipif(f"torch {torch.__version__.split('+')[0]}," not in DOCUMENT, reason="measured with another torch")
@pytest.mark.parametrize("name", CASES)
def test_the_documented_coverage_is_what_is_found(name: str, trip_of: Callable[[str], Trip]) -> None:
    found = intarsia.coverage(trip_of(name).hybrid)
    row = re.search(rf"^\| {re.escape(name)} +\|([^|]+)\|([^|]+)\|([^|]+)\|", DOCUMENT, re.MULTILINE)
    assert row is not None
    inside = sum(placement.place != "torch" for placement in found.placements)
    assert [int(cell) for cell in row.groups()] == [inside, len(found.placements) - inside, len(found.engines)]


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_file_returns_the_models_own_class(name: str, trip_of: Callable[[str], Trip]) -> None:
    args, kwargs = CASES[name].calls()[1]
    expected = CASES[name].build()(*args, **kwargs)
    found = intarsia.load(trip_of(name).path)(*args, **kwargs)
    assert type(found) is OUTPUTS[name]
    assert list(found) == list(expected)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.to_tuple(), expected.to_tuple(), rtol=1e-4, atol=1e-5)


def test_a_new_process_imports_that_class_first(trip_of: Callable[[str], Trip]) -> None:
    script = (
        "import intarsia, sys, torch\n"
        "try: intarsia.load(sys.argv[1])\n"
        "except intarsia.errors.FormatError as error: print(error.found)\n"
        "import transformers.modeling_outputs\n"
        "print(type(intarsia.load(sys.argv[1])(torch.ones(3, 3, 32, 32))).__name__)\n"
    )
    command = [sys.executable, "-c", script, str(trip_of("ViT").path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "transformers.modeling_outputs.ImageClassifierOutput, which this process does not know" in lines[0]
    assert lines[1] == "ImageClassifierOutput"


def test_a_program_keeps_the_state_of_the_voice_stream(trip_of: Callable[[str], Trip]) -> None:
    name = "silero-vad, state in buffers"
    program, model = intarsia.load(trip_of(name).path), CASES[name].build()
    assert not any(program.state[state].any() for state in ("h", "c", "context"))
    with torch.no_grad():
        for _ in range(3):
            assert program(torch.zeros(1, 512)) < 0.1, "silence is no speech"
            model(torch.zeros(1, 512))
    for state in ("h", "c", "context"):
        torch.testing.assert_close(program.state[state], model.get_buffer(state), rtol=1e-4, atol=1e-5)
    assert program.state["h"].abs().max() > 0.01


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small calls wait for each other's threads longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("place", ["memory", "file"])
@pytest.mark.usefixtures("one_thread")
def test_the_voice_stream_kept_in_torch_equals_eager_for_a_thousand_chunks(place: str, tmp_path: Path) -> None:
    model = load_voice_stream()
    exported = intarsia.export(intarsia.compile(load_voice_stream(), *draw_chunk(), min_block_size=10**6))
    program = intarsia.Program(exported)
    if place == "file":
        intarsia.save(exported, tmp_path / "stream.pt2")
        program = intarsia.load(tmp_path / "stream.pt2")
    with torch.no_grad():
        for chunk in draw_sound(1000):
            assert torch.equal(program(chunk), model(chunk))
    for name, value in model.named_buffers():
        assert torch.equal(program.state[name], value), name


@pytest.mark.usefixtures("one_thread")
def test_the_voice_stream_through_engines_is_near_to_eager_for_a_thousand_chunks(
    trip_of: Callable[[str], Trip],
) -> None:
    program, model = intarsia.load(trip_of("silero-vad, state in buffers").path), load_voice_stream()
    heard = []
    with torch.no_grad():
        for chunk in draw_sound(1000):
            heard.append(program(chunk))
            torch.testing.assert_close(heard[-1], model(chunk), rtol=1e-4, atol=1e-5)
    assert torch.cat(heard).std() > 0.01, "the sound is not all the same to it"
    for name, value in model.named_buffers():
        torch.testing.assert_close(program.state[name], value, rtol=1e-4, atol=1e-5)


def draw_sound(chunks: int) -> Iterator[torch.Tensor]:
    """Chunks of a hum that comes and goes, in noise."""
    generator = torch.Generator().manual_seed(0)
    for index in range(chunks):
        time = (torch.arange(512) + 512 * index) / 16000
        hum = sum(torch.sin(2 * torch.pi * 120 * k * time) / k for k in range(1, 12))
        loudness = torch.sin(2 * torch.pi * time / 3).clamp(min=0)
        yield (0.2 * loudness * hum + 0.01 * torch.randn(512, generator=generator))[None]
