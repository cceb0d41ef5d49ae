"""The complete behavior table: importing this module registers every theme."""

from tests.behavior import control, faults, formats, sessions, speaking
from tests.behavior.table import BEHAVIORS, BehaviorContext

__all__ = ["BEHAVIORS", "BehaviorContext", "control", "faults", "formats", "sessions", "speaking"]
