"""Which operators are blamed for what OpenVINO does not convert."""

from __future__ import annotations

import pytest
import torch
from tests.engines.conformance import Calls, export

from intarsia.engines.openvino.refusal import refused_conversion


@pytest.mark.parametrize(
    ("told", "blamed"),
    [
        ("Exception happened during conversion of operation getitem_1/getitem with schema", ("aten.split.Tensor",)),
        ("[PyTorch Frontend] No conversion rule found for operations: aten.relu.default", ("aten.relu.default",)),
        ("Exception happened during conversion of operation relu/aten.relu.default", ("aten.relu.default",)),
        ("something else", ()),
    ],
)
def test_the_operator_to_blame_is_named(told: str, blamed: tuple[str, ...]) -> None:
    program = export(Calls(lambda x: torch.relu(x.split(2)[1])), (torch.ones(4),))
    assert refused_conversion(RuntimeError(told), program.graph_module, program).operators == blamed
