"""What is known of an attempt whose node left no word: what srun and the batch script said, where a node of it died.

A Python that does not start on one node has srun end the others, before there is anybody to write an end.json.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress

from hysweep.launch.sbatch import SET_UP_ENDED
from hysweep.schema import BadInput
from hysweep.schema.hostlist import hosts
from hysweep.track import AttemptDirectory, Cause, End, Phase
from hysweep.track.files import pass_over

_TAIL = 65536  # bytes
_LINE = 1000  # characters: no word of the scheduler's is as long, and a line of progress bars takes its time
# "srun: error: node[2-3]: tasks 1-2: Exited with exit code 3"; those that srun ended itself are "Terminated"
_TASK = re.compile(r"srun: error: (?P<nodes>\S+): tasks? [\d,-]+: (?P<how>Exited with exit code \d+|.*)$")
_TOLD_TO_LEAVE = "User defined signal 2"  # as a shell calls SIGUSR2, which the scheduler alone sends
_LAUNCH = re.compile(r"srun: error: Task launch for \S+ failed on node (?P<node>[^\s:]+): (?P<why>.*)")
# A program that is not there, a module that Python lacks, and an option that this srun does not have, as pyxis's where
# there is no pyxis.
_NOT_THERE = re.compile(
    r"slurmstepd\S*: error: (?P<program>execve\(\): .*)"
    r"|(?P<module>(?:ModuleNotFoundError: |\S*python\S*: )No module .*)"
    r"|(?P<option>srun: (?:unrecognized|invalid) option.*)"
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_LOUD = re.compile(
    rf"(?:srun|slurmstepd\S*): error: |{_NOT_THERE.pattern}|.*(?:No such file|not found|rror:|{_FULL.pattern})"
)
_SET_UP_ENDED = re.compile(re.escape(SET_UP_ENDED) + r"(?P<code>\d+)$")
# What a node's own slurmstepd says of a job that the scheduler ends; why, it says only of its own doings.
_TAKEN = re.compile(
    r"slurmstepd\S*: error: \*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO (?P<why>[A-Z ]+))?"
)
_WHY = {
    "PREEMPTION": Cause.PREEMPTED,
    "JOB REQUEUE": Cause.PREEMPTED,
    "NODE FAILURE": Cause.NODE_FAIL,
    "TIME LIMIT": Cause.TIMEOUT,
}
# What the shell of the batch script says of an srun that somebody, or the kernel, has killed
_SRUN = re.compile(r"\S+: line \d+: +\d+ (?P<how>[A-Z][^-]*?) +srun -")
_CURE = "; see cluster.python, setup, modules, container and srun_args"


def unsaid(attempt: AttemptDirectory) -> End | None:
    """None where nothing was said either."""
    if (written := attempt.job()) is None:
        return None
    try:
        logs = sorted(attempt.path.glob("slurm-*.log"), key=lambda p: p.stat().st_mtime)
        if not logs:
            return None
        with open(logs[-1], "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError as e:
        pass_over(e)
        return None
    nodes = written.get("nodes")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return read_unsaid(lines, nodes if isinstance(nodes, int) else 1)


def read_unsaid(lines: Iterable[str], nodes: int) -> End | None:
    """From the log of a job on so many nodes. What failed alike on all of them is no fault of a node."""
    lines = [line[:_LINE] for line in lines]
    if ended := next((found for line in reversed(lines) if (found := _SET_UP_ENDED.match(line))), None):
        return _of_set_up(int(ended["code"]), lines[: lines.index(ended[0])])
    loud = tuple(dict.fromkeys(line[:500] for line in lines if _LOUD.match(line)))[:12]
    lacks = next((found for line in loud if (found := _NOT_THERE.match(line))), None)
    kind = lacks.lastgroup if lacks else None
    if lacks and kind:
        own = lacks[kind]
    else:
        own = next((line for line in reversed(loud) if not line.startswith(("srun", "slurmstepd"))), "")
    for line in lines:
        if launch := _LAUNCH.match(line):
            reason = f"{launch['node']}: its task was not launched: {launch['why']}"
            return End(Cause.RAY_BOOT, Phase.START, reason=reason, lines=loud, nodes=(launch["node"],))
        taken = _TAKEN.match(line)
        if taken and (cause := _cause_of(taken)):  # before any task of it had failed: that one follows from this
            return End(cause, reason=f"the scheduler ended it: {taken[0]}", lines=loud)
        task = _TASK.match(line)
        if task is None or task["how"] == "Terminated":
            continue
        # srun has a line of each node, or of several
        alike = [other["nodes"] for other in map(_TASK.match, lines) if other and other["how"] == task["how"]]
        blamed: list[str] = []
        with suppress(BadInput):
            blamed = list(dict.fromkeys(name for text in alike for name in hosts(text)))
        reason = f"{task['nodes']}: the node process: {task['how']}" + (f": {own}" if own else "")
        # 128 and more: by a signal, as a shell says it
        if task["how"] == _TOLD_TO_LEAVE:
            reason = f"the scheduler sent SIGUSR2 to {task['nodes']}"  # before a Python there could take it
            return End(Cause.PREEMPTED, Phase.START, reason=reason, lines=loud)
        has_exited = (code := re.search(r"exit code (\d+)", task["how"])) is not None and int(code[1]) < 128
        if has_exited and _FULL.search(own):
            return End(Cause.DISK_FULL, Phase.START, reason=reason, lines=loud)
        # of a module all nodes are short, though srun may have ended some before they said so
        if has_exited and len(blamed) < nodes and kind != "module":
            return End(Cause.RAY_BOOT, Phase.START, reason=reason, lines=loud, nodes=tuple(blamed))
        if has_exited and lacks:
            return End(Cause.CONFIG_ERROR, Phase.START, reason=reason + _CURE, lines=loud)
        cause = Cause.HOST_OOM if "Out Of Memory" in task["how"] else Cause.UNKNOWN if has_exited else Cause.KILLED
        return End(cause, reason=reason, lines=loud)
    if lacks:
        return End(Cause.CONFIG_ERROR, Phase.START, reason=own + _CURE, lines=loud)
    if ended := next(filter(None, map(_SRUN.match, lines)), None):
        return End(Cause.KILLED, reason=f"srun itself was ended on the first node: {ended['how']}", lines=loud)
    return End(Cause.UNKNOWN, reason=loud[0], lines=loud) if loud else None


def _of_set_up(code: int, said: Sequence[str]) -> End:
    """Of a script that came no further than its set-up lines, which said this."""
    reason = f"the set-up lines ended the script before the trial began, with exit code {code}"
    reason += (f": {said[-1][:300]}" if said else "") + "; see cluster.setup and modules"
    # a signal ends a script with whatever exit code its last command had
    if taken := next(filter(None, map(_TAKEN.match, said)), None):
        line, cause = taken.string[:500], _cause_of(taken) or Cause.KILLED
        return End(cause, Phase.START, code, f"the scheduler ended the set-up lines: {line}", (line,))
    # by a signal, as a shell says it: who sent it knows why
    cause = Cause.KILLED if 128 < code <= 128 + signal.NSIG else Cause.CONFIG_ERROR
    return End(cause, Phase.START, code, reason, tuple(line[:500] for line in said[-8:]))


def _cause_of(taken: re.Match[str]) -> Cause | None:
    return _WHY.get((taken["why"] or "").strip())
