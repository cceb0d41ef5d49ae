"""What every session does, whatever carries it: the one table, by theme."""

from tests.behaviour import control, faults, sessions, speaking
from tests.behaviour.table import BEHAVIOURS, Room

__all__ = ["BEHAVIOURS", "Room", "control", "faults", "sessions", "speaking"]
