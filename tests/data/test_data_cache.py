"""Data are prepared once, never stale, and a damaged cache is noticed."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from amp_sweep.config import DataConfig
from amp_sweep.data import DataError, cache_dir, open_prepared, prepare
from amp_sweep.data.prepared import images_path, labels_path, map_array

MakeFolder = Callable[..., Path]
MakeConfig = Callable[..., DataConfig]
ROOT = Path(__file__).parents[2]


def worked(config: DataConfig, new_log: type[Any]) -> bool:
    log = new_log()
    prepare(config, log)
    return bool(log.worked)


def test_the_cache_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("AMP_SWEEP_CACHE", "~/own")
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("AMP_SWEEP_CACHE")
    assert cache_dir() == tmp_path / "xdg" / "amp_sweep"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == tmp_path / ".cache" / "amp_sweep"


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_the_second_time_nothing_is_done(name: str, new_log: type[Any]) -> None:
    config = DataConfig(name=name)
    assert worked(config, new_log)
    assert not worked(config, new_log)


@pytest.mark.parametrize("pipeline", ["resident", "loader"])
def test_any_change_of_the_files_prepares_them_anew(
    make_folder: MakeFolder, folder_config: MakeConfig, new_log: type[Any], pipeline: str
) -> None:
    root = make_folder()
    config = folder_config(root, pipeline=pipeline)
    first = prepare(config)
    assert not worked(config, new_log)
    old_labels = map_array(labels_path(first.folder, "train"))
    expected = old_labels.tolist()

    os.utime(root / "train/cat/000.png", ns=(1, 1))
    assert worked(config, new_log)
    assert prepare(config).digest == first.digest

    Image.new("RGB", (10, 12)).save(root / "train/dog/000.png")
    assert worked(config, new_log)
    assert prepare(config).digest != first.digest

    (root / "train/dog/000.png").rename(root / "train/cat/zzz.png")
    assert worked(config, new_log)
    assert (prepare(config).train_count, prepare(config).folder) == (7, first.folder)

    (root / "train/cat/zzz.png").unlink()
    assert worked(config, new_log)
    assert prepare(config).train_count == 6
    assert not worked(config, new_log)
    assert old_labels.tolist() == expected  # a map from before is still good


def test_files_that_come_to_differ_in_size_leave_no_old_pixels_behind(
    make_folder: MakeFolder, folder_config: MakeConfig, cache: Path
) -> None:
    root = make_folder()
    prepare(folder_config(root))
    Image.new("RGB", (31, 57)).save(root / "train/dog/000.png")
    prepared = prepare(folder_config(root))
    folders = [path for path in (cache / "data").iterdir() if path.is_dir()]
    assert folders == [prepared.folder]
    assert prepared.folder.name.endswith("-16px")


def damage_meta(folder: Path) -> None:
    (folder / "meta.json").write_text('{"format": 1')


def another_format(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"format": -1}))


def without_fields(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    del meta["prepared"]["digest"]
    (folder / "meta.json").write_text(json.dumps(meta))


def remove_meta(folder: Path) -> None:
    (folder / "meta.json").unlink()


def remove_labels(folder: Path) -> None:
    (folder / "test_labels.npy").unlink()


def truncate_images(folder: Path) -> None:
    os.truncate(folder / "train_images.npy", 200)


def flip_a_pixel(folder: Path) -> None:
    with (folder / "train_images.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


def garble_the_header(folder: Path) -> None:
    with (folder / "train_images.npy").open("r+b") as file:
        file.write(b"garbage")


@pytest.mark.parametrize(
    "damage",
    [
        damage_meta,
        another_format,
        without_fields,
        remove_meta,
        remove_labels,
        truncate_images,
        flip_a_pixel,
        garble_the_header,
    ],
)
def test_a_damaged_cache_is_noticed_and_built_again(
    damage: Callable[[Path], None], new_log: type[Any]
) -> None:
    config = DataConfig(name="synthetic", train_images=20, test_images=10)
    first = prepare(config)
    damage(first.folder)
    if damage not in (flip_a_pixel, garble_the_header):  # these, only `prepare` looks for
        with pytest.raises(DataError, match=r"start again|No such file"):
            open_prepared(first.folder)
    assert worked(config, new_log)
    assert open_prepared(first.folder) == first


def test_a_cache_copied_from_elsewhere_is_taken_by_its_content(
    new_log: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DataConfig(name="synthetic", train_images=20, test_images=10)
    first = prepare(config)
    shutil.copytree(tmp_path / "cache", tmp_path / "copy", copy_function=shutil.copyfile)
    monkeypatch.setenv("AMP_SWEEP_CACHE", str(tmp_path / "copy"))
    assert not worked(config, new_log)
    assert prepare(config).digest == first.digest


def test_what_a_killed_process_left_is_removed(cache: Path) -> None:
    config = DataConfig(name="synthetic", train_images=20, test_images=10)
    folder = prepare(config).folder
    shutil.rmtree(folder)
    left = cache / "data" / f".{folder.name}.k1ll3d"
    left.mkdir()
    (left / "train_images.npy").write_bytes(b"half")
    prepare(config)
    assert not left.exists()
    assert [path.name for path in (cache / "data").iterdir() if path.is_dir()] == [folder.name]


TWICE = """
import sys, time
from pathlib import Path
from amp_sweep.config import DataConfig
from amp_sweep.data import cache, prepare
build = cache._build
def slow(*arguments):
    time.sleep(0.7)
    return build(*arguments)
cache._build = slow
calls = []
config = DataConfig(name="imagefolder", root=sys.argv[1])
prepared = prepare(config, lambda *call: calls.append(call))
print(prepared.digest, any("decoding" in what for what, *_ in calls),
      any("waiting" in what for what, *_ in calls))
"""


def test_two_processes_at_once_decode_once(make_folder: MakeFolder) -> None:
    root = make_folder()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWICE, str(root)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=60)[0].split() for process in processes]
    assert answers[0][0] == answers[1][0]
    assert sorted(answer[1] for answer in answers) == ["False", "True"]
    assert sorted(answer[2] for answer in answers) == ["False", "True"]


def test_a_cache_that_cannot_be_made_is_told_with_the_systems_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AMP_SWEEP_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match=r"Not a directory; make room, or set AMP_SWEEP_CACHE"):
        prepare(DataConfig(name="digits"))


@pytest.mark.parametrize("limit", [1000, 100_000])
def test_a_write_that_fails_is_told_with_the_systems_reason(
    limit: int, make_folder: MakeFolder, folder_config: MakeConfig, cache: Path
) -> None:
    root = make_folder(size=(64, 64))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    configs = [
        DataConfig(name="synthetic", train_images=200, test_images=10),
        folder_config(root, train_images=7),
    ]
    for config in configs if limit < 100_000 else configs[:1]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(DataError, match=r"cannot write the prepared data .*File too large"):
                prepare(config)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in (cache / "data").iterdir() if path.is_dir()] == []


def test_an_unknown_name_is_refused_with_the_allowed_ones() -> None:
    for name in ("mnist", "???", "a.b:", ":c", ".a:b"):
        with pytest.raises(DataError, match="allowed are digits, cifar10, imagefolder, synthetic"):
            prepare(DataConfig(name=name))


def test_a_read_only_cache_that_is_ready_needs_no_lock(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    config = DataConfig(name="synthetic", train_images=20, test_images=10)
    first = prepare(config)
    for path in (cache / "data").glob("*.lock"):
        path.unlink()
    assert prepare(config) == first
    assert not list((cache / "data").glob("*.lock"))


def test_opening_reads_no_folder_but_its_own(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    root = make_folder()
    prepared = prepare(folder_config(root))
    shutil.rmtree(root)
    assert open_prepared(prepared.folder) == prepared
    assert np.load(images_path(prepared.folder, "test")).shape == (4, 12, 10, 3)


def test_importing_and_preparing_needs_no_torch() -> None:
    code = (
        "import sys, amp_sweep.data as data; from amp_sweep.data import prepare\n"
        "assert 'torch' not in sys.modules and 'hydra' not in sys.modules\n"
        "assert 'sklearn' not in sys.modules\n"
        "from amp_sweep.config import DataConfig\n"
        "prepare(DataConfig(name='synthetic', train_images=9, test_images=9))\n"
        "assert 'torch' not in sys.modules\n"
        "data.epoch_order\n"
        "assert 'torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=ROOT, timeout=60)
