"""A study: its definition, what it would launch, and its controller (`hysweep.study.controller`, which brings
Optuna and is imported only by those who drive)."""

from hysweep.study.begin import Begun, NothingFeasible, begin
from hysweep.study.definition import CHANGEABLE, Definition, define, load_definition
from hysweep.study.objective import value_of
from hysweep.study.preview import Preview, preview, study_problems

__all__ = [
    "CHANGEABLE",
    "Begun",
    "Definition",
    "NothingFeasible",
    "Preview",
    "begin",
    "define",
    "load_definition",
    "preview",
    "study_problems",
    "value_of",
]
