"""Inductor passes the suite that every backend passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch._inductor.config
from tests.engines.conformance import BackendConformance, Calls, export

from intarsia.core.registry import find_backend
from intarsia.errors import EngineUnavailable


class TestInductor(BackendConformance):
    name = "inductor"
    library = "torch"
    extra = ""
    # The engine is gone, but the process has grown by the library that it opened; why was not looked into.
    unloads = False

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def unoptimized(cls) -> Iterator[None]:
        """The code between the kernels is compiled as it is written, which takes half of the time."""
        with torch._inductor.config.patch({"aot_inductor.compile_wrapper_opt_level": "O0"}):
            yield

    def test_a_library_that_is_not_there(self) -> None:  # type: ignore[override]
        """The library is torch, which is always there; the compiler need not be."""
        backend = find_backend(self.name)
        program = export(Calls(torch.relu), (torch.randn(2, 3),))
        halves: list[Callable[[], object]] = [
            lambda: backend.check_options({}),
            lambda: backend.build(program, {}),
            lambda: backend.rebuild(memoryview(b""), {}),
        ]
        for half in halves:
            with (
                torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}),
                pytest.raises(EngineUnavailable, match=r"inductor.*no C\+\+ compiler.*Install g\+\+"),
            ):
                half()
