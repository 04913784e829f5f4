"""Why the trainer ended, from its log: one cause, where it can be known the phase, and the lines that say so.

A table, read from the top: what is a cause stands above what is only its consequence, so that one worker out of
memory is not taken for the broken communication that all others then report.
"""

from __future__ import annotations

import mmap
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from hysweep.track import Cause, End, Phase

# --- reading

_TAIL = 4 * 2**20
_SEARCHED = 2**30
_FIRST_TRACE = 256 * 2**10
_LONGEST = 2000  # characters of one line; a longer one is cut, so that no pattern meets megabytes
_TRACE_BEGINS = "Traceback (most recent call last)"


def read_log(path: Path) -> list[str]:
    """The first traceback and the last 4 MiB, in order, whatever size the log has."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                return []
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
                tail_from = max(0, size - _TAIL)
                first = log.find(_TRACE_BEGINS.encode(), 0, min(tail_from, _SEARCHED))
                head = b"" if first < 0 else log[first : min(first + _FIRST_TRACE, tail_from)] + b"\n"
                return _lines(head) + _lines(log[tail_from:])
    except (OSError, ValueError):
        return []


def _lines(data: bytes) -> list[str]:
    return [line[:_LONGEST].decode(errors="replace") for line in re.split(rb"\r\n|\r|\n", data)]


_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# "(TaskRunner pid=123, ip=10.0.0.1) text", "(raylet) text"; Ray's note on repeated lines.
_SPEAKER = re.compile(r"\((?P<who>[^()]{0,200}?pid=\d+[^()]{0,60}|raylet[^()]{0,60}|autoscaler[^()]{0,30})\) ?")
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$")


class Line(NamedTuple):
    who: str  # the process that Ray says wrote it; empty: the driver itself
    text: str


def plain(raw: str) -> Line:
    """A line of the log without colours, Ray's prefix and Ray's notes."""
    text = _CONTROL.sub("", _ANSI.sub("", raw[:_LONGEST]))
    spoken = _SPEAKER.match(text)
    if spoken:
        return Line(spoken["who"], _REPEATED.sub("", text[spoken.end() :]).rstrip())
    return Line("", text.rstrip())


@dataclass(slots=True)
class Trace:
    """A traceback, those of remote calls within it and of the errors that led to it included.

    calls  (file, function) from the outermost to where it was raised
    more   further lines of the error's message
    led    the errors that it was raised from or while handling, oldest first
    """

    who: str
    calls: list[tuple[str, str]] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    error: str = ""
    more: list[str] = field(default_factory=list)
    led: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join([self.error, *self.more, *self.led])

    def lines(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.led[-2:], *self.frames[-3:], self.error, *self.more]))


_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>\S+)')
_ERROR = re.compile(r"(?![A-Z]+:)[A-Za-z_][\w.]*(?:\([\w.]*\))?(?::(?: .*)?)?$")
# The error of a remote call: where it was raised, in the worker, follows.
_REMOTE = re.compile(r"ray\.exceptions\.RayTaskError\b|ray::")
_CHAINED = re.compile(r"The above exception was the direct cause|During handling of the above exception")
_MARGIN = re.compile(r"\s*[|+] ")  # of exception groups
_MORE = 4
_LOGGED = re.compile(r"[A-Z]+:|\d{4}-\d\d-\d\d")  # the next message of a logger, no further line of an error


def traces_of(lines: Iterable[Line]) -> list[Trace]:
    """The tracebacks in a log of many interleaved processes, in the order in which they ended."""
    reading: dict[str, Trace] = {}  # by process: frames, then the error
    saying: dict[str, Trace] = {}  # by process: the error's message goes on, until a blank line
    ended: dict[str, Trace] = {}  # by process: the last one
    chained: set[str] = set()
    found: list[Trace] = []
    for who, raw in lines:
        text = _MARGIN.sub("", raw)
        frame = _FRAME.match(text)
        if _CHAINED.match(text):
            chained.add(who)
        elif _TRACE_BEGINS in text or (frame and who not in reading):
            reading[who] = _led_to(ended.pop(who)) if who in chained and who in ended else Trace(who)
            chained.discard(who)
        if who in reading:
            trace = reading[who]
            if frame:
                trace.calls.append((frame["file"], frame["function"]))
                trace.frames.append(text.strip())
            elif _REMOTE.match(text):
                trace.error = text  # until something more precise follows
            elif trace.frames and _ERROR.match(text):
                trace.error = text
                ended[who] = saying[who] = reading.pop(who)
                found.append(trace)
        elif who in saying and text[:1].strip() and len(saying[who].more) < _MORE and not _LOGGED.match(text):
            saying[who].more.append(text)
        else:
            saying.pop(who, None)
    return found + [trace for trace in reading.values() if trace.error]


def _led_to(earlier: Trace) -> Trace:
    return Trace(earlier.who, list(earlier.calls), led=[*earlier.led, earlier.error])


# --- phases

_PHASES: tuple[tuple[Phase, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(functions))
    for phase, functions in (
        (Phase.CHECKPOINT_LOAD, r"_?load_checkpoint|load_dist_checkpointing"),
        (Phase.CHECKPOINT_SAVE, r"_?save_checkpoint|save_dist_checkpointing"),
        (Phase.WEIGHT_SYNC, r"update_weights\w*|on_step_end|on_init_end|switch_to_rollout"),
        (Phase.UPDATE, r"_?update_(?:actor|critic)|train_(?:mini_)?batch|optimizer_step"),
        (
            Phase.LOG_PROB,
            r"_?compute_(?:old_|ref_)?log_prob|_?compute_values|infer_batch",
        ),
        (
            Phase.ROLLOUT,
            r"generate(?:_sequences)?|_run_(?:prompt|agent_loop)|_validate|sample|on_sample_\w+"
            r"|compute_score\w*|run_single|execute_model|determine_num_available_blocks",
        ),
        (
            Phase.START,
            r"init|init_(?:model|workers|standalone|colocated|hybrid|agent_loop_manager)|_init_\w+|launch_servers"
            r"|validate_config|create_rl_(?:dataset|sampler)|initialize_kv_caches?|_initialize_kv_caches"
            r"|get_custom_reward_fn|load_extern_object|initialize",
        ),
    )
)


def phase_of(calls: Sequence[tuple[str, str]]) -> Phase:
    """The phase that the innermost call which belongs to one belongs to."""
    for _, function in reversed(calls):
        for phase, pattern in _PHASES:
            if pattern.fullmatch(function):
                return phase
    return Phase.UNKNOWN


# --- causes


class Where(Enum):
    FATAL = "the traceback that the driver itself died of"
    TRACE = "any traceback"
    LINE = "any line, which the pattern must match from its first character on"


@dataclass(frozen=True, slots=True)
class Rule:
    """`error` is sought in the error's text (or matched to the line), `calls` in any ``file:function``."""

    cause: Cause
    where: tuple[Where, ...]
    error: str = ""
    calls: str = ""
    phase: Phase | None = None
    at_start_only: bool = False

    def fits_trace(self, trace: Trace) -> bool:
        if self.calls and not any(re.search(self.calls, f"{file}:{name}") for file, name in trace.calls):
            return False
        return re.search(self.error, trace.text) is not None

    def fits_line(self, text: str) -> bool:
        return re.match(self.error, text) is not None


_ANY = (Where.FATAL, Where.TRACE)
_CONFIG_FILES = r"/verl/(?:utils/config|base_config|(?:workers|trainer)/config/)\w*.*:"
_REWARD = (
    r"/(?:reward_score|reward_manager|reward_loop)/|/trainer/ppo/reward\.py:"
    r"|:(?:compute_score\w*|run_single|compute_reward\w*)$"
)
# verl logs what a reward function raises and goes on, so it may stand far above what ends the driver.
_RAISED_BY_REWARD = r"^(?!ray\.|.*(?:ActorDied|ActorUnavailable|WorkerCrashed|CancelledError|ConnectionError))"

RULES: tuple[Rule, ...] = (
    # Out of memory on the GPU: torch, vLLM's allocator and engine, cuBLAS and cuDNN each in their own words.
    Rule(
        Cause.CUDA_OOM,
        _ANY,
        r"CUDA out of memory|CUDA error: out of memory|torch\.(?:cuda\.)?OutOfMemoryError"
        r"|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|Failed to CUDA calloc|NVML_ERROR_MEMORY",
    ),
    Rule(
        Cause.CUDA_OOM,
        _ANY,
        r"No available memory for the cache blocks|larger than the available KV cache memory"
        r"|larger than the maximum number of tokens that can be stored in KV cache"
        r"|is less than desired GPU memory utilization|Free memory on device .* on startup is less",
        phase=Phase.START,
    ),
    Rule(Cause.CUDA_OOM, (Where.LINE,), r"(?:CUDA Error: out of memory at |torch\.(?:cuda\.)?OutOfMemoryError: )"),
    # On the host. Ray's text on a worker that died names the OOM killer as one of its guesses: that proves nothing.
    Rule(
        Cause.HOST_OOM,
        _ANY,
        r"ray\.exceptions\.OutOfMemoryError|killed due to the node running low on memory|^MemoryError\b"
        r"|std::bad_alloc|DefaultCPUAllocator: (?:can't|not enough)|Cannot allocate memory",
    ),
    Rule(
        Cause.HOST_OOM,
        (Where.LINE,),
        r".{0,80}(?:\(tasks / actors\) killed due to memory pressure|killed by the memory monitor)",
    ),
    # torch's own writer does not say that the disk is full: what it wrote is shorter than it ought to be.
    Rule(
        Cause.DISK_FULL,
        (Where.FATAL,),
        r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing"
        r"|inline_container.* unexpected pos",
    ),
    Rule(
        Cause.DISK_FULL,
        (Where.LINE,),
        r".{0,120}enforce fail at inline_container\.cc:\d+\] \. unexpected pos",
        phase=Phase.CHECKPOINT_SAVE,
    ),
    Rule(
        Cause.NODE_FAIL,
        _ANY,
        r"NodeDiedError|its node has died|because the node it was running on (?:is dead|died)|due to node failure",
    ),
    Rule(
        Cause.NODE_FAIL,
        (Where.LINE,),
        r"(?:The node with node id: \S+|.{0,80}node \S+) .{0,120}has been marked dead",
    ),
    Rule(
        Cause.DIVERGED,
        _ANY,
        r"probability tensor contains either `inf`, `nan`|(?:loss|grad_norm|reward|score)\w* (?:is|became|=) nan",
    ),
    # What the driver itself died of, where it is the user's to mend.
    Rule(Cause.REWARD_ERROR, _ANY, r"Reward function is not implemented for data_source"),
    Rule(
        Cause.CONFIG_ERROR,
        _ANY,
        r"^(?:FileNotFoundError|RuntimeError|AttributeError|ImportError|ModuleNotFoundError|SyntaxError)",
        calls=r":(?:get_custom_reward_fn|load_extern_object|load_module)$",
        phase=Phase.START,
    ),
    Rule(Cause.REWARD_ERROR, (Where.FATAL,), _RAISED_BY_REWARD, calls=_REWARD),
    Rule(
        Cause.CONFIG_ERROR,
        (Where.FATAL,),
        r"^(?:omegaconf\.errors\.|hydra\.errors\.|antlr4\.|hydra\._internal)|Config(?:Attribute|Key|Type)Error"
        r"|MissingMandatoryValue|InterpolationKeyError|InterpolationResolutionError",
        phase=Phase.START,
    ),
    Rule(
        Cause.CONFIG_ERROR,
        (Where.FATAL,),
        r"^(?:AssertionError|ValueError|TypeError|KeyError|NotImplementedError|AttributeError)\b",
        calls=rf"{_CONFIG_FILES}|:validate_config$|:__post_init__$|:omega_conf_to_dataclass$",
        phase=Phase.START,
    ),
    # Megatron and the kernels refuse what they cannot compute when they come to it, so in the first step.
    Rule(
        Cause.CONFIG_ERROR,
        (Where.FATAL,),
        r"^(?:AssertionError|ValueError|TypeError|NotImplementedError)\b",
        calls=r"/megatron/(?:core|bridge)/|/transformer_engine/|/verl/utils/kernel/",
        at_start_only=True,
    ),
    # Transformer Engine has no attention for what was asked, as flash where flash-attn is not installed.
    Rule(Cause.CONFIG_ERROR, _ANY, r"No dot product attention backend is available"),
    Rule(
        Cause.CONFIG_ERROR,
        (Where.FATAL,),
        r"is not a local folder and is not a valid model identifier|HFValidationError|RepositoryNotFoundError"
        r"|GatedRepoError|LocalEntryNotFoundError|OfflineModeIsEnabled|We couldn't connect to|DataFilesNotFoundError"
        r"|Unknown platform '|does not appear to have a file named|Unrecognized model in"
        r"|does not recognize this architecture",
        phase=Phase.START,
    ),
    Rule(
        Cause.CONFIG_ERROR,
        (Where.FATAL,),
        r"size mismatch for |Missing key\(s\) in state_dict|Unexpected key\(s\) in state_dict"
        r"|checkpoint .*world[ _]size",
        calls=r":_?load_checkpoint$",
        phase=Phase.CHECKPOINT_LOAD,
    ),
    Rule(
        Cause.CONFIG_ERROR,
        (Where.FATAL,),
        r"^(?:FileNotFoundError|NotADirectoryError|IsADirectoryError|PermissionError|ModuleNotFoundError|ImportError"
        r"|datasets\.\S+)\b",
        at_start_only=True,
    ),
    Rule(
        Cause.CONFIG_ERROR,
        (Where.LINE,),
        r"Could not (?:override|append to config|delete from config|load) |Error (?:parsing override|merging override)"
        r"|Error when (?:composing|loading)|Key '[^']*' is not in struct|You must specify '"
        r"|Ambiguous value for argument"
        r"|LexerNoViableAltException|no viable alternative at input|mismatched input |extraneous input "
        r"|token recognition error|missing .{1,80} at '|Multiple values for |Missing mandatory value"
        r"|In '[^']*': (?:Could not|ConfigKeyError|ConfigAttributeError|ValidationError)"
        r"|Primary config (?:module|directory)|Unable to find or instantiate|\S*python\S*: No module named "
        r"|\S*python\S*: Error while finding module",
        phase=Phase.START,
        at_start_only=True,
    ),
    Rule(Cause.PORT_CLASH, _ANY, r"(?i)EADDRINUSE|address already in use|Errno 98"),
    Rule(
        Cause.RAY_BOOT,
        (Where.FATAL,),
        r"Total available GPUs \S+ is less than total desired|Could not find any running Ray instance"
        r"|Failed to connect to (?:GCS|the Ray cluster)|InvalidAuthToken|AuthenticationError|timed out during startup"
        r"|ray\.exceptions\.RpcError|RaySystemError",
        phase=Phase.START,
    ),
    # Communication, last of those with a name: it breaks in all workers when anything breaks in one.
    Rule(
        Cause.NCCL,
        _ANY,
        r"NCCL (?:error|Error|WARN)|nccl(?:System|Internal|UnhandledCuda|Remote|InvalidUsage)Error|ncclRemoteError"
        r"|DistBackendError|DistNetworkError|DistStoreError|collective operation timeout|gloo/transport"
        r"|Connection closed by peer|Timed out waiting \d+ms for (?:recv|send) operation",
    ),
    Rule(
        Cause.NCCL,
        (Where.LINE,),
        r"(?:\[rank ?\d+\]:?)?.{0,120}(?:Watchdog caught collective operation timeout"
        r"|ProcessGroupNCCL's watchdog got stuck"
        r"|terminating the process after attempting to dump debug info, due to (?:collective )?timeout)",
    ),
    Rule(Cause.REWARD_ERROR, (Where.TRACE,), _RAISED_BY_REWARD, calls=_REWARD),
)

_FINISHED = re.compile(r"""[("']{0,2}Final validation metrics:""")
_TERMINATED = re.compile(r"\*\*\* SIG(?:TERM|INT|HUP) received")


def classify(
    log: Iterable[str],
    exit_code: int | None,
    *,
    has_trained: bool = False,
    not_a_number: str = "",
    oom_kills: int = 0,
) -> End:
    """The end of a driver whose log is `log`. Pure; `started` and `ended` are left to the caller.

    exit_code     as a shell says it: 128 + n for signal n
    has_trained   at least one step's metrics were written
    not_a_number  the loss or score whose last value is none, if one
    oom_kills     how many processes the kernel killed on this machine meanwhile for want of memory
    """
    if exit_code == 0:
        if not_a_number:
            return End(Cause.DIVERGED, exit_code=0, reason=f"{not_a_number} is not a number")
        return End(Cause.COMPLETED, exit_code=0)
    lines = [plain(raw) for raw in log]
    traces = traces_of(lines)
    default = Phase.UNKNOWN if has_trained else Phase.START
    if _has_finished(lines):
        return End(
            Cause.COMPLETED,
            exit_code=exit_code,
            reason=f"training had finished when the process ended with exit code {exit_code}",
        )
    for end in _by_rules(lines, traces, default):
        if not (end.cause in _CONSEQUENCES and not_a_number):
            return _with(end, exit_code)
        break
    fatal = _fatal(traces)
    said = fatal.lines() if fatal else tuple(dict.fromkeys(line.text for line in lines[-8:]))
    phase = default if fatal is None or phase_of(fatal.calls) is Phase.UNKNOWN else phase_of(fatal.calls)
    cause, reason = _by_exit(exit_code, lines, fatal, not_a_number, oom_kills)
    return End(cause, phase, exit_code, reason[:500], _short(said))


def last_trouble(log: Iterable[str]) -> tuple[str, ...]:
    """The last traceback of any process: what a trainer that had to be stopped may have been stuck on."""
    traces = traces_of(map(plain, log))
    return _short(traces[-1].lines()) if traces else ()


# With a loss that is no number in the metrics, these are more likely what came of it.
_CONSEQUENCES = (Cause.NCCL, Cause.RAY_BOOT, Cause.PORT_CLASH)


def _by_rules(lines: Sequence[Line], traces: Sequence[Trace], default: Phase) -> Iterator[End]:
    fatal = _fatal(traces)
    for rule in RULES:
        if rule.at_start_only and default is not Phase.START:
            continue
        candidates = [fatal] if fatal and Where.FATAL in rule.where else []
        candidates += traces if Where.TRACE in rule.where else []
        for trace in candidates:
            if rule.fits_trace(trace):
                phase = phase_of(trace.calls)
                phase = phase if phase is not Phase.UNKNOWN else rule.phase or default
                yield End(rule.cause, phase, reason=_reason(trace), lines=_short(trace.lines()))
        if Where.LINE in rule.where:
            for at, line in enumerate(lines):
                if rule.fits_line(line.text):
                    around = [x.text for x in lines[at : at + 4] if x.who == line.who]
                    yield End(rule.cause, rule.phase or default, reason=line.text[:500], lines=_short(around))


def _by_exit(
    exit_code: int | None, lines: Sequence[Line], fatal: Trace | None, not_a_number: str, oom_kills: int
) -> tuple[Cause, str]:
    """What is left to go by when nothing in the log has a name."""
    last = _reason(fatal) if fatal else ""
    if oom_kills > 0 and (exit_code == 137 or re.search(r"ActorDied|WorkerCrashed|SIGKILL", last)):
        return Cause.HOST_OOM, f"the kernel killed {oom_kills} process(es) for want of memory"
    if not_a_number:
        return Cause.DIVERGED, f"{not_a_number} is not a number" + (f"; {last}" if last else "")
    if any(_TERMINATED.match(line.text) for line in lines[-200:]) or exit_code in (130, 137, 143):
        return Cause.KILLED, f"the trainer was ended from outside ({_exit(exit_code)})"
    return Cause.UNKNOWN, last or _exit(exit_code)


def _has_finished(lines: Sequence[Line]) -> bool:
    """verl's last words, after the last checkpoint and the last metrics, with no error after them."""
    said = [at for at, line in enumerate(lines) if _FINISHED.match(line.text)]
    return bool(said) and not any(_TRACE_BEGINS in line.text for line in lines[said[-1] :])


def _fatal(traces: Sequence[Trace]) -> Trace | None:
    return next((trace for trace in reversed(traces) if not trace.who), None)


def _reason(trace: Trace) -> str:
    more = trace.more[0] if trace.more and trace.error.endswith(":") else ""
    return f"{trace.error} {more}".strip()[:500]


def _exit(code: int | None) -> str:
    if code is None:
        return "no exit code"
    try:
        return f"exit code {code}, {signal.Signals(code - 128).name}" if code > 128 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"


def _short(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(line[:500] for line in lines if line)[:12]


def _with(end: End, exit_code: int | None) -> End:
    return End(end.cause, end.phase, exit_code, end.reason, end.lines)


# --- metrics

SCORES = ("critic/score/mean", "critic/rewards/mean")
LOSSES = ("actor/pg_loss", "actor/loss", "critic/vf_loss")


def not_a_number(metrics: Sequence[tuple[int, Mapping[str, float | None]]], names: Iterable[str]) -> str:
    """Which of `names` was no finite number when it was last written; empty for none.

    verl's file logger writes NaN and infinity as null, for JSON has no word for them.
    """
    for name in names:
        last = next((data[name] for _, data in reversed(metrics) if name in data), 0.0)
        if last is None or last != last or last in (float("inf"), float("-inf")):
            return name
    return ""
