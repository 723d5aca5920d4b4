"""Real models through ONNX Runtime: as hybrids and in files, equal to eager at several sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.models.cases import CASES

import intarsia


@pytest.mark.parametrize("name", ["ViT", "T5"])
def test_hybrid_and_file_answer_like_the_model(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    args, kwargs = case.calls()[0]
    hybrid = intarsia.compile(case.build(), args, kwargs, dynamic_shapes=case.dynamic_shapes, backend="onnxruntime")
    coverage = intarsia.coverage(hybrid)
    assert coverage.failed == ()
    assert sum(one.place != "torch" for one in coverage.placements) > 0.9 * len(coverage.placements)
    intarsia.save(intarsia.export(hybrid), tmp_path / "model.pt2")
    for subject in (hybrid, intarsia.load(tmp_path / "model.pt2")):
        model = case.build()
        with torch.no_grad():
            for args, kwargs in case.calls():
                torch.testing.assert_close(subject(*args, **kwargs), model(*args, **kwargs), rtol=1e-4, atol=1e-5)


def test_a_sentence_encoder_is_one_engine_or_a_hybrid_and_answers_alike() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=2000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=256)}
    tokens, mask = torch.randint(5, 2000, (3, 9)), torch.ones(3, 9, dtype=torch.int64)
    mask[0, 6:] = 0
    shapes = {"input_ids": sizes, "attention_mask": sizes}
    engines = []
    for kept in ((), ("aten.scaled_dot_product_attention",)):
        hybrid = intarsia.compile(
            model,
            kwargs={"input_ids": tokens, "attention_mask": mask},
            dynamic_shapes=shapes,
            torch_executed_ops=kept,
            backend="onnxruntime",
        )
        engines.append(len(intarsia.coverage(hybrid).engines))
        for rows, length in ((3, 9), (1, 2), (2, 40)):
            calls = {
                "input_ids": torch.randint(5, 2000, (rows, length)),
                "attention_mask": torch.ones(rows, length).long(),
            }
            with torch.no_grad():
                found, expected = hybrid(**calls), model(**calls)
            torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, rtol=1e-4, atol=1e-4)
    assert engines[0] < engines[1]
    assert engines[0] <= 2
