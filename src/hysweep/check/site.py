"""What SLURM is asked for: whether it can be given, and whether two settings say the same thing twice.

SLURM's own words are of sbatch(1) and srun(1), 22.05 to 25.05.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache

from hysweep.check.keys import RESERVED, is_as_shipped, is_said
from hysweep.check.numbers import has_shape
from hysweep.compile import nodes_of
from hysweep.estimate.formulas import GIB
from hysweep.estimate.layout import job_of, layout_of
from hysweep.estimate.memory import checkpoint_of, host_of
from hysweep.schema import BadInput, Problem, Severity, Stage, Trial
from hysweep.schema.groups import Cluster
from hysweep.schema.hostlist import hosts
from hysweep.schema.knob import Leaf, leaves

GUIDES_IMAGE = "verlai/verl:vllm023.dev1"  # that Hy3 was run in
LONGEST_SIGNAL = 65_535  # seconds: sbatch --signal
WRITES_GIB_S = 1.0  # of a node, to a shared file system: what a good one gives

# sbatch's options that a field says, and those that the launcher itself gives.
FIELD_OF = {
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint",
    "reservation": "reservation", "nodelist": "nodelist", "exclude": "exclude", "exclusive": "use_exclusive",
    "gres": "gres", "gpus-per-node": "gpus_per_node", "gpus": "gpus_per_node", "gpus-per-task": "gpus_per_node",
    "mem": "memory_gib", "time": "timeout_min", "nodes": "nodes", "cpus-per-task": "cpus_per_node",
    "signal": "signal_delay_s", "requeue": "use_requeue", "no-requeue": "use_requeue", "dependency": "dependency",
    "comment": "comment", "mail-type": "mail_type", "mail-user": "mail_user", "nice": "nice",
}  # fmt: skip
LAUNCHERS = {
    "job-name": "the job is found by its name",
    "output": "the log lies in the attempt's directory",
    "error": "the log lies in the attempt's directory",
    "open-mode": "a job that runs again adds to its log",
    "ntasks": "one task runs on each node",
    "ntasks-per-node": "one task runs on each node",
    "ntasks-per-gpu": "one task runs on each node",
    "array": "a job is one attempt of one trial",
    "wrap": "the script is written by the launcher",
    "export": "the environment of who submits goes along, and cluster.env is added",
    "parsable": "the launcher reads the job's id",
    "wait": "the launcher follows the job",
    "clusters": "the job is followed on the cluster of slurm.conf, which SLURM_CONF names",
    "test-only": "nothing would be submitted: `hysweep plan` shows the job",
    "quiet": "the launcher reads the job's id",
    "help": "nothing would be submitted",
    "usage": "nothing would be submitted",
    "version": "nothing would be submitted",
}
SHORT = {
    "A": "account", "C": "constraint", "G": "gpus", "J": "job-name", "N": "nodes", "W": "wait", "a": "array",
    "c": "cpus-per-task", "d": "dependency", "e": "error", "n": "ntasks", "o": "output", "p": "partition", "q": "qos",
    "t": "time", "w": "nodelist", "x": "exclude", "Q": "quiet", "h": "help", "V": "version",
}  # fmt: skip
ALIASES = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "share": "oversubscribe"}
# Those that have no value, or have one only after a =.
FLAGS = {"contiguous", "exclusive", "get-user-env", "help", "hold", "ignore-pbs", "immediate", "nice", "no-kill",
         "no-requeue", "overcommit", "oversubscribe", "parsable", "propagate", "quiet", "reboot", "requeue",
         "spread-job", "test-only", "usage", "use-min-nodes", "verbose", "version", "wait"}  # fmt: skip
SRUN_FLAGS = {*FLAGS, "async", "bcast", "compress", "disable-status", "exact", "interactive", "kill-on-bad-exit",
              "label", "multi-prog", "no-allocate", "oom-kill-step", "overlap", "preserve-env", "pty",
              "quit-on-interrupt", "resv-ports", "send-libs", "unbuffered", "whole", "x11"} - {"wait"}  # fmt: skip
SRUNS_SHORT_FLAGS = "EHIKOQVXZhklsuv"
# What our srun is told, by the option. A step that takes fewer nodes than its job, or others, would never be whole.
OF_SRUN = {
    "nodes": "cluster.nodes", "ntasks": "", "ntasks-per-node": "", "ntasks-per-gpu": "", "kill-on-bad-exit": "",
    "export": "cluster.env", "cpus-per-task": "cluster.cpus_per_node", "output": "", "error": "",
    "nodelist": "cluster.nodelist", "exclude": "cluster.exclude", "relative": "", "multi-prog": "",
    "time": "cluster.timeout_min", "gres": "cluster.gres", "gpus": "cluster.gpus_per_node",
    "gpus-per-node": "cluster.gpus_per_node", "gpus-per-task": "cluster.gpus_per_node",
    "container-image": "cluster.image", "container-mounts": "cluster.container_mounts",
}  # fmt: skip
SHORT_OF_SRUN = {
    "N": "nodes", "n": "ntasks", "K": "kill-on-bad-exit", "c": "cpus-per-task", "o": "output", "e": "error",
    "w": "nodelist", "x": "exclude", "r": "relative", "t": "time", "G": "gpus",
}  # fmt: skip
# What srun hears where it makes a job, and passes over in one: srun(1), "this option applies to job allocations".
OF_JOB = {
    "account", "bb", "bbf", "begin", "comment", "contiguous", "core-spec", "cores-per-socket", "deadline", "delay-boot",
    "dependency", "extra-node-info", "hold", "licenses", "mail-type", "mail-user", "mcs-label",
    "mincpus", "nice", "ntasks-per-socket", "oversubscribe", "partition", "priority", "qos", "reboot", "reservation",
    "signal", "sockets-per-node", "spread-job", "switches", "thread-spec", "time-min", "tmp", "use-min-nodes", "wckey",
}  # fmt: skip
SHORT_OF_JOB = {
    "A": "account", "B": "extra-node-info", "H": "hold", "L": "licenses", "S": "core-spec", "d": "dependency",
    "p": "partition", "q": "qos", "s": "oversubscribe",
}  # fmt: skip
# With these srun starts no task of this job.
NO_STEP = {"help", "usage", "version", "test-only", "jobid", "het-group", "no-allocate", "pty"}
# sbatch(1), input environment variables: they win over the lines of a script. Others of that prefix are not read.
HEARD = re.compile(
    r"ACCOUNT|ACCTG_FREQ|ARRAY_INX|BATCH|BURST_BUFFER|CLUSTERS|CLUSTER_CONSTRAINT|CONSTRAINT|CONTAINER|CONTAINER_ID|"
    r"CORE_SPEC|CPUS_PER_GPU|CPU_FREQ_REQ|DEBUG|DELAY_BOOT|DISTRIBUTION|ERROR|EXCLUSIVE|EXPORT|GET_USER_ENV|GPUS|"
    r"GPUS_PER_NODE|GPUS_PER_SOCKET|GPUS_PER_TASK|GPU_BIND|GPU_FREQ|GRES|GRES_FLAGS|HINT|IGNORE_PBS|INPUT|JOB_NAME|"
    r"MEM_BIND|MEM_PER_CPU|MEM_PER_GPU|MEM_PER_NODE|NETWORK|NO_KILL|NO_REQUEUE|OPEN_MODE|OUTPUT|OVERCOMMIT|"
    r"PARTITION|POWER|PROFILE|QOS|REQUEUE|REQ_SWITCH|RESERVATION|SEGMENT_SIZE|SIGNAL|SPREAD_JOB|THREADS_PER_CORE|"
    r"THREAD_SPEC|TIMELIMIT|TRES_BIND|TRES_PER_TASK|USE_MIN_NODES|WAIT|WAIT4SWITCH|WAIT_ALL_NODES|WCKEY"
)
MEANT = {"MEM": "MEM_PER_NODE", "TIME": "TIMELIMIT", "NAME": "JOB_NAME", "ARRAY": "ARRAY_INX"}
OPTION_OF_HEARD = {"TIMELIMIT": "time", "MEM_PER_NODE": "mem", "NO_REQUEUE": "no-requeue", "ARRAY_INX": "array",
                   "JOB_NAME": "job-name", "GPUS_PER_NODE": "gpus-per-node", "GPUS_PER_TASK": "gpus-per-task",
                   "OPEN_MODE": "open-mode"}  # fmt: skip
SECRET = re.compile(r"(?i)(?:^|_)(?:api_?key|token|secret|password|passwd|credentials?)(?:_|$)|_KEY$")
_PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
_SHORTEST_SECRET = 8  # characters: a shorter text is in others by chance
_EXPORT_IT = "export it in the shell that submits: jobs inherit it"
UNLOADS = re.compile(r"(?:^|;|&&)\s*(?:module|ml)\s+(?:-\S+\s+)*(?:purge|reset|restore)\b")
PLACEHOLDER = re.compile(r"<[^<>]*>")
# What the launcher sets on each node, or takes away there: a line of `setup` that exports it does so in vain.
TAKEN_AWAY = re.compile(
    r"(?:SLURM|SRUN|PMI|PMIX|PMI2|OMPI|SUBMITIT|TORCHELASTIC)_|RAY_(?:ADDRESS|AUTH_|NAMESPACE$|TMPDIR$)"
)


def is_filled_in(t: Trial) -> Iterator[Problem]:
    """The shipped examples have in angle brackets what only the user knows; and a line break would end the options."""
    if t.cluster.launcher == "local":
        return
    for key, value in _texts(t.cluster):
        if PLACEHOLDER.fullmatch(value) and key != "comment":
            why, cure = "is to be filled in", f"give cluster.{key}=NAME, or null for the site's default"
            yield Problem(f"cluster.{key}", value, why, cure, Stage.START)
        elif fault := unwritable(f"cluster.{key}", value):
            yield fault
        elif not value.strip():
            yield Problem(f"cluster.{key}", repr(value), "is empty", "leave it out", Stage.START)


def unwritable(key: str, value: str) -> Problem | None:
    """A line break would end the options of a batch script, and what follows would be a line of bash."""
    if not re.search(r"[\x00-\x1f\x7f]", value):
        return None
    why = "holds a line break or a control character, which no option of sbatch can"
    return Problem(key, repr(value), why, "write it in one line", Stage.START)


def _texts(c: Cluster) -> Iterator[tuple[str, str]]:
    """Each text of the fields and of the lists among them, but for lines of bash."""
    for f in fields(Cluster):
        value = getattr(c, f.name)
        if isinstance(value, str):
            yield f.name, value
        elif isinstance(value, list) and f.name != "setup":
            yield from ((f"{f.name}.{n}", str(item)) for n, item in enumerate(value))


def paths_mean_one_thing(t: Trial) -> Iterator[Problem]:
    """A job starts in a directory of its attempt, and no shell reads these: a relative path or a variable is none."""
    c = t.cluster
    if c.local_dir and not c.local_dir.startswith("/"):
        why, cure = "is no absolute path", "give one that each node has, as /scratch"
        yield Problem("cluster.local_dir", c.local_dir, why, cure, Stage.START)
    for n, mount in enumerate(c.container_mounts if c.container else ()):
        inside = (mount.split(":") * 2)[1]
        if mount.strip() and not inside.startswith(("/", "~")):
            cure = "write it as /data, or as /data:/mnt to see it elsewhere; a variable as ${oc.env:NAME}"
            yield Problem(f"cluster.container_mounts.{n}", mount, "is no absolute path", cure, Stage.START)
    if c.python is None or c.launcher == "local":
        return
    cure = "give the path or the name of one, as /shared/envs/verl/bin/python"
    try:
        words = shlex.split(c.python)
    except ValueError as e:
        yield Problem("cluster.python", c.python, f"cannot be read: {str(e).lower()}", cure, Stage.START)
        return
    if found := re.search(r"[$`;&|<>]", " ".join(words)):
        why = f"has a {found[0]}, and is no line of a shell"
        yield Problem("cluster.python", c.python, why, f"{cure}, or write it in cluster.setup", Stage.START)


def interface_is_one(t: Trial) -> Iterator[Problem]:
    """Nodes find each other by the address at it: no list, beginning or exclusion, which NCCL's own variable may be."""
    named = t.cluster.network_interface
    if _on_slurm(t) and named and re.search(r"[\s,=^*/]", named) and not PLACEHOLDER.fullmatch(named):
        cure = "give one that each node has, as eth0; NCCL alone is told more by cluster.env.NCCL_SOCKET_IFNAME"
        yield Problem("cluster.network_interface", named, "is no name of one interface", cure, Stage.START)


def container_has_image(t: Trial) -> Iterator[Problem]:
    c = t.cluster
    if not _on_slurm(t):
        return
    if c.container is not None and not c.image:
        cure = f"give cluster.image, as {GUIDES_IMAGE}"
        yield Problem("cluster.container", c.container, "needs an image", cure, Stage.START)
    if c.container is None and c.image and not is_as_shipped(t, "cluster", "image"):
        why, cure = "has no effect: nothing runs it", "give cluster.container=pyxis or apptainer"
        yield Problem("cluster.image", c.image, why, cure, Stage.NEVER)


def gres_counts_gpus(t: Trial) -> Iterator[Problem]:
    """Ray would wait for GPUs that were never asked for, or leave some idle."""
    c = t.cluster
    if not _on_slurm(t) or c.gpu is None or not c.gres:
        return
    try:
        count = gpus_of(c.gres)
    except ValueError:
        cure = f"write gpu:{c.gpus_per_node} or gpu:KIND:{c.gpus_per_node}, as `sinfo -o %G` has it"
        yield Problem("cluster.gres", c.gres, "cannot be read", cure, Stage.START)
        return
    if count != c.gpus_per_node:
        key, value = "cluster.gres", str(c.gres)
        why = f"asks for {count} GPUs a node, and cluster.gpus_per_node is {c.gpus_per_node}"
        if is_said(c, "gpus_per_node") and not is_said(c, "gres"):
            key, value, why = "cluster.gpus_per_node", str(c.gpus_per_node), f"cluster.gres = {c.gres} asks for {count}"
        yield Problem(key, value, why, "make both the same", Stage.START)


def gpus_of(gres: str) -> int:
    """How many GPUs `--gres` asks for on a node. Raises ValueError for what is no such list."""
    total = 0
    for item in gres.split(","):
        found = re.fullmatch(r"(?:gres[/:])?([A-Za-z]\w*)((?::[\w.\-]+)*)", item.strip())
        if found is None:
            raise ValueError(gres)
        if found[1] != "gpu":
            continue
        parts = found[2].split(":")[1:]
        if len(parts) > 2 or (len(parts) == 2 and not parts[1].isdigit()):
            raise ValueError(gres)
        total += int(parts[-1]) if parts and parts[-1].isdigit() else 1
    return total


def nodes_are_there(t: Trial) -> Iterator[Problem]:
    """Lists of nodes that can be read, that leave as many nodes as are asked for, and that agree."""
    if not _on_slurm(t):
        return
    named: dict[str, set[str]] = {}
    for field in ("nodelist", "exclude"):
        text = getattr(t.cluster, field)
        if text is None or "/" in text or PLACEHOLDER.fullmatch(text):  # with a slash: a file of names
            continue
        try:
            named[field] = set(hosts(text))
        except BadInput as e:
            yield Problem(f"cluster.{field}", text, e.problems[0].why, "write it as node[001-003],gpu7", Stage.START)
    wanted, unwanted = named.get("nodelist", set()), named.get("exclude", set())
    if len(wanted) > (nodes := nodes_of(t)):
        why = f"names {len(wanted)} nodes, all of which must be among the {nodes} of the job"
        cure = f"name {nodes} at most, or exclude the others"
        yield Problem("cluster.nodelist", t.cluster.nodelist, why, cure, Stage.START)
    if both := sorted(wanted & unwanted):
        why = f"names {', '.join(both[:3])}{' and others' if len(both) > 3 else ''}, which cluster.nodelist wants"
        yield Problem("cluster.exclude", t.cluster.exclude, why, "leave it out of one of them", Stage.START)


def options_are_said_once(t: Trial) -> Iterator[Problem]:
    """What a field, or the launcher, tells sbatch and srun is not told again beside it."""
    c = t.cluster
    if not _on_slurm(t):
        return
    for given in c.additional_parameters:
        name = option_name(str(given))
        key = f"cluster.additional_parameters.{given}"
        value = c.additional_parameters[given]
        if value is None or value is False:
            continue
        is_number = not isinstance(value, float) or math.isfinite(value)
        is_text = str(value).strip() and not re.search(r"[\x00-\x1f\x7f]", str(value))
        if isinstance(value, list | dict) or not is_number or not is_text:
            yield Problem(key, repr(value), "is no value of an option", "give one text, a number or true", Stage.START)
        elif not re.fullmatch(r"[a-z0-9][a-z0-9\-]+", name):
            cure = "write its long name without the dashes, as in tmp"
            yield Problem(key, value, "is no name of an option", cure, Stage.START)
        elif name in FIELD_OF:
            yield Problem(key, value, "has a field of its own", f"use cluster.{FIELD_OF[name]}", Stage.START)
        elif name in LAUNCHERS:
            yield Problem(key, value, f"is the launcher's: {LAUNCHERS[name]}", "leave it out", Stage.START)
        elif name in ("mem-per-cpu", "mem-per-gpu") and c.memory_gib is not None:
            why = "and cluster.memory_gib exclude each other"
            yield Problem(key, value, why, "leave one of them out", Stage.START)
    takes_value = False
    for n, text in enumerate(c.srun_args):
        key = f"cluster.srun_args.{n}"
        said = re.match(r"--([A-Za-z\-]+)(=?)|-([A-Za-z])(.?)", text)
        may_be_value, takes_value = takes_value, False
        if said is None:
            if text.strip() and not may_be_value:
                why, cure = "is no option: srun would run it instead of the trial", "write an option as --name=value"
                yield Problem(key, text, why, cure, Stage.START)
            continue
        name = _whole(said[1], OF_SRUN) if said[1] else SHORT_OF_SRUN.get(said[3], "")
        is_flag = name in SRUN_FLAGS if said[1] else said[3] in SRUNS_SHORT_FLAGS
        takes_value = not (is_flag or said[2] or said[4])
        if name in OF_SRUN and (not name.startswith("container-") or c.container == "pyxis"):
            cure = f"use {OF_SRUN[name]}" if OF_SRUN[name] else "leave it out: one task runs on each node"
            yield Problem(key, text, "is given by the launcher", cure, Stage.START)
        elif (of_job := _whole(said[1], OF_JOB) if said[1] else SHORT_OF_JOB.get(said[3])) in OF_JOB:
            field = FIELD_OF.get(of_job, f"additional_parameters.{of_job}")
            why = "is asked for a job, and srun passes it over within one"
            yield Problem(key, text, why, f"use cluster.{field}", Stage.NEVER)
        elif name in NO_STEP or said[3] in ("h", "V", "Z"):
            yield Problem(key, text, "starts nothing on the nodes of the job", "leave it out", Stage.START)
        elif re.search(r"\s--?[a-z]", text):
            yield Problem(key, text, "holds two arguments", "write each as one of the list", Stage.START)


def option_name(name: str) -> str:
    """sbatch's long name of an option, however it is written."""
    bare = name.lstrip("-")
    long = bare.replace("_", "-")
    return SHORT.get(bare) or ALIASES.get(long) or _whole(long, (*FIELD_OF, *LAUNCHERS))


def _whole(name: str, known: Iterable[str]) -> str:
    """The name that is begun, for sbatch and srun take so much of one as tells it from others. `container` is whole."""
    if len(name) < 2 or name in known or name == "container":
        return name
    return next((long for long in known if long.startswith(name)), name)


def setup_is_heard(t: Trial) -> Iterator[Problem]:
    """Lines of `setup` that come too late, or set what the launcher sets."""
    if not _on_slurm(t):
        return
    if said := _bash_says(tuple(t.cluster.setup)):
        why = f"is not whole, and the job would end without a word of it: {said}"
        yield Problem("cluster.setup", f"{len(t.cluster.setup)} lines", why, "mend it there", Stage.START)
    for n, line in ((n, line) for n, text in enumerate(t.cluster.setup) for line in text.splitlines()):
        key = f"cluster.setup.{n}"
        if re.match(r"\s*#\s*SBATCH\b", line):
            why, cure = "has no effect: sbatch reads its options above", "use the field, or additional_parameters"
            yield Problem(key, line, why, cure, Stage.NEVER)
        elif re.match(r"\s*(?:exit\b|exec\s+[^\s<>&\d])", line):
            why = "ends the script before the job begins"
            yield Problem(key, line, why, "leave it out", Stage.START)
        elif re.search(r"\bray\s+start\b", line):
            why = "starts a Ray of its own, beside the one that the job boots"
            yield Problem(key, line, why, "leave it out", Stage.START)
        elif t.cluster.modules and UNLOADS.search(line):
            why = "unloads cluster.modules, which are loaded before"
            yield Problem(key, line, why, "write `module load` of them after it, and cluster.modules=[]", Stage.START)
        for name in re.findall(r"(?:^|;|&&)\s*export\s+([A-Za-z_]\w*)=", line):
            if name in RESERVED or TAKEN_AWAY.match(name):
                why = f"has no effect: {name} is taken away, or set, on each node"
                yield Problem(key, line, why, "leave it out", Stage.NEVER)
            elif name in t.cluster.env:
                why = f"has no effect: cluster.env.{name} wins"
                yield Problem(key, line, why, "leave one of them out", Stage.NEVER)


@lru_cache(maxsize=64)
def _bash_says(lines: Sequence[str]) -> str:
    """What bash has against these lines, which it reads and does not run; empty where that is nothing."""
    if not lines or shutil.which("bash") is None:
        return ""
    text = "\n".join(lines) + "\n"
    done = subprocess.run(["bash", "-O", "extglob", "-n"], input=text, capture_output=True, text=True, errors="replace")
    return done.stderr.strip().rpartition("\n")[2].removeprefix("bash: ")


def job_has_time(t: Trial) -> Iterator[Problem]:
    """The signal must come within the job, and a checkpoint must be written within it."""
    if not _on_slurm(t):
        return
    delay, limit = t.cluster.signal_delay_s, t.cluster.timeout_min * 60
    if delay >= limit:
        why = f"is not below the time limit of {limit} s: the job would be told at its start"
        if is_said(t.cluster, "timeout_min") and not is_said(t.cluster, "signal_delay_s"):
            why = f"is not above cluster.signal_delay_s, {delay} s: the job would be told of its end at its start"
            cure = f"give at least {delay // 60 + 1}, or less of that"
            yield Problem("cluster.timeout_min", t.cluster.timeout_min, why, cure, Stage.START)
            return
        yield Problem("cluster.signal_delay_s", delay, why, f"give less, as {max(1, limit // 10)}", Stage.START)
    elif delay > LONGEST_SIGNAL:
        yield Problem(
            "cluster.signal_delay_s", delay, "is more than SLURM takes", f"give at most {LONGEST_SIGNAL}", Stage.START
        )
    size = checkpoint_gib(t)
    seconds = size / (WRITES_GIB_S * t.cluster.nodes) if size is not None else 0
    if t.trainer.save_every > 0 and seconds * 4 > limit:
        why = (f"is little for checkpoints of {size:,.0f} GiB by the estimate: one takes {seconds / 60:.0f} min "
               f"where each node writes {WRITES_GIB_S:g} GiB/s")  # fmt: skip
        cure = f"give at least {-(-seconds * 10 // 60):.0f}, or ask for more nodes"
        yield Problem("cluster.timeout_min", t.cluster.timeout_min, why, cure, Stage.NEVER, Severity.WARNING)


def code_is_there(t: Trial) -> Iterator[Problem]:
    """It is copied when the job is submitted, from here."""
    if not _on_slurm(t):
        return
    for n, directory in enumerate(t.cluster.code):
        if directory.strip() and not os.path.isdir(os.path.expanduser(directory)):
            why = "there is no such directory"
            yield Problem(f"cluster.code.{n}", directory, why, "name one with code, as it lies here", Stage.START)


def host_memory_is_asked_for(t: Trial) -> Iterator[Problem]:
    """SLURM ends a job that takes more of a node's memory than it asked for."""
    asked = t.cluster.memory_gib
    if not _on_slurm(t) or not asked or not _is_estimated(t):
        return
    needed = float(host_of(job_of(t), layout_of(t))) / GIB
    if asked < needed:
        why = f"is below the {needed:.0f} GiB that a node needs by the estimate"
        cure = f"give 0 for all of it, or more than {needed:.0f}"
        yield Problem("cluster.memory_gib", asked, why, cure, Stage.START, Severity.WARNING)


def secrets_are_not_written(t: Trial) -> Iterator[Problem]:
    """Whatever is configured is written into the study's files."""
    names = [f"cluster.env.{name}" for name in t.cluster.env if SECRET.search(name)]
    for n, line in enumerate(t.cluster.setup):
        names += [
            f"cluster.setup.{n}"
            for name in re.findall(r"\b([A-Za-z_]\w*)=['\"]?[^\s'\"$]", line)
            if SECRET.search(name)
        ]
    for key in dict.fromkeys(names):
        why = "reads as a secret, and would lie in the study's files"
        yield Problem(key, "…", why, _EXPORT_IT, Stage.NEVER, Severity.WARNING)
    yield from (problem for problem in secrets_within(leaves(t)) if problem.key not in names)


def secrets_within(settings: Iterable[Leaf]) -> Iterator[Problem]:
    """Settings that have in them what a variable of this shell keeps secret, or a password of a URL."""
    kept = {v: n for n, v in os.environ.items() if len(v) >= _SHORTEST_SECRET and SECRET.search(n)}
    for leaf in settings:
        for key, text in _each_text(leaf.path, leaf.value):
            name = next((name for value, name in kept.items() if value in text), None)
            if name or _PASSWORD.search(text):
                what = f"the value of {name}" if name else "a password"
                why = f"has {what} in it, which would lie in the study's files"
                yield Problem(key, "…", why, _EXPORT_IT, Stage.NEVER, Severity.WARNING)


def _each_text(key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _each_text(f"{key}.{name}", item)


def not_to_be_sent(t: Trial) -> list[Problem]:
    """What keeps any job from such a site, whatever it is to run."""
    rules = (is_filled_in, paths_mean_one_thing, interface_is_one, container_has_image, options_are_said_once,
             setup_is_heard)  # fmt: skip
    return [problem for rule in rules for problem in rule(t) if problem.stage is Stage.START]


# --- of the shell that submits


def heard_of(environment: Mapping[str, str]) -> list[Problem]:
    """Of the SBATCH_* of an environment, those that sbatch does not read and those that win over a trial's settings."""
    found = []
    for name in sorted(n for n in environment if n.startswith("SBATCH_")):
        rest, option = name.removeprefix("SBATCH_"), option_of(name)
        if option is None:
            now = "use the field of cluster" + (f", or SBATCH_{MEANT[rest]}" if MEANT.get(rest) else "")
            found.append(_warned(name, environment[name], "is no variable of sbatch, and is ignored", now))
            continue
        if option in FIELD_OF:
            why = f"wins over cluster.{FIELD_OF[option]}"
            found.append(_warned(name, environment[name], why, f"unset {name} if that is not meant"))
        elif option in LAUNCHERS:
            why = f"is not passed on to sbatch: {LAUNCHERS[option]}"
            found.append(_warned(name, environment[name], why, f"unset {name}"))
    return found


def option_of(variable: str) -> str | None:
    """The option that a variable of sbatch's stands for; None where it is none."""
    rest = variable.removeprefix("SBATCH_")
    if rest == variable or not HEARD.fullmatch(rest):
        return None
    return OPTION_OF_HEARD.get(rest, rest.lower().replace("_", "-"))


def _warned(key: str, value: str, why: str, cure: str) -> Problem:
    return Problem(key, value, why, cure, Stage.NEVER, Severity.WARNING)


# --- disk


def checkpoint_gib(t: Trial) -> float | None:
    """The size of one checkpoint by the estimate; None where it is not known."""
    return checkpoint_of(job_of(t)) / GIB if _is_estimated(t) else None


def checkpoints_at_once(t: Trial) -> int | None:
    """How many of a trial's checkpoints lie on disk together at most; None where that has no known end."""
    every, steps, kept = t.trainer.save_every, t.trainer.total_steps, t.trainer.checkpoints_kept
    made = 0 if every <= 0 else -(-steps // every) if steps is not None else None
    if kept is None or made == 0:
        return made
    most = max(kept, 2)  # of several verl removes the oldest before it writes, an only one afterwards
    return most if made is None else min(most, made)


def disk_problems(t: Trial, parallel: int, trials: int, free_gib: float) -> list[Problem]:
    """Whether the checkpoints of a study fit where it is to lie: while it runs, and those that stay of all trials."""
    size, most = checkpoint_gib(t), checkpoints_at_once(t)
    if size is None or most == 0:
        return []
    at_least = "at least " if most is None else ""  # all are kept, of nobody knows how many
    most = most or 1
    stays = min(most, t.trainer.checkpoints_kept or most)
    at_once = size * most * min(parallel, trials)
    at_end = size * (most * min(parallel, trials) + stays * max(0, trials - parallel))
    for needed, when in ((at_once, "while it runs"), (at_end, "in the end, with those of the trials that are over")):
        if needed > free_gib:
            free = f"{free_gib:,.0f} are free there, as this machine sees it"
            why = f"checkpoints of {size:,.0f} GiB take {at_least}{needed:,.0f} GiB {when}, and {free}"
            cure = "give trainer.checkpoints_kept, another study.root, or delete those of trials that are over"
            return [_warned("trainer.checkpoints_kept", str(t.trainer.checkpoints_kept or "null"), why, cure)]
    return []


def _on_slurm(t: Trial) -> bool:
    return t.cluster.launcher == "slurm"


def _is_estimated(t: Trial) -> bool:
    return t.has_gpu and t.cluster.gpu_memory_gib is not None and has_shape(t)
