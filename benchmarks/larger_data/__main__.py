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
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.larger_data import image_folder, page
from benchmarks.larger_data.image_folder import Folder
from benchmarks.larger_data.rows import ROWS, prepared_s, run
from benchmarks.larger_data.work import Work
from benchmarks.shared.provenance import cores

TEST_SHARE = 50  # one test image for so many training images


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.larger_data", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--images", type=int, default=100_000, help="for training")
    parser.add_argument("--size", type=int, default=256, help="pixels of the files")
    parser.add_argument("--image-size", type=int, default=227, help="pixels for the network")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--seconds", type=float, default=20.0, help="timed of each row")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no row after these")
    parser.add_argument("--repeats", type=int, default=1, help="of each row, interleaved")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--folder", type=Path, help="of the images; default: a temporary one")
    parser.add_argument("--cpu", action="store_true", help="small, on the CPU: does it all run?")
    parser.add_argument("--out", type=Path, metavar="DIR", help="table.md and results.json")
    options = parser.parse_args(argv)
    work = _work(options)
    facts: dict[str, Any] = {"load": os.getloadavg()[0]}
    wanted = Folder(
        work.images, max(work.images // TEST_SHARE, 2 * image_folder.CLASSES), work.size
    )
    with tempfile.TemporaryDirectory(prefix="larger-data-") as temporary:
        folder = options.folder or Path(temporary)
        work = replace(work, root=str((folder / "images").absolute()))
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
                text = page.write(options.out, work, options.repeats, facts, found)
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


if __name__ == "__main__":
    sys.exit(main())
