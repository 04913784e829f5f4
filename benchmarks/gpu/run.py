"""Real jobs on real GPUs: verl with Megatron-Bridge's Hy3 bridge and vLLM, their memory against the estimate.

    python benchmarks/gpu/run.py OUT GROUP...             on a machine with GPUs; groups are in cases.py
    python benchmarks/gpu/run.py OUT GROUP... --dry-run   the command lines, checked; no GPU, nothing runs
    python benchmarks/gpu/run.py OUT tiny --cpu           a rehearsal without a GPU: the shipped tiny Hy3
    python benchmarks/gpu/run.py --table OUT/results.json...

The cases of a group run side by side, each on its GPU, and with those of another that is added to it (tiny+memory);
groups one by one. OUT gets models/, the studies, and results.json, written anew whenever a case ends: for each attempt
its end, what verl logged of each step, torch's peak by phase (memory_by_phase.py), what the GPU's driver counts for its
processes, and the estimate.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from cases import GROUPS, Case  # noqa: E402

from hysweep.check import check_trial, errors  # noqa: E402
from hysweep.compile import compile_trial  # noqa: E402
from hysweep.compose import Composer  # noqa: E402
from hysweep.compose.composer import load_trial  # noqa: E402
from hysweep.estimate import estimate  # noqa: E402
from hysweep.launch.ending import classify, read_log  # noqa: E402
from hysweep.schema import BadInput, Trial  # noqa: E402
from hysweep.track import AttemptDirectory, End, StudyDirectory  # noqa: E402

PACKAGES = ("hysweep", "verl", "vllm", "megatron-core", "megatron-bridge", "transformer-engine", "transformers", "ray",
            "torch", "TransferQueue", "tensordict", "hydra-core", "optuna")  # fmt: skip
KEPT = (
    "actor/pg_loss", "actor/grad_norm", "actor/ppo_kl", "actor/pg_clipfrac", "critic/score/mean", "critic/rewards/mean",
    "training/rollout_probs_diff_mean", "training/rollout_probs_diff_max", "training/rollout_actor_probs_pearson_corr",
    "rollout_corr/rollout_is_mean", "rollout_corr/rollout_is_oob_ratio", "rollout_corr/log_ppl_diff",
    "actor/perf/max_memory_allocated_gb", "actor/perf/max_memory_reserved_gb", "perf/total_num_tokens", "timing_s/step",
    "timing_s/gen", "timing_s/old_log_prob", "timing_s/update_actor", "timing_s/update_weights",
    "response_length/mean", "prompt_length/mean", "global_seqlen/max",
)  # fmt: skip
LOOK_S = 0.25
STOPS_S = 40


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument(
        "--only", action="append", default=[], help="of the groups, only cases of this name; may be repeated"
    )
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--within", type=float, default=560, help="seconds, after which all that runs is cancelled")
    parser.add_argument("--table", type=Path, nargs="+", help="print the results of these files")
    given = parser.parse_args()
    if given.table:
        for line in table([r for file in given.table for r in json.loads(file.read_text())["attempts"]]):
            print(line)
        return 0
    together = [group.split("+") for group in given.groups]
    if not given.out or (unknown := {name for names in together for name in names} - set(GROUPS)):
        parser.error(f"no such group: {', '.join(unknown)}" if given.out else "give OUT and groups")
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    chosen = [
        [c for name in names for c in GROUPS[name] if not given.only or c.name in given.only] for names in together
    ]
    gpus = [] if given.cpu or given.dry_run else seen_gpus()
    if not gpus and not given.cpu and not given.dry_run:
        parser.error("there is no GPU here: --dry-run, or --cpu for a rehearsal")
    build_models([c for group in chosen for c in group if not given.cpu], out / "models", with_weights=bool(gpus))
    deadline = time.monotonic() + given.within
    results: list[dict[str, Any]] = []
    for group in chosen:
        runs = [Run(case, out, gpus, is_cpu=given.cpu) for case in group]
        if given.dry_run:
            results += [r.look() for r in runs]
            continue
        results += run_side_by_side(runs, gpus, deadline, lambda rows, before=results: write(out, before + rows, gpus))
        write(out, results, gpus)
    if given.dry_run:
        return int(any(r["is_wrong"] for r in results))
    for line in table(results):
        print(line)
    return int(any(r["cause"] != "completed" for r in results))


# --- cases


class Run:
    """A case on its way: the process that drives it, and where what it does is written."""

    def __init__(self, case: Case, out: Path, gpus: Sequence[dict[str, Any]], is_cpu: bool) -> None:
        self.case = case
        self.name = case.name.replace(" ", "_").replace(",", "").replace(":", "")
        self.study = StudyDirectory(out / "studies" / self.name)
        self.by_hand = AttemptDirectory(out / "by_hand" / self.name / "attempts" / "1")
        self.gpus = [gpus[(case.on + i) % len(gpus)] for i in range(case.gpus)] if gpus else []
        kind = self.gpus[0] if self.gpus else {"name": "H200", "gib": 139.8}
        words = case.command(out / "models", kind["name"], kind["gib"])
        if is_cpu:
            words = [w for w in words if w.startswith(("algorithm", "study", "trainer.total", "trainer.save"))]
            words.append("model.external_lib=memory_by_phase")
        self.words = [*words, f"study.root={out / 'studies'}", f"study.name={self.name}"]
        self.process: subprocess.Popen[bytes] | None = None
        self.began = time.time()

    @property
    def environment(self) -> dict[str, str]:
        found = (
            os.environ
            | self.case.env
            | {"PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))}
        )
        if self.gpus:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(str(g["index"]) for g in self.gpus)
        return found

    def trial(self) -> Trial:
        return Composer().compose(self.words).trial

    def look(self) -> dict[str, Any]:
        """What `check` says of the command line; a case that runs by hand may be one that it refuses."""
        try:
            problems = check_trial(self.trial())
        except BadInput as e:
            problems = list(e.problems)
        print(
            f"{self.case.name}\n  hysweep run {' '.join(self.words)}",
            *(f"  {p.severity}: {p}" for p in problems),
            sep="\n",
        )
        return {"is_wrong": bool(errors(problems)) and not self.case.by_hand}

    def start(self) -> None:
        self.began = time.time()
        if not self.case.by_hand:
            is_sweep = any("," in w.partition("=")[2] and w.startswith("algorithm=") for w in self.words)
            command = [sys.executable, "-m", "hysweep", "run", *(["-m"] if is_sweep else []), *self.words]
            self.process = self._spawn(command, self.environment, self.study.path.with_suffix(".log"))
            return
        self.by_hand.path.mkdir(parents=True, exist_ok=True)
        trial = self.trial()
        job = compile_trial(trial, self.by_hand.trial.path, "by-hand")
        self.by_hand.prepare(job.as_dict())
        placed = {
            "HYSWEEP_ATTEMPT": str(self.by_hand.path),
            "VERL_FILE_LOGGER_PATH": str(self.by_hand.metrics_file),
            "SPT_NOENV": "1",
        }
        command = [sys.executable, "-m", job.module, *job.overrides]
        self.process = self._spawn(command, self.environment | job.env | placed, self.by_hand.driver_log)

    def _spawn(self, command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as file:
            return subprocess.Popen(
                command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, cwd=log.parent
            )

    def stop(self) -> None:
        assert self.process
        if self.process.poll() is None:
            if not self.case.by_hand:
                with suppress(subprocess.TimeoutExpired):
                    subprocess.run(
                        [sys.executable, "-m", "hysweep", "cancel", str(self.study.path)],
                        timeout=STOPS_S,
                        capture_output=True,
                    )
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5 if self.case.by_hand else STOPS_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def attempts(self) -> Iterator[tuple[AttemptDirectory, Trial]]:
        if self.case.by_hand:
            yield self.by_hand, self.trial()
            return
        for trial in self.study.trials() if self.study.exists else ():
            for attempt in trial.attempts():
                yield attempt, load_trial(attempt.placement() or trial.config_file.read_text())

    def results(self, samples: list[Sample]) -> Iterator[dict[str, Any]]:
        found = False
        for attempt, trial in self.attempts():
            found = True
            end = attempt.end() or self._end_by_hand(attempt)
            yield {
                "case": self.case.name,
                "point": attempt.trial.point() if not self.case.by_hand else {},
                "attempt": attempt.number,
                **(asdict(end) if end else {"cause": "killed", "phase": "unknown", "reason": "it did not end in time"}),
                "seconds": round(
                    (end.ended if end and end.ended else time.time())
                    - (end.started if end and end.started else self.began)
                ),
                "is_alone": self.case.is_alone,
                "problems": [f"{p.key} = {p.value}: {p.why} ({p.stage})" for p in check_trial(trial)]
                if self.case.by_hand
                else [],
                "steps": {step: {k: v for k, v in data.items() if k in KEPT} for step, data in attempt.metrics()},
                "phases": phases_of(attempt),
                "compositions": {p.stem: json.loads(p.read_text()) for p in attempt.path.glob("composition-*.json")},
                "driver": driver_of(samples, attempt),
                "estimate": estimated(trial),
            }
        if not found:
            log = self.study.path.with_suffix(".log")
            said = log.read_text(errors="replace")[-1500:] if log.exists() else ""
            yield {
                "case": self.case.name,
                "point": {},
                "attempt": 0,
                "cause": "not started",
                "phase": "start",
                "reason": said,
            }

    def _end_by_hand(self, attempt: AttemptDirectory) -> End | None:
        if not self.case.by_hand or not self.process:
            return None
        return classify(read_log(attempt.driver_log), self.process.poll(), has_trained=bool(attempt.metrics()))


def run_side_by_side(
    runs: list[Run], gpus: Sequence[dict[str, Any]], deadline: float, keep: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """The results of all; `keep` gets those that are there whenever a run ends."""
    sampler = Sampler(gpus)
    for run in runs:
        run.start()
        print(f"{time.strftime('%T')} {run.case.name} starts", flush=True)
    running = list(runs)
    while running and time.monotonic() < deadline:
        for run in [r for r in running if r.process and r.process.poll() is not None]:
            running.remove(run)
            print(f"{time.strftime('%T')} {run.case.name} ended after {time.time() - run.began:.0f} s", flush=True)
            if run.case.by_hand:
                run.stop()
            keep([row for r in runs if r not in running for row in r.results(sampler.samples)])
        time.sleep(LOOK_S)
    stopping = [threading.Thread(target=r.stop) for r in running]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join()
    sampler.stop()
    return [row for run in runs for row in run.results(sampler.samples)]


def build_models(cases: list[Case], models: Path, with_weights: bool) -> None:
    """Those that are not there; side by side, since most of the time goes into imports."""
    lengths: dict[str, set[int]] = {}
    for c in cases:
        if c.model and not (models / c.model / f"{c.rows}-{c.prompt}.parquet").exists():
            lengths.setdefault(c.model, set()).add(c.prompt)
    building = []
    for name, prompts in lengths.items():
        asked = [word for length in sorted(prompts) for word in ("--prompt", str(length))]
        how = [] if with_weights else ["--no-weights"]
        building.append(
            subprocess.Popen([sys.executable, str(HERE / "model.py"), name, str(models / name), *asked, *how])
        )
    if any(p.wait() for p in building):
        raise SystemExit("a model could not be built")


# --- what was measured


class Sample:
    """What the driver of the GPUs said at one moment: MiB by process."""

    __slots__ = ("at", "by_pid")

    def __init__(self, at: float, by_pid: list[tuple[int, int, float]]) -> None:
        self.at, self.by_pid = at, by_pid


class Sampler:
    """Asks NVML for each process's memory, four times a second, and finds out whose the processes are."""

    def __init__(self, gpus: Sequence[dict[str, Any]]) -> None:
        self.samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=([g["index"] for g in gpus],), daemon=True)
        if gpus:
            self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self, indices: list[int]) -> None:
        import pynvml

        pynvml.nvmlInit()
        handles = {i: pynvml.nvmlDeviceGetHandleByIndex(i) for i in indices}
        while not self._over.wait(LOOK_S):
            found = []
            for index, handle in handles.items():
                for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    who(p.pid)
                    found.append((index, p.pid, (p.usedGpuMemory or 0) / 2**30))
            self.samples.append(Sample(time.time(), found))


_KNOWN: dict[int, tuple[str, str]] = {}


def who(pid: int) -> tuple[str, str]:
    """The attempt that a process belongs to, and what it is there: trainer or engine."""
    if pid not in _KNOWN:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return "", ""
        mark = next((e[16:].decode() for e in environment if e.startswith(b"HYSWEEP_ATTEMPT=")), "")
        _KNOWN[pid] = (mark, "engine" if "VLLM" in name or "EngineCore" in name else "trainer")
    return _KNOWN[pid]


def driver_of(samples: list[Sample], attempt: AttemptDirectory) -> dict[str, float]:
    """GiB of one GPU at most: of the trainer's processes, of the engine's, of both at once, in phases and outside."""
    intervals = [(r["began"], r["ended"], r["phase"]) for r in rows_of(attempt) if r["began"]]
    most: dict[str, float] = {}
    own = os.path.realpath(attempt.path)
    for sample in samples:
        phase = next((p for began, ended, p in intervals if began <= sample.at <= ended), "between")
        by_gpu: dict[int, dict[str, float]] = {}
        for index, pid, gib in sample.by_pid:
            mark, kind = who(pid)
            if mark == own:
                sums = by_gpu.setdefault(index, {"trainer": 0.0, "engine": 0.0, "both": 0.0, f"both, {phase}": 0.0})
                for key in (kind, "both", f"both, {phase}"):
                    sums[key] += gib
        for sums in by_gpu.values():
            most |= {key: round(max(gib, most.get(key, 0)), 3) for key, gib in sums.items()}
    return most


def rows_of(attempt: AttemptDirectory) -> list[dict[str, Any]]:
    files = sorted(attempt.path.glob("memory-*.jsonl"))
    return [json.loads(line) | {"rank": f.stem[7:]} for f in files for line in f.read_text().splitlines()]


def phases_of(attempt: AttemptDirectory) -> dict[str, list[dict[str, Any]]]:
    """Of each rank, every phase in order: torch's peak, what it had reserved, what stayed, the host's, GiB; seconds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(attempt):
        kept = {k: row[k] for k in ("phase", "peak", "reserved", "held", "host", "host_peak") if k in row}
        if row["began"]:
            kept["seconds"] = round(row["ended"] - row["began"], 2)
        found.setdefault(row["rank"], []).append(kept)
    return found


def estimated(trial: Trial) -> dict[str, Any]:
    if not trial.has_gpu:
        return {}
    found = estimate(trial)
    uses: dict[str, dict[str, Any]] = {}
    for u in found.uses:
        uses.setdefault(u.stage, {})[u.phase] = {"torch": u.torch_gib, "total": u.total_gib, "parts": u.parts}
    return {"uses": uses, "host": found.host_gib_per_node, "checkpoint": found.checkpoint_gib}


def seen_gpus() -> list[dict[str, Any]]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return []
    found = []
    for i in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(i)
        gib = round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30, 1)
        found.append({"index": i, "name": pynvml.nvmlDeviceGetName(handle).split()[-1], "gib": gib})
    return found


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def write(out: Path, results: list[dict[str, Any]], gpus: Sequence[dict[str, Any]]) -> None:
    (out / "results.json").write_text(
        json.dumps({"versions": versions(), "gpus": list(gpus), "attempts": results}, indent=1, default=str)
    )


# --- the table


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    yield "| case | end | steps | s a step | probability difference | phase | estimated | measured | error |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for r in results:
        steps = {int(k): v for k, v in r.get("steps", {}).items()}
        later = [v["timing_s/step"] for k, v in steps.items() if k > 2 and "timing_s/step" in v]
        apart = [
            v["training/rollout_probs_diff_mean"] for v in steps.values() if "training/rollout_probs_diff_mean" in v
        ]
        name = " ".join(
            [r["case"], *map(str, r["point"].values()), *([f"attempt {r['attempt']}"] if r["attempt"] > 1 else [])]
        )
        end = r["cause"] if r["cause"] == "completed" else f"{r['cause']}, {r['phase']}: {r['reason'][:90]}"
        first = [
            name,
            end,
            str(len(steps)),
            f"{statistics.median(later):.2f}" if later else "",
            f"{max(apart):.1e}" if apart else "",
        ]
        lines = list(comparisons(r)) or [("", None, None)]
        for i, (phase, computed, measured) in enumerate(lines):
            numbers = (
                ["", "", ""]
                if computed is None or measured is None
                else [f"{computed:.2f}", f"{measured:.2f}", f"{computed / measured - 1:+.1%}"]
            )
            yield "| " + " | ".join([*(first if i == 0 else [""] * len(first)), phase, *numbers]) + " |"


def comparisons(r: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """(phase, estimated, measured) in GiB: torch's peaks by phase on each stage, the whole GPU around the rollout, and
    the trainer's process on the host.

    Before the first update is over the optimizer has no moments, unless they came with a checkpoint: of each phase the
    second and later peaks count, and of the host the most that was ever held, once two steps are done.
    """
    uses = r.get("estimate", {}).get("uses", {})
    ranks = r.get("phases", {})
    stages = list(uses)
    for rank, rows in ranks.items():
        has_resumed = any(row["phase"] == "resume" for row in rows)
        of_rank = stages[-1] if len(stages) > 1 and int(rank) == len(ranks) - 1 else stages[0] if stages else ""
        for phase in ("train", "log_prob", "reference", "weight_sync", "resume"):
            peaks = [row["peak"] for row in rows if row["phase"] == phase and "peak" in row]
            if not has_resumed:
                peaks = peaks[1:]
            if peaks and phase in uses.get(of_rank, {}):
                yield (phase if len(ranks) == 1 else f"{phase}, rank {rank}"), uses[of_rank][phase]["torch"], max(peaks)
    if r.get("is_alone") and stages and r.get("driver"):
        computed = max(uses[s][p]["total"] for s in stages for p in ("rollout", "weight_sync") if p in uses[s])
        around = [v for k, v in r["driver"].items() if k in ("both, between", "both, weight_sync")]
        if around:
            yield "whole GPU, rollout", computed, max(around)
    held = [row.get("host_peak", row["host"]) for rows in ranks.values() for row in rows if "host" in row]
    if len(ranks) == 1 and stages and held and len(r["steps"]) > 1:
        yield "host", r["estimate"]["host"], max(held)


if __name__ == "__main__":
    sys.exit(main())
