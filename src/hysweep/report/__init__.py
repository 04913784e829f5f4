"""What came of a study: records, terminal tables, and a page that is one file.

record = read_study("outputs/quickstart")
console.print(leaderboard(record))
write_page(record.directory)
"""

from hysweep.report.page import write_page
from hysweep.report.ranking import Ranking, ranking
from hysweep.report.records import (
    AttemptRecord,
    Curve,
    Spending,
    Standing,
    StudyRecord,
    TrialRecord,
    read_study,
)
from hysweep.report.terminal import change_line, change_lines, leaderboard, live_table, ranking_table

__all__ = [
    "AttemptRecord",
    "Curve",
    "Ranking",
    "Spending",
    "Standing",
    "StudyRecord",
    "TrialRecord",
    "change_line",
    "change_lines",
    "leaderboard",
    "live_table",
    "ranking",
    "ranking_table",
    "read_study",
    "write_page",
]
