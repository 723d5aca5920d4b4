"""What is written before the bytes of an engine, for OpenVINO to read."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from intarsia.core.backend import BuiltEngine
from intarsia.core.container import EngineContainer, pack_engine
from intarsia.formats.pte.properties import with_properties


def parts(options: dict[str, Any], signature: str = "(f32[3], i64[]) -> (f32[3])") -> tuple[ET.Element, bytes]:
    built = BuiltEngine(b"the\npayload", source=None, backend_version="1", target="CPU", options=options)
    data = pack_engine(built, name="openvino_0", backend="openvino", signature=signature)
    head, _, payload = with_properties(EngineContainer.unpack(memoryview(data))).partition(b"\n")
    return ET.fromstring(head.decode()), payload  # noqa: S314 - our own text


def settings(options: dict[str, Any]) -> dict[str, str]:
    head, _ = parts(options)
    return {config.attrib["key"]: config.attrib["value"] for config in head.findall("hetero_config/config")}


def test_the_payload_follows_untouched() -> None:
    assert parts({})[1] == b"the\npayload"


def test_the_precision_is_f32_unless_another_was_asked_for() -> None:
    assert settings({}) == {"INFERENCE_PRECISION_HINT": "f32"}
    assert settings({"INFERENCE_PRECISION_HINT": "bf16"}) == {"INFERENCE_PRECISION_HINT": "bf16"}


@pytest.mark.parametrize(("value", "text"), [(True, "YES"), (False, "NO"), (2, "2"), ('<"&\n', '<"&\n')])
def test_a_value_is_written_as_openvino_reads_it(value: Any, text: str) -> None:
    assert settings({"PROPERTY": value})["PROPERTY"] == text


def test_what_is_no_property_or_names_a_place_is_left_out() -> None:
    assert settings({"positions": [], "widened": {}, "WEIGHTS_PATH": "elsewhere"}).keys() == {
        "INFERENCE_PRECISION_HINT"
    }


def test_every_input_and_output_is_that_of_the_engine() -> None:
    head, _ = parts({})
    for kind, count in (("inputs", 2), ("outputs", 1)):
        pairs = head.findall(f"{kind}_to_submodels_{kind}/pair")
        assert [pair.attrib for pair in pairs] == [{"submodel_idx": "0", "node_idx": str(i)} for i in range(count)]
