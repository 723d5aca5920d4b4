"""OpenVINO engines in files of two methods: what the second one adds, and what is computed from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import intarsia
from intarsia.core.container import EngineContainer

pytest.importorskip("openvino")


class Model(nn.Module):
    """An embedding whose weights the last layer has too, and activations between two layers that stay in torch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(600, 128)
        self.up, self.down, self.head = nn.Linear(128, 512), nn.Linear(512, 128), nn.Linear(128, 600, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        result: torch.Tensor = self.head(x + self.down(nn.functional.gelu(self.up(x))))
        return result


@pytest.fixture(scope="module")
def programs() -> dict[str, torch.export.ExportedProgram]:
    model = Model().eval()
    shapes = {"prefill": ({1: Dim("length", min=2, max=64)},), "decode": None}
    return {
        name: intarsia.export(
            intarsia.compile(
                model,
                (torch.zeros(1, length, dtype=torch.int64),),
                dynamic_shapes=shapes[name],
                torch_executed_ops={"aten.gelu", "aten.embedding"},
            )
        )
        for name, length in (("prefill", 8), ("decode", 1))
    }


RUN = """
import sys, torch, intarsia
loaded = intarsia.load(sys.argv[1])
tokens = torch.arange(9)[None]
torch.save((loaded.prefill(tokens), loaded.decode(tokens[:, :1])), sys.argv[2])
"""


@pytest.mark.parametrize("payloads", [True, False])
def test_a_new_process_computes_what_is_computed_in_memory(
    programs: dict[str, torch.export.ExportedProgram], tmp_path: Path, payloads: bool
) -> None:
    path, results = tmp_path / "two.pt2", tmp_path / "results.pt"
    intarsia.save(programs, path, payloads=payloads)
    subprocess.run([sys.executable, "-c", RUN, path, results], check=True)
    tokens = torch.arange(9)[None]
    prefill, decode = torch.load(results)
    with torch.no_grad():
        assert torch.equal(prefill, programs["prefill"].module()(tokens))
        assert torch.equal(decode, programs["decode"].module()(tokens[:, :1]))
        torch.testing.assert_close(prefill, Model().eval()(tokens), rtol=1e-4, atol=1e-4)


def test_the_second_method_adds_less_than_5_percent(
    programs: dict[str, torch.export.ExportedProgram], tmp_path: Path
) -> None:
    paths = {names: tmp_path / f"{len(names)}.pt2" for names in (("prefill",), ("prefill", "decode"))}
    for names, path in paths.items():
        intarsia.save({name: programs[name] for name in names}, path, payloads=False)
    first, both = (path.stat().st_size for path in paths.values())
    weights = sum(tensor.nbytes for tensor in Model().state_dict().values()) - Model().head.weight.nbytes
    assert both < 1.05 * first
    assert both < 1.15 * weights, "something is stored twice"


def test_torch_alone_runs_an_engine_without_payload(
    programs: dict[str, torch.export.ExportedProgram], tmp_path: Path
) -> None:
    intarsia.save(programs["prefill"], tmp_path / "one.pt2", payloads=False)
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        result = torch.export.load(tmp_path / "one.pt2").module()(tokens)
        assert torch.equal(result, programs["prefill"].module()(tokens))


def test_equal_partitions_have_equal_sources() -> None:
    """Whatever their place in the model, and whatever was built before."""

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.silu(nn.functional.gelu(nn.functional.silu(x) * 3)) * 3

    hybrid = intarsia.compile(Twice(), (torch.randn(2, 8),), torch_executed_ops={"aten.gelu"})
    program = intarsia.export(hybrid)
    first, second = (EngineContainer.unpack(data.numpy().data) for data in program.constants.values())
    assert (first.name, second.name) == ("openvino_0", "openvino_1")
    assert first.identity == second.identity
    assert first.source == second.source
