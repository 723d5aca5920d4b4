"""Things that can be called, to how long their calls take, measured in turns."""

from intarsia.measurement.measure import PAUSE_S, WARM_UP, measure
from intarsia.measurement.result import Measurement, Row, Spread

__all__ = ["PAUSE_S", "WARM_UP", "Measurement", "Row", "Spread", "measure"]
