"""Batches on the device: the right images, resized as PIL does, in the format asked for."""

import dataclasses
import gc
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from amp_sweep.config import DataConfig
from amp_sweep.data import (
    DataError,
    Prepared,
    Split,
    epoch_order,
    eval_batches,
    fused_input,
    open_prepared,
    open_split,
    prepare,
    rank_batches,
)
from amp_sweep.data import pipeline as pipeline_module
from amp_sweep.data.prepared import images_path, labels_path

MakeFolder = Callable[..., Path]
MakeConfig = Callable[..., DataConfig]
Picture = Callable[[int, int, int], np.ndarray]
CPU = torch.device("cpu")
PLACEMENTS = ["device", "host", "loader", "pil"]


def with_placement(config: DataConfig, placement: str) -> DataConfig:
    if placement in ("device", "host"):
        return dataclasses.replace(config, pipeline="resident", placement=placement)
    return dataclasses.replace(config, pipeline=placement)


def everything(split: Split, batch: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = [split.to_input(raw) for raw in split.batches(eval_batches(split.count, batch, 0, 1))]
    return torch.cat([images for images, _ in pairs]), torch.cat([labels for _, labels in pairs])


def by_pil(prepared: Prepared, part: Any, size: int) -> np.ndarray:
    """The oracle: PIL per image, float64 [count, 3, size, size], 0..1."""
    resized = []
    for pixels in np.load(images_path(prepared.folder, part)):
        image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
        resized.append(np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)))
    return np.stack(resized).transpose(0, 3, 1, 2) / 255


def of_size(
    make_folder: MakeFolder, folder_config: MakeConfig, source: int, size: int
) -> DataConfig:
    return folder_config(make_folder(size=(source, source)), image_size=size, normalize=False)


@pytest.mark.parametrize("placement", ["device", "host", "loader"])
@pytest.mark.parametrize(("source", "size"), [(32, 227), (30, 64), (33, 33)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_enlarging_equals_pil_within_a_grey_level(
    make_folder: MakeFolder,
    folder_config: MakeConfig,
    placement: str,
    source: int,
    size: int,
    channels_last: bool,
) -> None:
    config = with_placement(of_size(make_folder, folder_config, source, size), placement)
    prepared = prepare(config)
    images, _ = everything(open_split(prepared, "test", config, CPU, channels_last))
    stored = prepare(dataclasses.replace(config, pipeline="resident"))
    expected = by_pil(stored, "test", size)
    assert np.abs(images.numpy() - expected).max() <= 1 / 255 + 1e-6
    if source == size:
        np.testing.assert_array_equal(images.numpy(), expected.astype(np.float32))


@pytest.mark.parametrize(("source", "size"), [(96, 64), (64, 17), (50, 49)])
def test_shrinking_is_antialiased_as_pil_does(
    make_folder: MakeFolder, folder_config: MakeConfig, source: int, size: int
) -> None:
    config = of_size(make_folder, folder_config, source, size)
    prepared = prepare(config)
    images, _ = everything(open_split(prepared, "test", config, CPU))
    assert np.abs(images.numpy() - by_pil(prepared, "test", size)).max() <= 2 / 255


@pytest.mark.parametrize(
    ("shape", "size"), [((20, 60), 40), ((60, 20), 40), ((16, 40), 16), ((40, 16), 16)]
)
def test_images_that_are_not_square_are_squashed_as_pil_does(
    make_folder: MakeFolder, folder_config: MakeConfig, shape: tuple[int, int], size: int
) -> None:
    config = folder_config(make_folder(size=shape), image_size=size, normalize=False)
    prepared = prepare(config)
    images, _ = everything(open_split(prepared, "test", config, CPU))
    assert np.abs(images.numpy() - by_pil(prepared, "test", size)).max() <= 2 / 255


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_grey_digits_become_three_equal_channels_at_64_pixels(placement: str) -> None:
    config = with_placement(
        DataConfig(name="digits", image_size=64, normalize=False, test_images=30), placement
    )
    prepared = prepare(config)
    images, labels = everything(open_split(prepared, "test", config, CPU))
    assert images.shape == (30, 3, 64, 64)
    assert torch.equal(images[:, 0], images[:, 2])
    assert np.abs(images.numpy() - by_pil(prepared, "test", 64)).max() <= 1 / 255 + 1e-6
    assert labels.tolist() == np.load(labels_path(prepared.folder, "test")).tolist()


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("size", [32, 50, 20])
def test_normalised_images_are_those_of_the_training_statistics(placement: str, size: int) -> None:
    config = with_placement(
        DataConfig(name="synthetic", image_size=size, train_images=40, test_images=20), placement
    )
    prepared = prepare(config)
    images, _ = everything(open_split(prepared, "test", config, CPU))
    mean = np.array(prepared.mean).reshape(3, 1, 1)
    std = np.array(prepared.std).reshape(3, 1, 1)
    expected = (by_pil(prepared, "test", size) - mean) / std
    assert np.abs(images.numpy() - expected).max() <= 2 / 255 / min(prepared.std)
    train, _ = everything(open_split(prepared, "train", config, CPU))
    assert train.mean().abs() < 0.01
    if size == 32:
        assert train.std() == pytest.approx(1, abs=0.01)


def test_a_channel_without_any_contrast_is_normalised_to_zero(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    root = make_folder({"train/a": 2, "test/a": 2})
    for path in root.rglob("*.png"):
        Image.new("RGB", (10, 12), (70, 70, 70)).save(path)
    for placement in ("device", "pil"):
        config = with_placement(folder_config(root), placement)
        prepared = prepare(config)
        assert prepared.std == (0, 0, 0)
        images, _ = everything(open_split(prepared, "train", config, CPU))
        assert images.abs().max() < 1e-6


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", ["digits", "synthetic"])
@pytest.mark.parametrize("size", [8, 32, 40])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_memory_format_is_the_one_asked_for(
    placement: str, name: str, size: int, channels_last: bool
) -> None:
    config = with_placement(
        DataConfig(name=name, image_size=size, train_images=20, test_images=6), placement
    )
    split = open_split(prepare(config), "test", config, CPU, channels_last)
    images, labels = split.to_input(next(split.batches(torch.tensor([[1, 0, 5]]))))
    assert (images.dtype, images.shape) == (torch.float32, (3, 3, size, size))
    assert (labels.dtype, labels.shape) == (torch.int64, (3,))
    wanted = torch.channels_last if channels_last else torch.contiguous_format
    assert images.is_contiguous(memory_format=wanted)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_rank_gets_the_images_and_labels_of_its_indices_in_order(placement: str) -> None:
    config = with_placement(
        DataConfig(name="synthetic", image_size=32, train_images=50, normalize=False), placement
    )
    prepared = prepare(config)
    split = open_split(prepared, "train", config, CPU)
    pixels = np.load(images_path(prepared.folder, "train")).transpose(0, 3, 1, 2)
    labels = np.load(labels_path(prepared.folder, "train"))
    assert split.count == 50
    assert split.labels.tolist() == labels.tolist()
    for epoch in range(2):
        rows = rank_batches(epoch_order(50, 0, epoch, True), 12, 1, 2)
        raws = list(split.batches(rows))
        assert len(raws) == 4
        for row, raw in zip(rows, raws, strict=True):
            images, targets = split.to_input(raw)
            assert torch.equal(raw.indices, row)
            np.testing.assert_allclose(images.numpy(), pixels[row] / 255, atol=1e-6)
            assert targets.tolist() == labels[row].tolist()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_no_batches_give_no_batches(placement: str) -> None:
    config = with_placement(DataConfig(name="synthetic", train_images=5, test_images=5), placement)
    split = open_split(prepare(config), "test", config, CPU)
    assert list(split.batches([])) == []
    assert list(split.batches(torch.empty((0, 4), dtype=torch.int64))) == []


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_beyond_the_data_is_refused(placement: str, index: int) -> None:
    config = with_placement(DataConfig(name="synthetic", train_images=5, test_images=5), placement)
    split = open_split(prepare(config), "test", config, CPU)
    with pytest.raises(IndexError, match="beyond the 5 images"):
        list(split.batches(torch.tensor([[0, index]])))


@pytest.mark.parametrize("pipeline", ["loader", "pil"])
def test_files_of_different_sizes_are_resized_on_the_host(
    make_folder: MakeFolder, folder_config: MakeConfig, pipeline: str
) -> None:
    root = make_folder()
    Image.new("RGB", (31, 57), (10, 200, 30)).save(root / "test/dog/other.png")
    config = folder_config(root, normalize=False, pipeline=pipeline)
    images, labels = everything(open_split(prepare(config), "test", config, CPU))
    stored = prepare(dataclasses.replace(config, pipeline="resident"))
    expected = np.load(images_path(stored.folder, "test")).transpose(0, 3, 1, 2) / 255
    np.testing.assert_allclose(images.numpy(), expected, atol=1e-6)
    assert labels.tolist() == [0, 0, 1, 1, 1]


def test_the_articles_pipeline_equals_torchvisions_transforms(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    root = make_folder(size=(32, 32), suffix="jpg")
    config = folder_config(root, image_size=227, pipeline="pil")
    prepared = prepare(config)
    images, labels = everything(open_split(prepared, "train", config, CPU))
    transform = transforms.Compose(
        [
            transforms.Resize((227, 227)),
            transforms.ToTensor(),
            transforms.Normalize(prepared.mean, prepared.std),
        ]
    )
    expected = list(ImageFolder(str(root / "train"), transform))
    torch.testing.assert_close(images, torch.stack([image for image, _ in expected]))
    assert labels.tolist() == [label for _, label in expected]


# ------------------------------------------------------------------- placement


@pytest.mark.parametrize(
    ("available", "placement"), [(4 * 168_960, "device"), (4 * 168_960 - 1, "host")]
)
def test_data_are_resident_while_they_take_a_quarter_of_the_memory(
    available: int, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Memory:
        pass

    Memory.available = available  # type: ignore[attr-defined]
    monkeypatch.setattr(pipeline_module.psutil, "virtual_memory", Memory)
    config = DataConfig(name="synthetic", train_images=50, test_images=5)
    prepared = prepare(config)
    assert prepared.pixel_bytes == 55 * 32 * 32 * 3 == 168_960
    for part in ("train", "test"):
        assert open_split(prepared, part, config, CPU).placement == placement
    for wanted in ("device", "host"):
        chosen = dataclasses.replace(config, placement=wanted)
        assert open_split(prepared, "train", chosen, CPU).placement == wanted


def test_the_other_pipelines_have_their_own_placement() -> None:
    config = DataConfig(name="synthetic", train_images=50, test_images=5)
    prepared = prepare(config)
    names = {}
    for pipeline in ("loader", "pil"):
        chosen = dataclasses.replace(config, pipeline=pipeline)
        names[pipeline] = open_split(prepared, "train", chosen, CPU).placement
    assert names == {"loader": "workers", "pil": "pil"}


def test_resident_images_do_not_need_the_cache_any_more() -> None:
    config = DataConfig(name="synthetic", train_images=50, test_images=5)
    prepared = prepare(config)
    split = open_split(prepared, "train", config, CPU)
    for path in prepared.folder.iterdir():
        path.unlink()
    assert len(everything(split)[0]) == 50
    # Pixels, labels, and three scales and biases.
    assert sum(tensor.nbytes for tensor in split.stored()) == 50 * 32 * 32 * 3 + 50 * 8 + 2 * 3 * 4


def test_a_large_part_is_uploaded_in_pieces_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = DataConfig(name="synthetic", train_images=50, test_images=5)
    prepared = prepare(config)
    whole, _ = everything(open_split(prepared, "train", config, CPU))
    for limit in (10_000, 100):  # three images, less than one
        monkeypatch.setattr(pipeline_module, "_UPLOAD_BYTES", limit)
        pieces, _ = everything(open_split(prepared, "train", config, CPU))
        assert torch.equal(whole, pieces)


def test_the_host_is_one_batch_ahead_and_its_thread_ends_with_an_abandoned_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = DataConfig(name="synthetic", train_images=50, test_images=5, placement="host")
    split = open_split(prepare(config), "train", config, CPU)
    fetched: list[int] = []
    fetch = pipeline_module.fetch

    def counted(*arguments: Any) -> torch.Tensor:
        fetched.append(len(arguments[1]))
        return fetch(*arguments)

    monkeypatch.setattr(pipeline_module, "fetch", counted)
    batches = split.batches(torch.arange(50).view(10, 5))
    next(batches)
    batches.close()
    assert 1 <= len(fetched) <= 2
    assert not [t for t in threading.enumerate() if t.name.startswith("prefetch")]


# ------------------------------------------------- the input as one kernel


def on_the_cpu() -> Split:
    config = DataConfig(name="synthetic", train_images=50, test_images=5)
    return open_split(prepare(config), "train", config, CPU)


def test_without_triton_the_input_is_left_to_pytorch_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    split = on_the_cpu()
    assert not split.fused
    assert caplog.text == ""  # a CPU is not asked
    fused_input._compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "triton", None)
    assert split._resident is not None
    assert split._one_launch(split._resident) is None
    assert "input by PyTorch's operations, without Triton: ModuleNotFoundError" in caplog.text


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_a_device_that_fails_is_no_lack_of_triton(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error("by the device")

    monkeypatch.setattr(fused_input, "_compiled", fail)
    split = on_the_cpu()
    assert split._resident is not None
    with pytest.raises(error, match="by the device"):
        split._one_launch(split._resident)


@pytest.mark.parametrize("fused", [False, True])
def test_what_is_one_kernel_is_not_compiled_once_more(
    fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = on_the_cpu()
    made = torch.zeros(2), torch.ones(2)
    if fused:
        monkeypatch.setattr(split, "_fused", lambda rows: made)
        assert split.to_input(next(split.batches(torch.tensor([[1, 2]])))) is made
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(torch, "compile", lambda made, **options: given.append(options) or made)
    split.compile("max-autotune")
    assert given == ([] if fused else [{"mode": "max-autotune", "dynamic": False}])


# ------------------------------------------------------------------ bad inputs


def test_data_prepared_without_pixels_cannot_be_resident(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    config = folder_config(make_folder(), pipeline="loader")
    prepared = prepare(config)
    with pytest.raises(DataError, match="prepared for loader or pil"):
        open_split(prepared, "train", dataclasses.replace(config, pipeline="resident"), CPU)
    with pytest.raises(DataError, match=r"data\.pipeline=fast: allowed are resident, loader, pil"):
        open_split(prepared, "train", dataclasses.replace(config, pipeline="fast"), CPU)


@pytest.mark.parametrize("pipeline", ["loader", "pil"])
def test_a_file_that_is_gone_while_training_is_told_by_name(
    make_folder: MakeFolder, folder_config: MakeConfig, pipeline: str
) -> None:
    root = make_folder()
    config = folder_config(root, pipeline=pipeline)
    split = open_split(prepare(config), "train", config, CPU)
    (root / "train/cat/001.png").unlink()
    with pytest.raises(DataError, match=r"cat/001\.png: No such file"):
        everything(split)


def test_a_file_that_has_another_size_while_training_is_told(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    root = make_folder()
    config = folder_config(root, pipeline="loader")
    split = open_split(prepare(config), "train", config, CPU)
    Image.new("RGB", (5, 5)).save(root / "train/cat/001.png")
    with pytest.raises(DataError, match="have changed"):
        everything(split)


def test_an_incomplete_cache_is_refused_when_opened() -> None:
    config = DataConfig(name="synthetic", train_images=50, test_images=5)
    prepared = prepare(config)
    images_path(prepared.folder, "train").unlink()
    with pytest.raises(DataError, match="incomplete"):
        open_prepared(prepared.folder)
    with pytest.raises(DataError, match=r"train_images\.npy: No such file"):
        open_split(prepared, "train", config, CPU)


def test_a_split_leaves_no_file_open(recwarn: pytest.WarningsRecorder) -> None:
    config = DataConfig(name="synthetic", train_images=50, test_images=5, pipeline="loader")
    split = open_split(prepare(config), "train", config, CPU)
    everything(split)
    split.close()
    with pytest.raises(ValueError, match="closed"):
        everything(split)
    del split
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []
