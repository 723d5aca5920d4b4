"""The table of tensors in an archive."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from intarsia.errors import FormatError
from intarsia.formats.archive.payload import Payload, end_bytes, read_payloads, write_payloads

PAYLOAD = Payload("weight_3", 7, True, torch.bfloat16, torch.device("cpu"), True, (2, 3), (3, 1), 4)


def test_a_table_is_read_as_it_was_written() -> None:
    table = {"a": PAYLOAD, "b": PAYLOAD._replace(device=torch.device("cuda", 1), sizes=(), strides=(), offset=0)}
    assert read_payloads(write_payloads(table), "file") == table


def test_torch_understands_the_table() -> None:
    from torch._export.serde.schema import PayloadConfig
    from torch._export.serde.serialize import _dict_to_dataclass, serialize_tensor_meta

    tensor = torch.nn.Parameter(torch.zeros(10, dtype=torch.bfloat16)[4:].reshape(2, 3))
    config = _dict_to_dataclass(PayloadConfig, json.loads(write_payloads({"a": PAYLOAD}))).config["a"]
    assert config.tensor_meta == serialize_tensor_meta(tensor.detach().requires_grad_())
    assert (config.path_name, config.is_param, config.use_pickle) == ("weight_3", True, False)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "pickle": (lambda entry: entry.update(use_pickle=True), "pickled"),
    "no tensor": (lambda entry: entry.update(tensor_meta=None), "TypeError"),
    "layout": (lambda entry: entry["tensor_meta"].update(layout=1), "not dense"),
    "dtype": (lambda entry: entry["tensor_meta"].update(dtype=99), "KeyError"),
    "negative": (lambda entry: entry["tensor_meta"].update(storage_offset={"as_int": -1}), "-1 for a number"),
    "expression": (lambda entry: entry["tensor_meta"].update(storage_offset={"as_expr": "s0"}), "KeyError"),
    "truth": (lambda entry: entry["tensor_meta"]["sizes"].__setitem__(0, {"as_int": True}), "True for a number"),
    "strides": (lambda entry: entry["tensor_meta"]["strides"].pop(), "2 sizes and 1 strides"),
    "device": (lambda entry: entry["tensor_meta"]["device"].update(type="nowhere"), "RuntimeError"),
    "memory": (lambda entry: entry.pop("memory"), "KeyError"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_an_entry_that_is_no_dense_tensor_is_an_error(case: str) -> None:
    change, message = CHANGES[case]
    fields = json.loads(write_payloads({"a": PAYLOAD}))
    change(fields["config"]["a"])
    with pytest.raises(FormatError, match=rf"file: found a table of tensors that cannot be read .*{message}"):
        read_payloads(json.dumps(fields).encode(), "file")


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"config": []}', b'{"config": {"a": 1}}', b"\xff"])
def test_what_is_no_table_is_an_error(text: bytes) -> None:
    with pytest.raises(FormatError, match="file: found a table of tensors that cannot be read"):
        read_payloads(text, "file")


def test_the_end_is_that_of_the_last_element() -> None:
    tensor = torch.zeros(100).as_strided((3, 2), (10, 4), 5)
    assert end_bytes((3, 2), (10, 4), 5, 4) == (5 + 20 + 4 + 1) * 4
    assert tensor[2, 1].storage_offset() + 1 == 30
    assert end_bytes((3, 0), (10, 4), 5, 4) == 0
    assert end_bytes((), (), 5, 8) == 48
