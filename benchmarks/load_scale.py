"""How long many runs take to load and to compare, and how much memory.

    python -m benchmarks.load_scale                       # 2,500, 5,000 and 10,000 runs
    python -m benchmarks.load_scale --runs 100 --repeats 1 --out DIR

Makes synthetic records (20 epochs each, every figure that the analysis knows) in a
temporary folder. Each measurement is a fresh process. Cold: no cache of ours; the files
themselves are in the operating system's, as they are when a sweep has just ended. Warm: the
call before left its cache. `--out` writes `load-scale.md` and `load-scale.csv` there.
"""

import argparse
import csv
import hashlib
import io
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CELLS = tuple((p, q) for p in ("none", "dp", "ddp") for q in ("fp32", "autocast", "scaler"))
SEEDS = 10
EPOCHS = 20
SIZES = (2_500, 5_000, 10_000)
# How old a record must be before its cached form is believed, and some more.
SETTLE_S = 2.5

FIELDS = (
    ("runs", "runs"),
    ("cache", "cache"),
    ("load_s", "load, s"),
    ("compare_s", "compare, s"),
    ("both_s", "both, s"),
    ("both_cpu_s", "both, CPU s"),
    ("import_s", "imports, s"),
    ("peak_mib", "peak memory, MiB"),
    ("above_mib", "above imports, MiB"),
    ("load", "load average"),
)


def _settings(index: int) -> tuple[str, str, int, int, float]:
    """Parallelism, precision, seed, batch size and lr of a run: 90 runs to a table."""
    parallel, precision = CELLS[index % 9]
    table = index // (9 * SEEDS)
    return parallel, precision, index // 9 % SEEDS, 2 ** (4 + table % 8), 1e-4 * (1 + table // 8)


def make_runs(sweep: Path, runs: int) -> int:
    """Write `runs` records below `sweep`, always the same for a number; returns their bytes.

    One in a hundred has failed; every other one is completed.
    """
    from amp_sweep import config, record
    from amp_sweep.paths import RECORD_NAME
    from analysis.columns import FLAG, FLOAT, INT, PER_DEVICE, SECTIONS

    base = config.to_dict(config.RunConfig())
    written = 0
    for index in range(runs):
        noise = random.Random(index)
        parallel, precision, seed, batch, lr = _settings(index)
        asked = json.loads(json.dumps(base))
        asked |= {"name": sweep.name, "seed": seed, "epochs": EPOCHS}
        asked["model"] |= {"name": "alexnet", "width": 1.0}
        asked["data"] |= {"name": "cifar10", "batch_size": batch, "image_size": 227}
        asked["optimizer"] |= {"name": "adamw", "lr": lr}
        asked["scheduler"]["name"] = "cosine"
        asked["track"]["name"] = "tensorboard"
        asked["parallel"]["name"], asked["precision"]["name"] = parallel, precision
        failed = index % 100 == 37
        figures: dict[str, Any] = {}
        for name, kind in SECTIONS["metrics"].items():
            value: Any = {
                FLOAT: noise.uniform(0.5, 1.0),
                INT: noise.randrange(20),
                FLAG: False,
            }.get(kind, "undetermined")
            figures[name] = [value] if name in PER_DEVICE else value
        facts: dict[str, Any] = dict.fromkeys(SECTIONS["effective"])
        facts |= {"parallel": parallel, "device_type": "cuda", "device_names": ["NVIDIA H200"]}
        facts |= {"world_size": 1, "replicas": 1, "autocast_dtype": "float16", "steps": 15620}
        facts |= {"observed_dtypes": ["float16"], "global_batch": batch, "train_images": 50000}
        facts |= {"data_digest": hashlib.sha256(b"data").hexdigest(), "memory_format": "contiguous"}
        where: dict[str, Any] = dict.fromkeys(SECTIONS["environment"])
        where |= {"python": "3.12.3", "torch": "2.11.0+cu130", "cuda": "13.0", "cores": 16}
        where |= {"gpu": "NVIDIA H200", "cpu": "Intel(R) Xeon(R)", "hostname": f"node{index % 7}"}
        fingerprint = hashlib.sha256(str((sweep.name, index)).encode()).hexdigest()
        epochs = [
            {
                "epoch": epoch + 1,
                "train_loss": noise.random(),
                "test_accuracy": noise.random(),
                "test_loss": noise.random(),
                "lr": lr,
                "train_time_s": noise.uniform(3, 5),
                "images_per_s": noise.uniform(1e4, 2e4),
            }
            for epoch in range(EPOCHS)
        ]
        values = {
            "schema_version": record.SCHEMA_VERSION,
            "name": sweep.name,
            "fingerprint": fingerprint,
            "status": record.FAILED if failed else record.COMPLETED,
            "cell": {
                "model": "alexnet",
                "data": "cifar10",
                "parallel": parallel,
                "precision": precision,
                "seed": seed,
            },
            "overrides": [
                f"parallel={parallel}",
                f"precision={precision}",
                f"seed={seed}",
                f"data.batch_size={batch}",
                f"optimizer.lr={lr}",
                "experiment=article",
            ],
            "config": asked,
            "effective": facts,
            "metrics": {} if failed else figures,
            "epochs": epochs[:3] if failed else epochs,
            "environment": where,
            "segments": [
                {
                    "started_at": "2026-11-30T09:58:38+00:00",
                    "ended_at": f"2026-11-30T10:{index // 60 % 60:02d}:{index % 60:02d}+00:00",
                    "from_epoch": 0,
                    "to_epoch": EPOCHS,
                    "device": "NVIDIA H200",
                    "torch": "2.11.0+cu130",
                    "wall_s": noise.uniform(60, 120),
                }
            ],
            "notes": ["energy_j: not measured on this device"],
            "error": record.error_of("RuntimeError", "a rank died") if failed else None,
        }
        directory = sweep / f"{parallel}-{precision}-s{seed}-{fingerprint[:8]}"
        directory.mkdir(parents=True)
        text = json.dumps(values, indent=1) + "\n"
        (directory / RECORD_NAME).write_text(text, encoding="utf-8")
        written += len(text)
    return written


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measure(sweep: Path) -> dict[str, Any]:
    """Load and compare once, in this process: seconds, CPU seconds, peak memory in MiB."""
    began = time.perf_counter()
    from analysis.compare import compare
    from analysis.frame import load

    imported, cpu_began, base = time.perf_counter(), time.process_time(), _peak_mib()
    frame, _ = load(sweep)
    loaded, cpu_loaded = time.perf_counter(), time.process_time()
    comparison = compare(frame)
    done, cpu_done, peak = time.perf_counter(), time.process_time(), _peak_mib()
    return {
        "runs": len(frame),
        "tables": len(comparison.tables),
        "import_s": imported - began,
        "load_s": loaded - imported,
        "compare_s": done - loaded,
        "both_s": done - imported,
        "load_cpu_s": cpu_loaded - cpu_began,
        "compare_cpu_s": cpu_done - cpu_loaded,
        "both_cpu_s": cpu_done - cpu_began,
        "peak_mib": peak,
        "above_mib": peak - base,
    }


def _in_fresh_process(sweep: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load_scale", "--measure", str(sweep)],
        cwd=Path(__file__).parents[1],
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _caches(sweep: Path) -> list[Path]:
    return [path for path in sweep.iterdir() if path.is_file()]


def rounds(sizes: Sequence[int], repeats: int) -> Iterator[dict[str, Any]]:
    """Every measurement of the smallest total time per size, without and with our cache."""
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="load-scale-") as folder:
            sweep = Path(folder) / "sweep"
            sweep.mkdir()
            written = make_runs(sweep, size)
            print(f"{size:,} runs, {written / size / 1000:.1f} kB each", flush=True)
            time.sleep(SETTLE_S)
            for kind in ("cold", "warm"):
                found = []
                for _ in range(repeats):
                    if kind == "cold":
                        for path in _caches(sweep):
                            path.unlink()
                    load = round(os.getloadavg()[0], 1)
                    found.append({**_in_fresh_process(sweep), "load": load})
                best = min(found, key=lambda one: float(one["both_s"]))
                if best["runs"] != size:
                    raise SystemExit(f"{best['runs']} of {size} runs were loaded")
                yield {**best, "cache": kind, "repeats": repeats, "record_bytes": written // size}


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _cells(row: dict[str, Any]) -> list[str]:
    words = {
        name: f"{value:.1f}"
        if name == "load"
        else f"{value:.2f}"
        if name.endswith("_s")
        else f"{value:,.0f}"
        for name, value in row.items()
        if isinstance(value, int | float)
    }
    return [words.get(name, str(row[name])) for name, _ in FIELDS]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The measurements as a Markdown table."""
    lines = [[title for _, title in FIELDS], ["---"] * len(FIELDS), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def growth(rows: Sequence[dict[str, Any]]) -> str:
    """What a run adds in time and memory, from the smallest to the largest size, in words."""
    lines = []
    for kind in ("cold", "warm"):
        of_kind = [row for row in rows if row["cache"] == kind]
        if len(of_kind) < 2:
            continue
        first, last = of_kind[0], of_kind[-1]
        more = last["runs"] - first["runs"]
        added_ms = (last["both_s"] - first["both_s"]) / more * 1000
        added_kib = (last["peak_mib"] - first["peak_mib"]) / more * 1024
        lines.append(f"- {kind}: each run adds {added_ms:.2f} ms and {added_kib:.0f} KiB")
    return "\n".join(lines)


def provenance(rows: Sequence[dict[str, Any]]) -> str:
    """On what, with which versions, when and how often it was measured."""
    import numpy
    import pandas

    return (
        f"{_cpu()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, pandas {pandas.__version__}, numpy {numpy.__version__}; "
        f"{datetime.now(UTC).date()}; fastest of {rows[0]['repeats']} fresh processes; "
        f"records of {rows[0]['record_bytes'] / 1000:.1f} kB with {EPOCHS} epochs"
    )


def write(out: Path, rows: Sequence[dict[str, Any]], text: str, command: str) -> None:
    """Write load-scale.md and load-scale.csv into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    page = (
        "# Loading and comparing many runs\n\n"
        f"{table(rows)}\n\n{growth(rows)}\n\n{text}.\n\n"
        "Cold: without our cache. Warm: with the one that the call before wrote. Peak memory is "
        "of the whole process. Where the load average is above 2, others used the cores too.\n\n"
        f"Made by `{command}`.\n"
    )
    (out / "load-scale.md").write_text(page, encoding="utf-8")
    lines = io.StringIO()
    writer = csv.DictWriter(lines, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    (out / "load-scale.csv").write_text(lines.getvalue(), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load_scale", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, nargs="+", default=list(SIZES), metavar="N")
    parser.add_argument("--repeats", type=int, default=5, metavar="K")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return 0
    rows = []
    for row in rounds(options.runs, options.repeats):
        rows.append(row)
        print(
            ", ".join(
                f"{title}: {cell}" for (_, title), cell in zip(FIELDS, _cells(row), strict=True)
            )
        )
    text = provenance(rows)
    print(f"\n{table(rows)}\n\n{growth(rows)}\n\n{text}")
    if options.out:
        given = sys.argv[1:] if argv is None else argv
        write(options.out, rows, text, " ".join(["python -m benchmarks.load_scale", *given]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
