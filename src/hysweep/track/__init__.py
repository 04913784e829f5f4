"""The trial directory on disk: atomic writes, tolerant reads, attempts, metrics, the cause of every end."""

from hysweep.track.causes import ACTIONS, Action, Cause, Phase, Verdict, settle
from hysweep.track.checkpoints import checkpoint_step, set_aside, settle_note, superfluous
from hysweep.track.clock import now, telling
from hysweep.track.directory import SIMULATED, AttemptDirectory, Place, StudyDirectory, TrialDirectory
from hysweep.track.files import (
    FULL,
    PASSING,
    append_line,
    exactly,
    read_json,
    read_lines,
    read_record,
    thrown_away,
    write_json,
    write_text,
)
from hysweep.track.metrics import began_from, curve_of, logged, matching
from hysweep.track.records import Booking, Claim, End, State, Status

__all__ = [
    "ACTIONS",
    "FULL",
    "PASSING",
    "SIMULATED",
    "Action",
    "AttemptDirectory",
    "Booking",
    "Cause",
    "Claim",
    "End",
    "Phase",
    "Place",
    "State",
    "Status",
    "StudyDirectory",
    "TrialDirectory",
    "Verdict",
    "append_line",
    "began_from",
    "checkpoint_step",
    "curve_of",
    "exactly",
    "logged",
    "matching",
    "now",
    "read_json",
    "read_lines",
    "read_record",
    "set_aside",
    "settle",
    "settle_note",
    "superfluous",
    "telling",
    "thrown_away",
    "write_json",
    "write_text",
]
