"""All cases, by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tests.engines.conformance.case import Case
from tests.engines.conformance.lookups import lookup_cases
from tests.engines.conformance.operators import operator_cases
from tests.engines.conformance.shapes import shape_cases
from tests.engines.conformance.values import value_cases

torch.manual_seed(0)
CASES: Mapping[str, Case] = {**shape_cases(), **value_cases(), **lookup_cases(), **operator_cases()}
