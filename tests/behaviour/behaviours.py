"""The complete behavior table: importing this module registers every theme."""

from tests.behaviour import control, faults, formats, sessions, speaking
from tests.behaviour.table import BEHAVIOURS, BehaviourContext

__all__ = ["BEHAVIOURS", "BehaviourContext", "control", "faults", "formats", "sessions", "speaking"]
