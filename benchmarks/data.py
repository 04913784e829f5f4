"""`hysweep data convert` against the aims: 200,000 simple rows a second, under 1 GB, 5 times as fast as datasets.map.

    python benchmarks/data.py [ROWS] [GB]

ROWS (1000000) of simple rows, as JSONL, CSV, parquet and Arrow, each converted by a whole process, imports included;
then the parquet by `datasets.load_dataset(...).map(...).to_parquet(...)`, as many processes as cores, a cold cache.
With GB also a JSONL file of so many, for the memory. Ends with 1 where an aim is missed.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROWS_A_SECOND, PEAK_MIB, RATIO = 200_000, 1000, 5.0
FLAGS = ["--prompt", "{question} Answer with a number.", "--answer", "answer", "--data-source", "my/math"]

WITH_MAP = """
import sys, datasets
source, out, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
def turn(row, index):
    return {"data_source": "my/math",
            "prompt": [{"role": "user", "content": row["question"] + " Answer with a number."}], "ability": "",
            "reward_model": {"style": "rule", "ground_truth": row["answer"]}, "extra_info": {"index": index}}
table = datasets.load_dataset("parquet", data_files=source)["train"]
table = table.map(turn, with_indices=True, num_proc=workers, remove_columns=table.column_names)
table.to_parquet(out)
"""


def rows(first: int, count: int) -> list[dict[str, str]]:
    return [
        {"question": f"A farmer has {i} hens and buys {i % 97} more. How many hens does the farmer have now?",
         "answer": str(i + i % 97)}
        for i in range(first, first + count)
    ]  # fmt: skip


KINDS = ("jsonl", "csv", "parquet", "arrow")


def write(folder: Path, count: int) -> None:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    files = {kind: folder / f"rows.{kind}" for kind in KINDS}
    table = pa.Table.from_pylist(rows(0, count))
    pq.write_table(table, files["parquet"])
    pyarrow.csv.write_csv(table, files["csv"])
    with pa.ipc.new_stream(files["arrow"], table.schema) as stream:
        stream.write_table(table, max_chunksize=1000)  # as `datasets` does
    with open(files["jsonl"], "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows(0, count))


def run(command: list[str], environment: dict[str, str] | None = None) -> tuple[float, float, float]:
    """Seconds, those of a core, and the peak of the process in MiB. This process stays small: a child's peak begins
    with its parent's."""
    began = time.monotonic()
    pid = os.posix_spawn(command[0], command, environment or dict(os.environ),
                         file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                                       (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)])  # fmt: skip
    _, status, used = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def convert(source: Path, out: Path) -> tuple[float, float, float]:
    return run([sys.executable, "-m", "hysweep", "data", "convert", str(source), "-o", str(out), "--force", *FLAGS])


def main(count: int = 1_000_000, gigabytes: float = 0.0) -> int:
    missed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run([sys.executable, __file__, "--write", str(folder), str(count)])
        files = {kind: folder / f"rows.{kind}" for kind in KINDS}
        slowest, fastest = float("inf"), 0.0
        for kind, file in files.items():
            seconds, cpu, mib = convert(file, folder / "out.parquet")
            rate = count / seconds
            print(f"{kind:>8}: {rate:>9,.0f} rows/s, {mib:,.0f} MiB at most ({seconds:.1f} s, {cpu:.1f} s of CPU)")
            slowest = min(slowest, rate)
            if kind == "parquet":
                fastest = rate
            if mib > PEAK_MIB:
                missed.append(f"{kind}: {mib:,.0f} MiB")
        if slowest < ROWS_A_SECOND:
            missed.append(f"{slowest:,.0f} rows/s")
        workers = len(os.sched_getaffinity(0))
        cold = dict(os.environ) | {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
        arguments = [sys.executable, "-c", WITH_MAP, str(files["parquet"]), str(folder / "map.parquet"), str(workers)]
        seconds, *_ = run(arguments, cold)
        ratio = fastest / (count / seconds)
        print(
            f"datasets: {count / seconds:>9,.0f} rows/s with {workers} processes; convert is {ratio:.1f} times as fast"
        )
        if ratio < RATIO:
            missed.append(f"{ratio:.1f} times datasets.map")
        for file in files.values():
            file.unlink()
        if gigabytes:
            missed += large(folder, gigabytes)
    for what in missed:
        print(f"missed: {what}")
    return 1 if missed else 0


def large(folder: Path, gigabytes: float) -> list[str]:
    """Rows as published sets have them, with long solutions, compressible but not alike."""
    if shutil.disk_usage(folder).free < 2 * gigabytes * 1e9:
        return [f"no room for {gigabytes:g} GB"]
    file = folder / "large.jsonl"
    block = "".join(
        json.dumps(row | {"solution": f"{row['question']} First {i}, then {i * i}. " * 20}) + "\n"
        for i, row in enumerate(rows(0, 20_000))
    ).encode()
    with open(file, "wb") as out:
        while out.tell() < gigabytes * 1e9:
            out.write(block)
    size = file.stat().st_size
    seconds, _, mib = convert(file, folder / "large.parquet")
    print(f"{size / 1e9:.1f} GB of JSONL: {mib:,.0f} MiB at most, {size / 1e6 / seconds:,.0f} MB/s ({seconds:.0f} s)")
    return [f"{mib:,.0f} MiB"] if mib > PEAK_MIB else []


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    arguments = sys.argv[1:]
    if arguments[:1] == ["--write"]:
        write(Path(arguments[1]), int(arguments[2]))
        sys.exit(0)
    sys.exit(main(*([int(arguments[0])] if arguments else []), *map(float, arguments[1:2])))
