"""Which members the tensors of programs get: every byte once, and no two tensors made one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import pytest
import torch
from torch.export import ExportedProgram, export

from intarsia.formats.archive.payload import Payload
from intarsia.formats.tensors.storages import StoragePlan, plan_storages


class Reading(torch.nn.Module):
    """Reads buffers and parameters that a test gives it, each once."""

    def __init__(self, **state: torch.Tensor) -> None:
        super().__init__()
        for name, value in state.items():
            if isinstance(value, torch.nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)
        self.names = tuple(state)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            x = x + getattr(self, name).sum()
        return x


class Writing(Reading):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            getattr(self, name).add_(1)
        return x + getattr(self, self.names[0]).sum()


def program(model: torch.nn.Module) -> ExportedProgram:
    return export(model, (torch.ones(1),))


def plan(model: torch.nn.Module) -> tuple[StoragePlan, Mapping[str, Payload]]:
    made = plan_storages({"model": program(model)})
    payloads = made.payloads["model"]
    return made, {**payloads["weights"], **payloads["constants"]}


def sizes(made: StoragePlan) -> list[int]:
    return [member.data.numel() for member in made.members]


def read(made: StoragePlan, payload: Payload, kind: str = "weights") -> torch.Tensor:
    """The tensor of a payload, made of the member's chunks alone."""
    (member,) = [member for member in made.members if (member.kind, member.path) == (kind, payload.member)]
    data = bytearray(b"".join(member.chunks()))
    return torch.frombuffer(data, dtype=payload.dtype).as_strided(payload.sizes, payload.strides, payload.offset)


def test_tensors_that_share_memory_share_a_member() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    made, payloads = plan(Reading(whole=whole, turned=whole.t(), column=whole[:, 1], last=whole[2]))
    assert sizes(made) == [48]
    assert {payload.memory for payload in payloads.values()} == {0}
    for name, tensor in {"whole": whole, "turned": whole.t(), "column": whole[:, 1], "last": whole[2]}.items():
        assert torch.equal(read(made, payloads[name]), tensor)


def test_only_the_bytes_between_the_first_and_the_last_that_are_used_are_kept() -> None:
    base = torch.arange(1000.0)
    made, payloads = plan(Reading(view=base[100:110:3]))
    assert sizes(made) == [40]
    assert torch.equal(read(made, payloads["view"]), base[100:110:3])


def test_views_that_do_not_meet_have_a_member_each() -> None:
    base = torch.arange(1000.0)
    made, payloads = plan(Reading(front=base[:2], back=base[990:]))
    assert sizes(made) == [8, 40]
    assert payloads["front"].memory != payloads["back"].memory
    assert torch.equal(read(made, payloads["back"]), base[990:])


def test_views_that_only_touch_have_a_member_each() -> None:
    base = torch.arange(4.0)
    made, _ = plan(Reading(front=base[:2], back=base[2:]))
    assert sizes(made) == [8, 8]


def test_views_that_meet_through_a_third_share_a_member() -> None:
    base = torch.arange(10.0)
    made, payloads = plan(Reading(front=base[1:3], back=base[4:8], middle=base[2:5]))
    assert sizes(made) == [28]
    assert torch.equal(read(made, payloads["back"]), base[4:8])


@pytest.mark.parametrize(
    ("model", "members"),
    [
        (lambda value: Reading(a=torch.nn.Parameter(value()), b=torch.nn.Parameter(value())), 2),
        (lambda value: Reading(**{name: torch.nn.Parameter(value(), requires_grad=False) for name in "ab"}), 2),
        (lambda value: Writing(a=value(), b=value()), 2),
        (lambda value: Reading(a=torch.nn.Parameter(value()), b=value()), 2),
        (lambda value: Reading(a=value(), b=value()), 1),
    ],
    ids=["parameters", "frozen parameters", "written", "parameter and buffer", "read alone"],
)
def test_equal_bytes_are_one_member_only_where_nobody_may_write_them(
    model: Callable[[Callable[[], torch.Tensor]], torch.nn.Module], members: int
) -> None:
    made, payloads = plan(model(lambda: torch.zeros(40)))
    assert len(made.members) == members
    assert payloads["a"].memory != payloads["b"].memory


def test_views_that_meet_only_inside_a_wider_one_share_its_member() -> None:
    base = torch.arange(10.0)
    made, _ = plan(Reading(wide=base, near=base[1:2], far=base[5:6]))
    assert sizes(made) == [40]


def test_a_buffer_that_requires_grad_has_a_member_of_its_own() -> None:
    made, _ = plan(Reading(a=torch.zeros(40), b=torch.zeros(40).requires_grad_()))
    assert len(made.members) == 2


def test_a_declared_write_is_a_write() -> None:
    exported = program(Writing(a=torch.zeros(40), b=torch.zeros(40))).run_decompositions({})
    assert exported.graph_signature.buffers_to_mutate
    assert len(plan_storages({"model": exported}).members) == 2


def test_bytes_that_differ_in_the_middle_are_two_members() -> None:
    other = torch.zeros(1000)
    other[500] = 1
    made, _ = plan(Reading(a=torch.zeros(1000), b=other))
    assert len(made.members) == 2


def test_a_member_has_one_dtype() -> None:
    base = torch.arange(8, dtype=torch.int32)
    bits = base.view(torch.int64)[:2]
    made, payloads = plan(
        Reading(numbers=base, bits=bits, equal=torch.zeros(8), other=torch.zeros(4, dtype=torch.int64))
    )
    assert payloads["numbers"].memory == payloads["bits"].memory
    assert payloads["numbers"].member != payloads["bits"].member
    assert payloads["equal"].member != payloads["other"].member
    assert torch.equal(read(made, payloads["bits"]), bits)
    assert torch.equal(read(made, payloads["numbers"]), base)


def test_offsets_are_whole_elements_also_between_dtypes() -> None:
    base = torch.arange(9, dtype=torch.int32)
    small, wide = base[1:4], base[2:].as_strided((6,), (1,), 2).view(torch.int64)
    made, payloads = plan(Reading(small=small, wide=wide))
    assert torch.equal(read(made, payloads["small"]), small)
    assert torch.equal(read(made, payloads["wide"]), wide)


def test_a_tie_between_weights_and_constants_is_known() -> None:
    model = Reading(kept=torch.arange(4.0))
    model.register_buffer("passing", model.kept[1:], persistent=False)
    model.names = ("kept", "passing")
    made, payloads = plan(model)
    assert payloads["kept"].memory == payloads["passing"].memory
    assert sorted(member.name for member in made.members) == ["data/constants/tensor_0", "data/weights/weight_0"]
    assert torch.equal(read(made, payloads["passing"], "constants"), model.passing)


def test_what_programs_share_is_stored_once() -> None:
    shared = torch.nn.Parameter(torch.randn(30))
    first, second = Reading(a=shared), Reading(b=shared)
    made = plan_storages({"first": program(first), "second": program(second)})
    assert sizes(made) == [120]
    payloads = made.payloads["first"]["weights"]["a"], made.payloads["second"]["weights"]["b"]
    assert payloads[0] == payloads[1]


def test_copies_in_two_programs_are_stored_once_and_stay_two() -> None:
    first = Reading(a=torch.nn.Parameter(torch.ones(30)), b=torch.nn.Parameter(torch.ones(30)))
    second = copy.deepcopy(first)
    made = plan_storages({"first": program(first), "second": program(second)})
    assert sizes(made) == [120, 120]
    tables = [made.payloads[name]["weights"] for name in ("first", "second")]
    for table in tables:
        assert table["a"].member != table["b"].member
    assert len({payload.memory for table in tables for payload in table.values()}) == 4


def test_tensors_without_elements_share_nothing() -> None:
    base = torch.ones(4)
    made, payloads = plan(Reading(a=base[4:].reshape(0, 3), b=torch.empty(0), whole=base))
    assert sorted(sizes(made)) in ([0, 16], [0, 0, 16])
    assert (payloads["a"].sizes, payloads["a"].offset) == ((0, 3), 0)
    assert len({payload.memory for payload in payloads.values()}) == 3


def test_payloads_stand_in_the_order_of_the_state() -> None:
    base = torch.arange(6.0)
    exported = program(Reading(b=base[3:], other=torch.ones(2), a=base))
    payloads = plan_storages({"model": exported}).payloads["model"]["weights"]
    assert list(payloads) == list(exported.state_dict)


@pytest.mark.parametrize("size", [1, (8 << 20) + 1])
def test_the_last_byte_is_written_too(size: int) -> None:
    made, _ = plan(Reading(a=torch.ones(size, dtype=torch.uint8)))
    assert sum(len(chunk) for chunk in made.members[0].chunks()) == size


def test_no_byte_is_copied() -> None:
    exported = program(Reading(a=torch.randn(5_000_000)))
    (member,) = plan_storages({"model": exported}).members
    chunks = list(member.chunks())
    assert len(chunks) == 3
    assert torch.frombuffer(chunks[0], dtype=torch.uint8).data_ptr() == exported.state_dict["a"].data_ptr()
