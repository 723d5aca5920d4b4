"""Programs in `.pte` files against those in `.pt2` files and eager torch, in a child process: see `scenarios`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("executorch") is None, reason="executorch is not installed: the extra intarsia[pte]"
)


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each scenario found."""
    folder = tmp_path_factory.mktemp("pte")
    results = folder / "results.json"
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    command = [sys.executable, "-W", "error", Path(__file__).with_name("scenarios.py"), results]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    if run.returncode != 0:
        found["ended"] = f"with {run.returncode} after {list(found)}:\n{run.stderr[-2000:]}"
    return found


def found(child: dict[str, Any], scenario: str) -> Any:
    assert scenario in child, f"the child ended {child.get('ended')}"
    assert "raised" not in child[scenario], child[scenario]["raised"]
    return child[scenario]["found"]


def test_the_child_ends_well(child: dict[str, Any]) -> None:
    assert "ended" not in child, child["ended"]


def test_engines_answer_to_the_bit_in_every_size(child: dict[str, Any]) -> None:
    facts = found(child, "engines_alone")
    assert facts["equal"] == [True, True, True]
    assert facts["shapes"] == [[64, 4], [1, 4], [5, 4]]
    assert facts["flat"], "through ExecuTorch's own runtime"


def test_the_bytes_of_an_engine_are_untouched(child: dict[str, Any]) -> None:
    facts = found(child, "engines_alone")
    assert facts["untouched"]
    assert facts["delegates"] == ["OpenvinoBackend"]


def test_calls_take_and_give_the_models_own_structure(child: dict[str, Any]) -> None:
    facts = found(child, "convention")
    assert facts["structures"] == [[["y", "more"], "list", None]] * 3
    assert facts["delegates"] == ["OpenvinoBackend", "XnnpackBackend"]


def test_state_starts_with_its_values_and_lasts(child: dict[str, Any]) -> None:
    facts = found(child, "convention")
    assert max(facts["errors"]) < 1e-5
    assert max(facts["reset"], facts["session"], facts["flat"]) < 1e-5


def test_wrong_arguments_are_told_as_by_the_program_of_a_pt2(child: dict[str, Any]) -> None:
    told = found(child, "convention")["told"]
    assert len(told) == 6
    for one, other in told:
        assert one == other
        assert one.startswith("ArgumentError: ")


def test_state_cannot_be_read(child: dict[str, Any]) -> None:
    assert found(child, "convention")["state"].startswith("StateError: state of an ExecuTorch program: ")


def test_outputs_of_engines_have_the_sizes_of_the_call(child: dict[str, Any]) -> None:
    errors = found(child, "changing_sizes")
    assert len(errors) == 8
    assert max(errors) < 1e-5


def test_sizes_at_the_ends_of_their_ranges_are_taken(child: dict[str, Any]) -> None:
    facts = found(child, "ends_of_ranges")
    assert facts["shapes"] == [True] * 6
    assert max(facts["errors"]) < 1e-6


def test_sizes_beyond_their_ranges_are_told_as_by_the_program_of_a_pt2(child: dict[str, Any]) -> None:
    told = found(child, "ends_of_ranges")["told"]
    assert [one == other for one, other in told] == [True] * 4
    assert "found size 5 in dimension 0 (shape [5, 2, 8]), expected 1 to 4" in told[0][1]
    assert "found size 10 in dimension 1 (shape [1, 10, 8]), expected 2 to 9" in told[1][1]


def test_sizes_of_what_is_split_stay_open(child: dict[str, Any]) -> None:
    facts = found(child, "operators_that_return_lists")
    assert len(facts["errors"]) == 8
    assert max(facts["errors"]) < 1e-6
    assert facts["unchanged"], "the program that was saved"


def test_a_partitioner_that_fixes_a_size_is_refused(child: dict[str, Any]) -> None:
    told = found(child, "operators_that_return_lists")["fixed"]
    assert "input 'x': found that ExecuTorch or a partitioner fixes its size in dimension 0 at 16" in told


def test_engines_compute_in_the_precision_that_they_were_compiled_for(child: dict[str, Any]) -> None:
    facts = found(child, "precision")
    assert facts["equal"] == [True, True]
    assert facts["error"] < 1e-5
    assert facts["differ"] == facts["has bf16"]


def test_positions_in_range_are_read(child: dict[str, Any]) -> None:
    facts = found(child, "positions")
    assert facts["engines"] > 0
    assert facts["equal"] == [True] * 9


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (
            "above",
            "input 'tokens': found index 10, which is out of bounds for dimension 0 with size 10, expected 0 to 9",
        ),
        (
            "below",
            "input 'tokens': found index -1, which is out of bounds for dimension 0 with size 10, expected 0 to 9",
        ),
        (
            "back",
            "input 'places': found index -7, which is out of bounds for dimension 0 with size 6, expected -6 to 5",
        ),
        ("on", "input 'places': found index 6, which is out of bounds for dimension 0 with size 6, expected -6 to 5"),
    ],
)
def test_inputs_that_are_positions_out_of_range_are_told(child: dict[str, Any], what: str, told: str) -> None:
    facts = found(child, "positions")
    assert facts["told"][what].startswith(f"PositionError: {told}")
    assert facts["told before"][what].startswith("PositionError: ")


@pytest.mark.parametrize("what", ["computed", "computed below"])
def test_computed_positions_out_of_range_end_the_call(child: dict[str, Any], what: str) -> None:
    facts = found(child, "positions")
    assert facts["told before"][what].startswith("PositionError: ")
    assert facts["told"][what].startswith("EngineError: method 'forward': found that ExecuTorch cannot run it")


def test_executorchs_own_runtime_refuses_positions_out_of_range(child: dict[str, Any]) -> None:
    flat = found(child, "positions")["flat"]
    assert len(flat) == 6
    assert all("failed with error 0x12" in told for told in flat)


def test_one_methods_activations_do_not_reach_the_state_of_another(child: dict[str, Any]) -> None:
    facts = found(child, "methods_on_one_state")
    assert facts["methods"] == ["write", "read"]
    assert len(facts["errors"]) == 12
    assert len(facts["plain"]) == 6
    assert max(*facts["errors"], *facts["plain"]) < 1e-4
    assert facts["call"].startswith("ConventionError: program of the methods write, read: found a call without")
    assert facts["unknown"].endswith("Did you mean 'read'?")


def test_computed_numbers_select_parts(child: dict[str, Any]) -> None:
    facts = found(child, "computed_numbers")
    assert len(facts["errors"]) == 12
    assert max(facts["errors"]) < 1e-6
    assert facts["beyond"].startswith("EngineError: method 'forward': found that ExecuTorch cannot run it")


def test_engines_take_tensors_without_dimensions(child: dict[str, Any]) -> None:
    assert found(child, "tensors_without_dimensions") == [[True, [3, 4]], [True, []]]


def test_position_decides_what_an_engine_takes_and_gives(child: dict[str, Any]) -> None:
    facts = found(child, "positions_of_inputs")
    assert facts == {"swapped": [True, True], "twice": [True, True], "unused": True}


def test_the_edge_is_executorchs_own(child: dict[str, Any]) -> None:
    facts = found(child, "the_edge")
    assert facts["types"] == [True, ["read", "write"], True]
    assert facts["constants"] == ["intarsia_description", "length"]
    assert facts["record"]


def test_partitioners_take_what_engines_leave_by_method(child: dict[str, Any]) -> None:
    portable, partly = found(child, "the_edge")["delegates"]
    assert portable == {"read": ["OpenvinoBackend"], "write": ["OpenvinoBackend"]}
    assert partly == {"read": ["OpenvinoBackend", "XnnpackBackend"], "write": ["OpenvinoBackend"]}


def test_engines_can_stay_the_operators_that_they_were_of(child: dict[str, Any]) -> None:
    facts = found(child, "engines_as_source")
    assert len(facts["errors"]) == 6
    assert max(facts["errors"]) < 1e-4
    assert facts["delegates"] == ["XnnpackBackend"]
    assert facts["claimed"] == {"read": ["XnnpackBackend"]}


def test_an_engine_without_a_runtime_is_named_or_stays_torch(child: dict[str, Any]) -> None:
    facts = found(child, "engines_as_source")
    for told in (facts["compiled standin"], facts["edge"]):
        assert "engine 'standin_0': found an engine of the backend 'standin', which ExecuTorch has no runtime" in told
        assert "engines='source'" in told
    assert facts["standin"] < 1e-5


def test_an_unknown_form_of_engines_is_told(child: dict[str, Any]) -> None:
    facts = found(child, "engines_as_source")
    assert "engines: found 'sources', expected 'compiled' or 'source'. Did you mean 'source'?" in facts["no form"]
    assert "Did you mean 'compiled'?" in facts["edge form"]
    assert "standin.pt2: found engines='source', expected it for a .pte file only" in facts["pt2"]


@pytest.mark.parametrize("manager", ["at once", "transformed", "partitioned"])
def test_state_is_planned_rightly_without_a_word(child: dict[str, Any], manager: str) -> None:
    assert found(child, "plans")["errors"][manager] < 1e-5


@pytest.mark.parametrize("config", ["own", "by method"])
def test_a_plan_that_would_overwrite_state_is_refused(child: dict[str, Any], config: str) -> None:
    told = found(child, "plans")["told"][config]
    assert told.startswith("ConventionError: ExecuTorch's memory plan: found a plan of its own for each of several")


def test_a_single_method_may_be_planned_in_any_way(child: dict[str, Any]) -> None:
    assert found(child, "plans")["single"] == {"write": ["OpenvinoBackend"]}


def test_a_partitioner_whose_specs_name_another_method_is_refused(child: dict[str, Any]) -> None:
    facts = found(child, "partitioners")
    assert facts["each its own"] == facts["shared without a name"] == "no error"
    told = "ConventionError: method 'write', partitioner Named: found a compile spec in it that names the method 'read'"
    assert facts["shared"].startswith(told)
    assert "Give each method a partitioner of its own" in facts["shared"]
    assert "method 'read', partitioner Named: found a compile spec in it that names" in facts["swapped"]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("none", "partitioners: found an int, expected lists of ExecuTorch's partitioners"),
        ("no list", "partitioners: found a Named in the place of a list"),
        ("constant", "constant method 'read': found a name that is taken"),
        ("description", "constant method 'intarsia_description': found a name that is taken"),
    ],
)
def test_what_is_no_partitioner_or_has_a_taken_name_is_told(child: dict[str, Any], what: str, told: str) -> None:
    assert f"ConventionError: {told}" in found(child, "partitioners")[what]


def test_bodies_of_operators_run(child: dict[str, Any]) -> None:
    facts = found(child, "control_flow")
    assert facts["engines"] > 0
    assert len(facts["errors"]) == 4
    assert max(facts["errors"]) < 1e-5


def test_sizes_that_are_computed_need_a_bound(child: dict[str, Any]) -> None:
    facts = found(child, "computed_sizes")
    assert facts["bounded"] == [1.0, 2.0]
    assert facts["number"] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]
    assert facts["unbounded"].startswith("ConventionError: method 'forward', size u0: found any number from 0 on")


def test_a_partitioner_that_claims_an_engine_is_refused(child: dict[str, Any]) -> None:
    assert "engine 'openvino_0': found it in a delegate of Greedy" in found(child, "claimed_engines")


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("write", "MutationError: method 'forward', input 'x': found a write to it"),
        ("unknown", "intarsia_tests::unknown"),
        ("unbounded", "found any number from 2 on, expected an upper bound"),
        ("payloads", "FormatError: old.pte: found payloads=False"),
        ("without payloads", "engine 'openvino_0': found no compiled form"),
        ("method", "ConventionError: partitioners: found some for the method 'forwards'"),
        ("folder", "FormatError: nowhere/model.pte: found no folder there"),
    ],
)
def test_what_cannot_be_saved_is_told_and_the_old_file_left_whole(child: dict[str, Any], what: str, told: str) -> None:
    facts = found(child, "refusals")
    assert told in facts[what]
    assert facts["old"] == "what was there"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("nothing", "no error"),
        ("number", "found 1 inputs and outputs, expected those of (f32["),
        ("order", "found shape [64, 4] as input 0"),
        ("dtype", "found a tensor of type INT and shape [64, 8] as input 0"),
        ("shape", "found shape [64, 9] as input 0"),
        ("room", "found room for [3, 4] in output 0, expected room for [64, 4]"),
        ("layout", "found input 0 with its dimensions in the order [1, 0]"),
    ],
)
def test_a_delegate_that_is_not_as_its_engine_is_found(child: dict[str, Any], change: str, told: str) -> None:
    facts = found(child, "arity")
    assert told in facts[change]
    assert change == "nothing" or facts[change].startswith("EngineError: delegate 'openvino_0': ")


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("cut", "FormatError: cut.pte: found "),
        ("short", "FormatError: short.pte: found 20 bytes, where its header says "),
        ("last byte", "FormatError: last byte.pte: found 47 bytes after its last segment"),
        ("seal", "FormatError: seal.pte: found no seal at its end"),
        ("small seal", "UnsupportedVersion: small seal.pte: found format version 99"),
        ("longer", "FormatError: longer.pte: found 49 bytes after its last segment"),
        ("longer edge", "FormatError: longer edge.pte: found 100 bytes after its last segment"),
        ("empty", "FormatError: empty.pte: found an empty file"),
        ("other", "FormatError: other.pte: found a NumPy array"),
        ("zip", "FormatError: zip.pte: found an archive that is cut short or damaged"),
        ("changed", "FormatError: changed.pte: found bytes that do not match its SHA-256"),
        ("noise", "FormatError: noise.pte: found a program that cannot be read"),
        ("foreign", "FormatError: foreign.pte: found a file of another tool"),
        ("newer", "UnsupportedVersion: newer.pte: found format version 99"),
        ("missing", "FormatError: missing.pte: found no file"),
        ("ending", "FormatError: whole.pt2: found an ExecuTorch program"),
        ("verify", "FormatError: edge.pte: found a file without hashes"),
        ("rebuild", "FormatError: whole.pte: found a .pte file, which has no portable forms of engines"),
    ],
)
def test_a_file_that_is_not_right_is_told_before_native_code_sees_it(
    child: dict[str, Any], file: str, told: str
) -> None:
    assert told in found(child, "foreign_files")[file]


def test_one_flipped_bit_is_found_wherever_it_is(child: dict[str, Any]) -> None:
    for told in found(child, "foreign_files")["flips"]:
        assert told.startswith("FormatError: flipped.pte: found "), told
        assert "Copy or save the file again" in told or "file of an unknown kind" in told, told


def test_files_with_and_without_hashes_run(child: dict[str, Any]) -> None:
    assert found(child, "foreign_files")["equal"]


def test_a_file_in_the_place_of_the_one_that_was_loaded_is_not_run(child: dict[str, Any]) -> None:
    assert (
        "found another file in its place, expected the file that was loaded"
        in found(child, "foreign_files")["replaced"]
    )


def test_differences_are_told_across_kinds_of_files(child: dict[str, Any]) -> None:
    same = [0, ["no difference"]]
    other = [1, ["signature, size s0", "  - 0 to 8", "  + 0 to 9"]]
    assert found(child, "differences") == [same, same, other]


def test_a_file_tells_what_it_holds(child: dict[str, Any]) -> None:
    facts = found(child, "command_line")
    code, one = facts["one"]
    assert code == 0
    assert [leaf["name"] for leaf in one["inputs"]] == ["x", "more[0]", "more[1]", "n", "flag"]
    assert [leaf["type"] for leaf in one["outputs"]][:2] == ["f32[6, 4] at most", "f32[6] at most"]
    assert one["outputs"][-1]["type"] == "None"
    assert {engine["backend"] for engine in one["engines"]} == {"openvino"}
    assert one["operators"]["delegate OpenvinoBackend"] == len(one["engines"])
    assert [entry["name"] for entry in one["state"]] == ["count"]
    assert one["versions"]["executorch"]
    assert sum(name.endswith("(OpenvinoBackend)") for name in one["stored"]) == len(one["engines"])
    assert sorted(facts["several"][1]["methods"]) == ["read", "write"]
    assert facts["drawn"][0] == 0
    assert any("kernel or delegate" in line for line in facts["drawn"][1])


def test_answers_are_compared_with_the_model(child: dict[str, Any]) -> None:
    facts = found(child, "verification")
    assert facts["right"]["ok"], facts["right"]
    assert facts["right"]["calls"] == 12
    told = {check["name"]: check["detail"] for check in facts["right"]["parity"] if check["ok"] is None}
    assert set(told.values()) == {"the file holds no graph"}
    assert "state 'count' cannot be read: it is compared by what later calls answer" in facts["right"]["findings"]
    assert not facts["wrong"]["ok"]
    assert facts["several"]["ok"], facts["several"]
    assert facts["several"]["in_turn"]["calls"] == 6
    assert not facts["unlike"]["ok"], "its cache begins with other values"
    assert "found no model to compare its answers with" in facts["alone"]


def test_commands_take_it(child: dict[str, Any]) -> None:
    facts = found(child, "verification")
    assert {name: code for name, (code, _) in facts["commands"].items()} == {"run": 0, "bench": 0, "verify": 2}
    assert "--against TARGET" in facts["commands"]["verify"][1]
    assert "nested.pte" in facts["graph"]


def test_check_tells_whether_a_file_runs_here(child: dict[str, Any]) -> None:
    facts = found(child, "command_line")
    assert facts["check"] == [0, ["runs here"]]
    assert facts["json"][1]["verdict"] == "runs"
    assert facts["without"] == [1, ["cannot run here:", "  no package executorch"]]
    assert facts["damaged"][0] == 2
    assert "damaged.pte: found" in " ".join(facts["damaged"][1])


def test_engines_for_another_machine_are_refused_before_native_code_sees_them(child: dict[str, Any]) -> None:
    facts = found(child, "command_line")
    told = "engine 'openvino_0': it was built for a Z80, and a .pte holds no portable form to rebuild it from"
    assert facts["other"][0] == 1
    assert facts["other"][1][:2] == ["cannot run here:", f"  {told}"]
    assert facts["load"].startswith(f"EngineRefused: one.pte: found {told}")
