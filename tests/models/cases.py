"""Real models: how each is made, what it is called with, and which of its sizes are dynamic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from tests.models.networks import load_face_landmarks, load_face_proposals, load_voice_detector, load_voice_stream
from torch.export import Dim

Call = tuple[tuple[Any, ...], dict[str, Any]]
VOCABULARY = 64
BATCH = Dim("batch", min=1, max=16)
LENGTH, TARGET = Dim("length", min=2, max=32), Dim("target", min=2, max=32)
TEXT = {0: BATCH, 1: LENGTH}


@dataclass(frozen=True)
class Case:
    """A model and its calls.

    Attributes:
        build: Makes the model, the same one each time.
        draw: Makes a call of given sizes.
        sizes: Sizes of the calls; the first one is the example of the capture.
        dynamic_shapes: As `torch.export.export` takes them.
    """

    build: Callable[[], torch.nn.Module]
    draw: Callable[..., Call]
    sizes: tuple[tuple[int, ...], ...]
    dynamic_shapes: Any = None

    def calls(self) -> list[Call]:
        """A call of each size, the same ones each time."""
        torch.manual_seed(0)
        return [self.draw(*sizes) for sizes in self.sizes]


def build_seeded(kind: Any, config: Any) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        torch.manual_seed(0)
        model: torch.nn.Module = kind(config).eval()
        return model

    return build


def draw_window(batch: int) -> Call:
    return (torch.randn(batch, 576) / 10, (torch.randn(batch, 128), torch.randn(batch, 128))), {}


def draw_chunk() -> Call:
    return (torch.randn(1, 512) / 10,), {}


def draw_image(batch: int, height: int, width: int) -> Call:
    return (torch.randn(batch, 3, height, width),), {}


def draw_text(batch: int, length: int) -> Call:
    """The last token of the first text is padding."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, -1] = 0
    return (), {"input_ids": torch.randint(2, VOCABULARY, (batch, length)), "attention_mask": mask}


def draw_translation(batch: int, length: int, target: int) -> Call:
    _, keywords = draw_text(batch, length)
    return (), {**keywords, "decoder_input_ids": torch.randint(2, VOCABULARY, (batch, target))}


T5 = transformers.T5Config(
    vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, decoder_start_token_id=0,
    use_cache=False,
)  # fmt: skip
LLAMA = transformers.LlamaConfig(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
)  # fmt: skip
VIT = transformers.ViTConfig(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8,
    num_labels=5, output_hidden_states=True,
)  # fmt: skip

# Heights and widths are even because PNet's first pool rounds up: torch needs to know whether there is a rest.
HALF_SIZES = {2: 2 * Dim("half_height", min=8, max=64), 3: 2 * Dim("half_width", min=8, max=64)}

CASES: Mapping[str, Case] = {
    "silero-vad": Case(load_voice_detector, draw_window, ((2,), (1,), (16,)), ({0: BATCH}, ({0: BATCH}, {0: BATCH}))),
    "silero-vad, state in buffers": Case(load_voice_stream, draw_chunk, ((), (), (), ())),
    "PNet": Case(load_face_proposals, draw_image, ((2, 40, 50), (1, 16, 16), (3, 56, 64)), ({0: BATCH, **HALF_SIZES},)),
    "ONet": Case(load_face_landmarks, draw_image, ((2, 48, 48), (1, 48, 48), (16, 48, 48)), ({0: BATCH},)),
    "T5": Case(
        build_seeded(transformers.T5ForConditionalGeneration, T5),
        draw_translation,
        ((3, 7, 5), (1, 2, 3), (16, 32, 2), (2, 9, 32)),
        {"input_ids": TEXT, "attention_mask": TEXT, "decoder_input_ids": {0: BATCH, 1: TARGET}},
    ),
    "Llama": Case(
        build_seeded(transformers.LlamaForCausalLM, LLAMA),
        draw_text,
        ((3, 7), (1, 2), (16, 32), (2, 9)),
        {"input_ids": TEXT, "attention_mask": TEXT},
    ),
    "ViT": Case(
        build_seeded(transformers.ViTForImageClassification, VIT),
        draw_image,
        ((2, 32, 32), (1, 32, 32), (16, 32, 32)),
        ({0: BATCH},),
    ),
}
