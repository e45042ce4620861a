"""A large folder of photographs: how fast its images reach the device, and a network.

    python -m benchmarks.larger_data --images 100000 --size 256 --workers 16 --out DIR
    python -m benchmarks.larger_data --images 20000 --workers 16 --seconds 10 --minutes 4 --out DIR
    python -m benchmarks.larger_data --cpu              # small: does it all run?

The images are made once, in FOLDER (`--folder`), and so are our notes on them. Then, each in
fresh processes and with the same number of loader processes, whole batches on the device:

plain        torchvision's ImageFolder, resized, to float32 and normalised by the loader processes
plain_uint8  the same, but decoded and cropped to uint8 alone: nothing else is done
ours         data.pipeline=loader: decoded there, resized and normalised on the device
ours_decode  the same with data.decode=device: JPEG decoded by the GPU

and AlexNet trained with these inputs by the command line (cell, cell_decode, cell_resident). The
first batches, while loader processes start, do not count. Memory is the sum over the
processes; what they share counts in each. `--out` gets table.md and results.json after each row.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks import image_folder
from benchmarks.children import REPOSITORY, environment
from benchmarks.commit import commit
from benchmarks.image_folder import Folder

TEST_SHARE = 50  # one test image for so many training images
SETTLE_S = 1.5  # after the first batch, and some batches; no longer than is timed
SAMPLE_S = 0.5
TIMEOUT_S = 400.0
# More images a second than any row brings: how many are planned for.
AT_MOST = 40_000
CELL_AT_MOST = 8_000


@dataclass(frozen=True)
class Work:
    """What a row does."""

    root: str
    images: int
    size: int  # of the files
    image_size: int  # that the network sees
    batch: int
    workers: int
    seconds: float
    device: str
    width: float  # of AlexNet
    precision: str


# ------------------------------------------------------------------ input alone


def plain(work: Work, uint8: bool) -> Iterator[int]:
    """A DataLoader as people write it; the size of each batch once it is sent to the device."""
    from torch.utils.data import DataLoader, RandomSampler
    from torchvision import datasets, transforms

    side = work.image_size
    steps: list[Callable[..., Any]] = [
        transforms.Resize((side, side)),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    if uint8:
        steps = [transforms.CenterCrop(side), transforms.PILToTensor()]
    data = datasets.ImageFolder(f"{work.root}/train", transforms.Compose(steps))
    cuda = work.device == "cuda"
    loader = DataLoader(
        data,
        work.batch,
        # Epoch after epoch without a pause between them.
        sampler=RandomSampler(data, num_samples=_planned(work)),
        num_workers=work.workers,
        pin_memory=cuda,
        drop_last=True,
    )
    for images, labels in loader:
        images = images.to(work.device, non_blocking=cuda)
        labels.to(work.device, non_blocking=cuda)
        yield len(images)


def ours(work: Work, decode: str) -> Iterator[int]:
    """The input of our cells; the size of each batch once it is what the network sees."""
    import torch

    from amp_sweep import data
    from amp_sweep.config import DataConfig

    config = DataConfig(
        name="imagefolder",
        root=work.root,
        image_size=work.image_size,
        pipeline="loader",
        workers=work.workers,
        decode=decode,
    )
    device = torch.device(work.device, 0) if work.device == "cuda" else torch.device("cpu")
    prepared = data.prepare(config)
    split = data.open_split(prepared, "train", config, device, channels_last=True)
    epochs = range(math.ceil(_planned(work) / split.count))
    order = torch.cat([data.epoch_order(split.count, 0, epoch, True) for epoch in epochs])
    for raw in split.batches(data.rank_batches(order, work.batch, 0, 1)):
        images, _ = split.to_input(raw)
        yield len(images)


def _planned(work: Work) -> int:
    return int(max(2 * work.images, AT_MOST * (work.seconds + 3 * SETTLE_S)))


INPUTS: dict[str, Callable[[Work], Iterator[int]]] = {
    "plain": lambda work: plain(work, uint8=False),
    "plain_uint8": lambda work: plain(work, uint8=True),
    "ours": lambda work: ours(work, "host"),
    "ours_decode": lambda work: ours(work, "device"),
}
CELLS: dict[str, list[str]] = {
    "cell": ["data.pipeline=loader"],
    "cell_decode": ["data.pipeline=loader", "data.decode=device"],
    "cell_resident": ["data.pipeline=resident"],
}
ROWS = (*INPUTS, *CELLS)


def timed(work: Work, batches: Iterator[int]) -> dict[str, Any]:
    """Images a second of `batches`, once their makers are at work."""
    import torch

    def reached() -> float:
        if work.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    started = time.perf_counter()
    next(batches)
    first_s = reached() - started
    settled = started + first_s + min(SETTLE_S, work.seconds)
    for skipped, _ in enumerate(batches, start=1):
        if skipped >= 2 * work.workers + 4 and time.perf_counter() > settled:
            break
    began, images, count = reached(), 0, 0
    for size in batches:
        images, count = images + size, count + 1
        if time.perf_counter() - began > work.seconds:
            break
    took = reached() - began
    found: dict[str, Any] = {
        "images_per_s": images / took,
        "batches": count,
        "first_batch_s": first_s,
    }
    if work.device == "cuda":
        found["gpu_mib"] = torch.cuda.max_memory_reserved() / 2**20
    return found


def input_row(name: str, work: Work) -> dict[str, Any]:
    """The result of a row of input alone, in this process."""
    from amp_sweep.data import DataError

    try:
        return timed(work, INPUTS[name](work))
    except DataError as error:
        return {"absent": str(error)}


# ------------------------------------------------------------------ a whole cell


def cell_command(name: str, work: Work, out: Path) -> list[str]:
    """The command line of a cell."""
    rate = CELL_AT_MOST if work.device == "cuda" else 0
    epochs = 1 + math.ceil(max(work.images, work.seconds * rate) / work.images)
    workers = 0 if name == "cell_resident" else work.workers
    return [
        *(sys.executable, "-m", "amp_sweep.train", "model=alexnet", f"model.width={work.width}"),
        *("data=imagefolder", f"data.root={work.root}", f"data.image_size={work.image_size}"),
        *(f"data.batch_size={work.batch}", f"data.workers={workers}", *CELLS[name]),
        *(f"precision={work.precision}", f"epochs={epochs}", f"device={work.device}"),
        *(f"outputs={out}", f"name={name}", "measure.probes=false", "track=none"),
    ]


def cell_result(out: Path, name: str) -> dict[str, Any]:
    """What the record of the only cell says."""
    from amp_sweep import record

    found = [record.read(path) for path in record.find(out / name)]
    if not found:
        return {}
    run = found[0]
    if run.status != record.COMPLETED:
        error = run.error or {}
        return {"absent": f"{run.status}: {error.get('message')}"}
    return {
        "images_per_s": run.metrics["images_per_s"],
        "data_wait_frac": run.metrics["data_wait_frac"],
        "data_placement": run.effective["data_placement"],
        "epochs": len(run.epochs),
        "gpu_mib": (run.metrics.get("peak_reserved_mib") or [None])[0],
    }


# ------------------------------------------------------------------ side by side


class Memory:
    """Samples of the memory of a process and of all below it, in MiB."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._samples: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            main = _rss_mib(self._process)
            try:
                below = self._process.children(recursive=True)
            except psutil.Error:
                return
            self._samples.append((main, main + sum(map(_rss_mib, below))))

    def end(self) -> dict[str, float]:
        """The peaks of the first half of the time and of the second: memory is bounded where
        they are alike.
        """
        self._over.set()
        self._thread.join()
        half = len(self._samples) // 2
        if not half:
            return {}
        halves = (("half", self._samples[:half]), ("end", self._samples[half:]))
        return {
            f"{what}_mib_{when}": max(sample[place] for sample in samples)
            for when, samples in halves
            for place, what in enumerate(("main", "all"))
        }


def _rss_mib(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 2**20
    except psutil.Error:  # it has just ended
        return 0.0


def run(name: str, work: Work, cache: Path) -> dict[str, Any]:
    """A row in fresh processes: its figures, or why there are none."""
    if name.endswith("_decode") and work.device != "cuda":
        return {"absent": "needs a CUDA device"}
    with tempfile.TemporaryDirectory(prefix="larger-data-") as out:
        command = [sys.executable, "-m", "benchmarks.larger_data", "--row", name]
        command += ["--work", json.dumps(asdict(work))]
        if name in CELLS:
            command = cell_command(name, work, Path(out))
        # To files: nobody reads while it runs, and a full pipe would stop it.
        with (Path(out) / "stdout").open("w+") as said, (Path(out) / "stderr").open("w+") as wrong:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**os.environ, "AMP_SWEEP_CACHE": str(cache)},
                stdout=said,
                stderr=wrong,
                text=True,
            )
            memory = Memory(process.pid)
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()
                return {"absent": f"no end within {TIMEOUT_S:.0f} s"}
            finally:
                peaks = memory.end()
            said.seek(0)
            wrong.seek(0)
            lines = said.read().strip().splitlines()
            complaints = wrong.read().strip().splitlines()
        found: dict[str, Any] = {}
        if name in CELLS:
            found = cell_result(Path(out), name)
        elif not process.returncode and lines:
            found = json.loads(lines[-1])
        if not found:
            return {"absent": f"failed: {(complaints or lines or ['no output'])[-1][:300]}"}
        return {**found, **peaks}


def median(results: Sequence[dict[str, Any]], name: str) -> float | None:
    """Over the repeats; None where no repeat has it."""
    values = [result[name] for result in results if result.get(name) is not None]
    return statistics.median(values) if values else None


COLUMNS = (
    ("data_wait_frac", "wait share", "{:.3f}"),
    ("main_mib_half", "main, MiB: first half", "{:,.0f}"),
    ("main_mib_end", "second half", "{:,.0f}"),
    ("all_mib_half", "all processes, MiB: first half", "{:,.0f}"),
    ("all_mib_end", "second half", "{:,.0f}"),
    ("gpu_mib", "GPU, MiB", "{:,.0f}"),
)


def table(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The results in Markdown: medians over the repeats."""
    titles = ["row", "images/s", "over plain_uint8", *(title for _, title, _ in COLUMNS)]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    base = median(found.get("plain_uint8", []), "images_per_s")
    for row, results in found.items():
        rate = median(results, "images_per_s")
        if rate is None:
            lines.append(f"| {row} | {results[0]['absent']} |" + " - |" * (len(titles) - 2))
            continue
        ratio = "-" if base is None or row in CELLS else f"{rate / base:.2f}"
        cells = [row, f"{rate:,.0f}", ratio]
        for name, _, form in COLUMNS:
            value = median(results, name)
            cells.append("-" if value is None else form.format(value))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def provenance(work: Work, options: argparse.Namespace, facts: dict[str, Any]) -> list[str]:
    """Where the figures come from."""
    import torch
    import torchvision

    from amp_sweep.hardware import cpu_name

    device = torch.cuda.get_device_name(0) if work.device == "cuda" else cpu_name()
    return [
        f"{work.images:,} JPEG files of {work.size} px, {facts['mean_kb']:.1f} kB on average, made "
        f"up; to {work.image_size} px, batch {work.batch}, {work.workers} loader processes, "
        f"{len(os.sched_getaffinity(0))} cores",
        f"made in {facts['make_s']:.0f} s and prepared (listed, decoded once) in "
        f"{facts['prepare_s']:.0f} s; 0 where they were there already",
        f"cells: AlexNet, width {work.width:g}, precision={work.precision}, none; their first "
        "epoch does not count",
        f"device: {device}; torch {torch.__version__}, torchvision {torchvision.__version__}, CUDA "
        f"{torch.version.cuda}, Python {platform.python_version()}",
        f"{work.seconds:g} s a row, {options.repeats} repeat(s) in turn; load average "
        f"{facts['load']:.1f} at the start; commit {commit()}; "
        f"{datetime.now(UTC).date()}",
        "memory: peaks of resident memory in the two halves of a row, start-up in the first; "
        "what processes share counts in each",
    ]  # fmt: skip


def prepared_s(work: Work, cache: Path) -> float:
    """Seconds to prepare the folder for loader processes, in a process of its own."""
    began = time.perf_counter()
    code = (
        "import sys\nfrom amp_sweep.config import DataConfig\nfrom amp_sweep.data import prepare\n"
        "if __name__ == '__main__':\n"
        "    prepare(DataConfig(name='imagefolder', root=sys.argv[1], pipeline='loader'))\n"
    )
    with tempfile.TemporaryDirectory(prefix="larger-data-") as folder:
        script = Path(folder) / "prepare_folder.py"
        script.write_text(code, encoding="utf-8")
        subprocess.run(
            [sys.executable, str(script), work.root],
            env=environment(AMP_SWEEP_CACHE=str(cache)),
            check=True,
        )
    return time.perf_counter() - began


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.larger_data", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--images", type=int, default=100_000, help="for training")
    parser.add_argument("--size", type=int, default=256, help="pixels of the files")
    parser.add_argument("--image-size", type=int, default=227, help="pixels for the network")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=20.0, help="timed of each row")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no row after these")
    parser.add_argument("--repeats", type=int, default=1, help="of each row, interleaved")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--folder", type=Path, help="of the images; default: a temporary one")
    parser.add_argument("--cpu", action="store_true", help="small, on the CPU: does it all run?")
    parser.add_argument("--out", type=Path, metavar="DIR", help="table.md and results.json")
    for hidden in ("--row", "--work"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.row:
        sys.stdout.write(json.dumps(input_row(options.row, Work(**json.loads(options.work)))))
        return 0
    work = _work(options)
    facts: dict[str, Any] = {"load": os.getloadavg()[0]}
    wanted = Folder(
        work.images, max(work.images // TEST_SHARE, 2 * image_folder.CLASSES), work.size
    )
    with tempfile.TemporaryDirectory(prefix="larger-data-") as temporary:
        folder = options.folder or Path(temporary)
        work = Work(**{**asdict(work), "root": str((folder / "images").absolute())})
        before = time.perf_counter()
        image_folder.make(Path(work.root), wanted)
        facts["make_s"] = time.perf_counter() - before
        sizes = [path.stat().st_size for path in image_folder.files(Path(work.root), "train")]
        facts["mean_kb"] = statistics.fmean(sizes) / 1000
        cache = (folder / "cache").absolute()
        facts["prepare_s"] = prepared_s(work, cache)
        found: dict[str, list[dict[str, Any]]] = {row: [] for row in options.rows}
        text = ""
        for repeat in range(options.repeats):
            for row in options.rows:
                late = time.monotonic() - began > 60 * options.minutes
                started = time.perf_counter()
                result = {"absent": "not begun: out of time"} if late else run(row, work, cache)
                if late and repeat:
                    continue
                found[row].append({**result, "row_s": time.perf_counter() - started})
                rate = result.get("images_per_s")
                said = result.get("absent") if rate is None else f"{rate:,.0f} images/s"
                sys.stderr.write(f"{row}: {said}\n")
                # After each one: a run that is cut short keeps what it has.
                text = _written(options, work, facts, found)
    sys.stdout.write(text)
    return 0


def _work(options: argparse.Namespace) -> Work:
    import torch

    cuda = torch.cuda.is_available() and not options.cpu
    common = {"root": "", "device": "cuda" if cuda else "cpu"}
    if options.cpu:
        small = {"images": 96, "size": 72, "image_size": 64, "batch": 16, "workers": 1}
        return Work(**common, **small, seconds=0.3, width=0.25, precision="fp32")
    return Work(
        **common,
        images=options.images,
        size=options.size,
        image_size=options.image_size,
        batch=options.batch,
        workers=options.workers,
        seconds=options.seconds,
        width=1.0,
        precision="scaler",
    )


def _written(
    options: argparse.Namespace,
    work: Work,
    facts: dict[str, Any],
    found: dict[str, list[dict[str, Any]]],
) -> str:
    """The table so far, in the folder that was asked for."""
    there = {row: results for row, results in found.items() if results}
    lines = provenance(work, options, facts)
    text = "\n".join([*table(there), "", *(f"- {line}" for line in lines), ""])
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "table.md").write_text(text, encoding="utf-8")
        everything = {
            "work": {**asdict(work), "root": None},  # a path of this machine
            "facts": facts,
            "provenance": lines,
            "rows": there,
        }
        (options.out / "results.json").write_text(
            json.dumps(everything, indent=1) + "\n", encoding="utf-8"
        )
    return text


if __name__ == "__main__":
    sys.exit(main())
