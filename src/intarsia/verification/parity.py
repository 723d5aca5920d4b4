"""Parity of two programs as they stand: graph, signature, structure and ranges."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from intarsia._torch import is_training, run_decompositions
from intarsia.core.numbering import Numbering
from intarsia.verification.graphs import difference, is_like, read_program, signature_difference
from intarsia.verification.result import Check
from intarsia.verification.sides import fault_text
from intarsia.verification.symbols import ranges_difference

NAMES = ("graph", "signature", "structure", "ranges")


def compare_programs(found: ExportedProgram, retraced: ExportedProgram) -> tuple[Check, ...]:
    """Compare a program with the retraced one; names of nodes, state and sizes do not count.

    Graphs and signatures are compared after `run_decompositions({})`, which brings both programs into one dialect.
    State is the same when it is the same memory.

    Args:
        found: The program to verify.
        retraced: What `torch.export.export` made of the same hybrid, sharing its state.
    """
    structure = Check("structure", *_verdict(_structure_difference(found, retraced)))
    ranges = Check("ranges", *_verdict(ranges_difference(found, retraced)))
    return *_compare_graphs(found, retraced), structure, ranges


def _compare_graphs(found: ExportedProgram, retraced: ExportedProgram) -> tuple[Check, Check]:
    (one, fault), (other, other_fault) = _decompose(found), _decompose(retraced)
    where = (
        f"run_decompositions fails on the {'program' if one is None else 'retraced program'}: {fault or other_fault}"
    )
    note = ""
    if one is None or other is None:
        if is_training(found) != is_training(retraced):
            return Check("graph", None, where), Check("signature", None, where)
        one, other, note = found, retraced, f"compared as they are, for {where}"
    numbering = Numbering()
    readings = read_program(one, numbering), read_program(other, numbering)
    texts = difference(*readings), signature_difference(*readings)
    if note and any(texts):
        return Check("graph", None, where), Check("signature", None, where)
    graph, signature = (Check(name, not text, text or note) for name, text in zip(NAMES, texts, strict=False))
    return graph, signature


def excuse(check: Check) -> Check:
    """A check that a wrong retrace made: equal counts, a difference is told and does not."""
    return Check(check.name, None, f"not held against the program: {check.detail}") if check.ok is False else check


def no_comparison(reason: str) -> tuple[Check, ...]:
    """The checks of `compare_programs`, none of them made."""
    return tuple(Check(name, None, reason) for name in NAMES)


def _verdict(text: str) -> tuple[bool, str]:
    return not text, text


def _decompose(program: ExportedProgram) -> tuple[ExportedProgram | None, str]:
    if _has_converting_write(program):
        return None, "torch does not keep the cast of a copy_"
    try:
        return run_decompositions(program), ""
    except Exception as error:  # noqa: BLE001 - torch refuses in many ways, and each is told
        return None, fault_text(error)


def _has_converting_write(program: ExportedProgram) -> bool:
    """Whether a `copy_` casts or broadcasts: torch 2.13 drops that, and later readers get the value as it was."""
    writes = program.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return any(not is_like(node.args[0].meta["val"], node.args[1].meta["val"]) for node in writes)


def _structure_difference(found: ExportedProgram, retraced: ExportedProgram) -> str:
    for name in ("in_spec", "out_spec"):
        one, other = getattr(found.call_spec, name), getattr(retraced.call_spec, name)
        if one != other:
            return f"{name} is {one}, and {other} in the retraced program"
    return ""
