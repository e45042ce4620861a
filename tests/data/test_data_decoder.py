"""Files decoded by the device: the same code on a CPU, with Pillow as the oracle."""

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from amp_sweep import legality
from amp_sweep.config import DataConfig, RunConfig, fingerprint
from amp_sweep.data import DataError, Unsupported, open_split, prepare
from amp_sweep.data import on_device as on_device_module
from amp_sweep.data.ahead import ahead
from amp_sweep.data.decode import open_rgb

MakeFolder = Callable[..., Path]
MakeConfig = Callable[..., DataConfig]
Picture = Callable[[int, int, int], np.ndarray]
CPU = torch.device("cpu")


@pytest.fixture
def mixed(tmp_path: Path, picture: Picture) -> Path:
    """Twelve training images of one size, of every kind that is met in folders."""
    root = tmp_path / "mixed"
    for part in ("train", "test"):
        (root / part / "a").mkdir(parents=True)
    for number in range(12):
        image = Image.fromarray(picture(40, 32, number))
        path = root / "train" / "a" / f"{number:02d}.jpg"
        match number % 6:
            case 1:
                image.convert("L").save(path)
            case 2:
                image.convert("CMYK").save(path)
            case 3:
                image.save(path, progressive=True)
            case 4:
                image.convert("RGBA").save(path, "png")  # under a false name
            case _:
                image.save(path, subsampling=number % 3)
    Image.fromarray(picture(40, 32, 99)).save(root / "test" / "a" / "0.jpg")
    return root


def settings(make: MakeConfig, root: Path, **values: object) -> DataConfig:
    return make(root, **{"pipeline": "loader", "decode": "device", "image_size": 24, **values})


def paths(root: Path) -> list[Path]:
    return sorted((root / "train").glob("*/*"))


@pytest.mark.parametrize("workers", [0, 2])
def test_every_kind_of_file_has_the_pixels_that_pillow_gives(
    mixed: Path, folder_config: MakeConfig, workers: int
) -> None:
    config = settings(folder_config, mixed, workers=workers)
    split = open_split(prepare(config), "train", config, CPU)
    rows = torch.randperm(12, generator=torch.Generator().manual_seed(1)).view(4, 3)
    for _ in range(2):
        for raw, row in zip(split.batches(rows), rows, strict=True):
            assert raw.images is not None
            assert torch.equal(raw.indices, row)
            expected = [np.asarray(open_rgb(str(paths(mixed)[i]))) for i in row.tolist()]
            np.testing.assert_allclose(
                raw.images.numpy().astype(int), np.stack(expected).astype(int), atol=2
            )
    split.close()


def test_the_device_decodes_what_is_plain_and_nothing_else(
    mixed: Path, folder_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    decode = on_device_module._decode_jpegs

    def counting(jpegs: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        counts.append(len(jpegs))
        return decode(jpegs, device)

    config = settings(folder_config, mixed)
    split = open_split(prepare(config), "train", config, CPU)
    monkeypatch.setattr(on_device_module, "_decode_jpegs", counting)
    assert split.placement == "decoder"
    for rows in ([0, 5, 6, 11], [1, 2, 3, 4], [0, 1]):
        list(split.batches([torch.tensor(rows)]))
    assert counts == [4, 1]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("size", "image_size"), [((40, 32), 24), ((24, 24), 24), ((9, 9), 24)])
def test_the_network_sees_the_images_of_the_host_decoder(
    make_folder: MakeFolder,
    folder_config: MakeConfig,
    size: tuple[int, int],
    image_size: int,
    channels_last: bool,
) -> None:
    root = make_folder(size=size, suffix="jpg")
    config = settings(folder_config, root, image_size=image_size)
    prepared = prepare(config)
    host = dataclasses.replace(config, decode="host")
    assert prepare(host) == prepared
    rows = torch.arange(6).view(2, 3)
    found = open_split(prepared, "train", config, CPU, channels_last)
    right = open_split(prepared, "train", host, CPU, channels_last)
    for raw, expected in zip(found.batches(rows), right.batches(rows), strict=True):
        images, labels = found.to_input(raw)
        wanted = torch.channels_last if channels_last else torch.contiguous_format
        assert images.is_contiguous(memory_format=wanted)
        torch.testing.assert_close(images, right.to_input(expected)[0], atol=0.05, rtol=0)
        assert torch.equal(labels, right.to_input(expected)[1])


def test_files_of_different_sizes_become_the_squares_of_the_host_decoder(
    mixed: Path, folder_config: MakeConfig, picture: Picture
) -> None:
    for number, size in enumerate([(70, 50), (13, 90), (24, 24)]):
        Image.fromarray(picture(*size, number)).save(mixed / "train" / "a" / f"x{number}.jpg")
    config = settings(folder_config, mixed)
    prepared = prepare(config)
    assert prepared.resized_to == 24
    rows = torch.arange(15).view(3, 5)
    found = open_split(prepared, "train", config, CPU).batches(rows)
    host = dataclasses.replace(config, decode="host")
    right = open_split(prepared, "train", host, CPU).batches(rows)
    for raw, expected in zip(found, right, strict=True):
        assert raw.images is not None
        assert expected.images is not None
        assert raw.images.shape == (5, 24, 24, 3)
        # Pillow rounds between its two passes.
        assert (raw.images.int() - expected.images.int()).abs().max() <= 2


def test_what_the_device_cannot_decode_the_host_does(
    mixed: Path, folder_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = on_device_module._decode_jpegs
    refused = paths(mixed)[5].stat().st_size

    def picky(jpegs: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        if any(len(jpeg) == refused for jpeg in jpegs):
            raise RuntimeError("Failed to decode jpeg stream: 5")
        return decode(jpegs, device)

    config = settings(folder_config, mixed)
    prepared = prepare(config)
    split = open_split(prepared, "train", config, CPU)
    expected = [raw.images for raw in split.batches([torch.arange(12)])]
    monkeypatch.setattr(on_device_module, "_decode_jpegs", picky)
    found = [raw.images for raw in split.batches([torch.arange(12)])]
    assert found[0] is not None
    assert torch.equal(found[0], expected[0])
    # The host reads the file again, and has the last word.
    monkeypatch.setattr(
        on_device_module, "_decode_jpegs", lambda *_: (_ for _ in ()).throw(RuntimeError("5"))
    )
    monkeypatch.setattr(split._batches._images, "_files", np.array([b"train/a/gone.jpg"] * 12))
    with pytest.raises(DataError, match=r"gone\.jpg: No such file"):
        list(split.batches([torch.arange(1)]))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, empty, Path.unlink])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_broke_since_is_named(
    mixed: Path, folder_config: MakeConfig, damage: Callable[[Path], None], workers: int
) -> None:
    config = settings(folder_config, mixed, workers=workers)
    split = open_split(prepare(config), "train", config, CPU)
    damage(paths(mixed)[5])
    batches = split.batches(torch.arange(12)[:, None])
    with pytest.raises(DataError, match=r"^.*/mixed/train/a/05\.jpg: .+") as caught:
        list(batches)
    assert "\n" not in str(caught.value)
    split.close()


def test_a_file_of_another_size_than_before_is_told(
    mixed: Path, folder_config: MakeConfig, picture: Picture
) -> None:
    config = settings(folder_config, mixed)
    split = open_split(prepare(config), "train", config, CPU)
    Image.fromarray(picture(32, 40, 0)).save(paths(mixed)[0])
    with pytest.raises(DataError, match="have changed; start again"):
        list(split.batches([torch.arange(3)]))


def test_an_epoch_that_is_left_early_does_not_disturb_the_next(
    mixed: Path, folder_config: MakeConfig
) -> None:
    config = settings(folder_config, mixed, workers=1)
    split = open_split(prepare(config), "train", config, CPU)
    rows = torch.arange(12).view(6, 2)
    first = split.batches(rows)
    next(first)
    first.close()
    assert [raw.indices.tolist() for raw in split.batches(rows)] == rows.tolist()
    split.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]


@pytest.mark.parametrize("error", [RuntimeError("not compiled with nvJPEG support\nmore"),
                                   ImportError("cannot import name 'decode_jpeg'")])  # fmt: skip
def test_without_a_decoder_for_the_device_the_setting_is_told(
    mixed: Path, folder_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def absent(*_: object) -> None:
        raise error

    monkeypatch.setattr(on_device_module, "_decode_jpegs", absent)
    config = settings(folder_config, mixed)
    with pytest.raises(Unsupported, match=r"^data\.decode=device: .*") as caught:
        open_split(prepare(config), "train", config, CPU)
    assert "more" not in str(caught.value)
    assert "use data.decode=host" in str(caught.value)


def test_images_that_are_no_files_are_refused() -> None:
    config = DataConfig(
        name="synthetic", train_images=8, test_images=2, pipeline="loader", decode="device"
    )
    with pytest.raises(DataError, match="do not come from files"):
        open_split(prepare(config), "train", config, CPU)


# ------------------------------------------------------------------ the setting


def cell(device: str = "auto", **data: object) -> RunConfig:
    named = {"name": "imagefolder", "root": "/images", "pipeline": "loader", "decode": "device"}
    from amp_sweep.config import (
        ModelConfig,
        OptimizerConfig,
        ParallelConfig,
        PrecisionConfig,
        SchedulerConfig,
        TrackConfig,
    )

    return RunConfig(
        device=device,
        data=DataConfig(**{**named, **data}),  # type: ignore[arg-type]
        model=ModelConfig("alexnet"),
        parallel=ParallelConfig("none"),
        precision=PrecisionConfig("fp32"),
        optimizer=OptimizerConfig("adamw", lr=1e-3),
        scheduler=SchedulerConfig("constant"),
        track=TrackConfig("none"),
    )


def test_the_setting_is_legal_where_images_are_files_and_there_may_be_a_gpu() -> None:
    assert legality.check(cell()) == []
    assert legality.check(cell("cuda")) == []
    for device in ("cpu", "mps"):
        assert legality.check(cell(device)) == [
            f"data.decode=device needs a CUDA device; with device={device} it is data.decode=host"
        ]
    for data in ({"pipeline": "resident"}, {"pipeline": "pil"}, {"name": "cifar10"}):
        problems = legality.check(cell(**data))
        assert len(problems) == 1
        assert "works with data=imagefolder data.pipeline=loader only" in problems[0]
    assert "data.decode=gpu: allowed are host, device" in legality.check(cell(decode="gpu"))


@pytest.mark.parametrize(("device_type", "invalid"), [("cuda", False), ("cpu", True)])
def test_without_cuda_the_cell_is_invalid_with_the_reason(device_type: str, invalid: bool) -> None:
    def reason(decode: str) -> str | None:
        return legality.impossible_here(
            cell(decode=decode), device_type=device_type, visible_devices=1, native_bf16=True
        )

    assert reason("host") is None
    told = "data.decode=device needs a CUDA device; use data.decode=host"
    assert reason("device") == (told if invalid else None)


def test_who_decodes_is_part_of_a_runs_identity_and_old_runs_keep_theirs() -> None:
    assert fingerprint(cell()) != fingerprint(cell(decode="host"))
    assert DataConfig.decode == "host"


# ------------------------------------------------------------------ the thread


def test_results_come_in_order_and_no_further_ahead_than_asked() -> None:
    made: list[int] = []

    def make(item: int) -> int:
        time.sleep(0.001 * (item % 3))
        made.append(item)
        return 10 * item

    asked: list[int] = []

    def items() -> Iterator[int]:
        for item in range(20):
            asked.append(item)
            yield item

    found = []
    for result in ahead(make, items(), depth=2):
        found.append(result)
        assert len(asked) <= len(found) + 2
    assert found == [10 * item for item in range(20)]
    assert made == list(range(20))
    assert list(ahead(make, [], depth=1)) == []


def test_what_a_step_ahead_raises_comes_in_its_place() -> None:
    def make(item: int) -> int:
        if item == 2:
            raise DataError("the third")
        return item

    results = ahead(make, range(5), depth=2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(DataError, match="the third"):
        next(results)
