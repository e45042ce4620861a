"""Loader processes: the same batches, from epoch to epoch, and no process left behind."""

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from amp_sweep.config import DataConfig
from amp_sweep.data import DataError, open_split, prepare
from amp_sweep.data.loader import fetch, open_images
from tests.conftest import python_path, wait_for
from tests.processes import gone

MakeFolder = Callable[..., Path]
MakeConfig = Callable[..., DataConfig]
CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def wait_for_the_end_of(pids: Iterable[int]) -> None:
    wait_for(lambda: all(gone(pid) for pid in pids), 6)


def workers() -> list[int]:
    """Loader processes of this process: children of its forkserver."""
    return [
        child.pid
        for server in psutil.Process().children()
        if "forkserver" in " ".join(server.cmdline())
        for child in server.children()
    ]


def test_loader_processes_deliver_the_batches_of_the_main_process(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    root = make_folder({"train/a": 12, "train/b": 9, "test/a": 3})
    before = workers()
    for pipeline in ("loader", "pil"):
        config = folder_config(root, pipeline=pipeline)
        prepared = prepare(config)
        alone = open_split(prepared, "train", config, CPU)
        split = open_split(prepared, "train", dataclasses.replace(config, workers=2), CPU)
        used: list[set[int]] = []
        for epoch in range(3):
            rows = torch.randperm(21, generator=torch.Generator().manual_seed(epoch)).view(7, 3)
            expected = [alone.to_input(raw) for raw in alone.batches(rows)]
            batches = split.batches(rows)
            if epoch == 1:  # an epoch that is left early does not disturb the next
                next(batches)
                batches.close()
                continue
            found = [split.to_input(raw) for raw in batches]
            for (images, labels), (right, right_labels) in zip(found, expected, strict=True):
                assert torch.equal(images, right)
                assert torch.equal(labels, right_labels)
            used.append(set(workers()) - set(before))
        assert used[0] == used[1]  # the same two processes
        assert len(used[0]) == 2
        split.close()
        del batches
        wait_for_the_end_of(used[0])


@pytest.mark.parametrize("pipeline", ["loader", "pil"])
def test_a_broken_file_in_a_loader_process_is_told_in_one_line(
    make_folder: MakeFolder, folder_config: MakeConfig, pipeline: str
) -> None:
    root = make_folder()
    config = folder_config(root, pipeline=pipeline, workers=1)
    split = open_split(prepare(config), "train", config, CPU)
    (root / "train/dog/000.png").write_bytes(b"broken")
    with pytest.raises(DataError) as caught:
        list(split.batches(torch.arange(7)[:, None]))
    assert str(caught.value) == f"{root}/train/dog/000.png: not an image that can be read"
    split.close()


@pytest.mark.parametrize("pipeline", ["resident", "loader"])
def test_a_loader_process_is_told_where_the_images_are_and_opens_them_itself(
    make_folder: MakeFolder, folder_config: MakeConfig, pipeline: str
) -> None:
    prepared = prepare(folder_config(make_folder(), pipeline=pipeline))
    images = open_images(prepared, "train")
    sent = pickle.dumps(images)
    everything = np.arange(7)
    pixels = fetch(images, everything, pinned=False)
    assert torch.equal(fetch(pickle.loads(sent), everything, pinned=False), pixels)
    assert pixels[3].numpy().tobytes() not in sent and b"000.png" not in sent


RANK = """
import signal, sys
import psutil, torch
from amp_sweep.config import DataConfig
from amp_sweep.data import open_split, prepare

def main():
    signal.signal(signal.SIGTERM, lambda *_: None)  # a rank saves and goes on to a step's end
    config = DataConfig(name="synthetic", train_images=64, test_images=8, pipeline="loader",
                        workers=2)
    split = open_split(prepare(config), "train", config, torch.device("cpu"))
    batches = split.batches(torch.arange(64).view(32, 2))
    next(batches)
    servers = [p for p in psutil.Process().children() if "forkserver" in " ".join(p.cmdline())]
    print(*(p.pid for s in servers for p in [s, *s.children()]), flush=True)
    sys.stdin.readline()
    print(1 + sum(1 for _ in batches), flush=True)
    print(sum(1 for _ in split.batches(torch.arange(64).view(32, 2))), flush=True)
    sys.stdin.readline()

if __name__ == "__main__":
    main()
"""


def test_loader_processes_outlive_slurms_signals_and_not_their_rank(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    rank = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": python_path(ROOT)},
    )
    assert rank.stdin is not None
    assert rank.stdout is not None
    with rank:
        pids = [int(pid) for pid in rank.stdout.readline().split()]
        assert len(pids) == 3  # forkserver and two loader processes
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
            for pid in pids:
                os.kill(pid, number)
        time.sleep(0.3)
        rank.stdin.write("go on\n")
        rank.stdin.flush()
        assert rank.stdout.readline() == "32\n"
        assert rank.stdout.readline() == "32\n"
        rank.kill()
        wait_for_the_end_of(pids)


def test_a_rank_that_ends_normally_does_not_wait_for_its_loader_processes(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        input="go on\nend\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": python_path(ROOT)},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pids = [int(pid) for pid in done.stdout.splitlines()[0].split()]
    wait_for_the_end_of(pids)
    assert time.monotonic() - started < 30
