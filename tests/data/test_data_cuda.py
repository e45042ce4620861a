"""The same on a GPU; `python -m pytest tests/data/test_data_cuda.py` there."""

import dataclasses
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.profiler import ProfilerActivity, profile

from amp_sweep.config import DataConfig
from amp_sweep.data import Raw, Split, epoch_order, fused_input, open_split, prepare, rank_batches
from amp_sweep.data import pipeline as pipeline_module
from amp_sweep.data.on_device import DecodedBatches
from amp_sweep.probes import busy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

PLACEMENTS = ["device", "host", "loader", "pil"]


@pytest.fixture
def no_synchronisation() -> Iterator[None]:
    """Whatever makes the host wait for the device raises."""
    torch.cuda.synchronize()
    yield
    torch.cuda.set_sync_debug_mode("default")


def with_placement(config: DataConfig, placement: str) -> DataConfig:
    if placement in ("device", "host"):
        return dataclasses.replace(config, pipeline="resident", placement=placement)
    return dataclasses.replace(config, pipeline=placement)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("size", [32, 227, 20])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_gpu_gets_the_images_of_a_cpu(
    placement: str, size: int, channels_last: bool, normalize: bool
) -> None:
    config = with_placement(
        DataConfig(
            name="synthetic", image_size=size, train_images=50, test_images=5, normalize=normalize
        ),
        placement,
    )
    prepared = prepare(config)
    rows = rank_batches(epoch_order(50, 0, 0, True), 12, 0, 1)
    found, right = (
        open_split(prepared, "train", config, torch.device(device), channels_last)
        for device in ("cuda", "cpu")
    )
    pairs = zip(found.batches(rows), right.batches(rows), strict=True)
    for raw, expected_raw in pairs:
        images, labels = found.to_input(raw)
        expected, expected_labels = right.to_input(expected_raw)
        wanted = torch.channels_last if channels_last else torch.contiguous_format
        assert images.is_contiguous(memory_format=wanted)
        torch.testing.assert_close(images.cpu(), expected, atol=1e-4, rtol=1e-4)
        assert torch.equal(labels.cpu(), expected_labels)


# PyTorch says that the check itself is a prototype.
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("placement", ["device", "host"])
def test_an_epoch_does_not_make_the_host_wait_for_the_device(
    placement: str, no_synchronisation: None
) -> None:
    config = with_placement(
        DataConfig(name="synthetic", image_size=64, train_images=200, test_images=5), placement
    )
    split = open_split(prepare(config), "train", config, torch.device("cuda"), True)
    rows = rank_batches(epoch_order(200, 0, 0, True), 20, 0, 1)
    torch.cuda.set_sync_debug_mode("error")
    for raw in split.batches(rows):
        split.to_input(raw)


def resident(size: int, channels_last: bool = True) -> Split:
    """50 images of 32 pixels on the device, to be `size` pixels large."""
    config = DataConfig(
        name="synthetic", image_size=size, train_images=50, test_images=5, placement="device"
    )
    return open_split(prepare(config), "train", config, torch.device("cuda", 0), channels_last)


def operations(split: Split, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels by PyTorch's operations."""
    return split._made(Raw(rows, None))


with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="no Triton here"
)


@with_triton
@pytest.mark.parametrize("size", [32, 63, 227])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_input_of_resident_images_is_one_kernel(size: int, channels_last: bool) -> None:
    split = resident(size, channels_last)
    assert split.fused
    split.compile(None)  # changes nothing
    rows = torch.tensor([7, 49, 7, 0, 12], device="cuda")
    expected, expected_labels = operations(split, rows)
    torch.cuda.synchronize()
    # Some releases of PyTorch warn of what follows a first cycle, unless told to keep all.
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        images, labels = split.to_input(Raw(rows, None))
        torch.cuda.synchronize()
    events = profiler.profiler.kineto_results.events()
    assert [event.name() for event in events if busy._is_kernel(event)] == ["input_kernel"]
    assert images.stride() == expected.stride()
    torch.testing.assert_close(images, expected, atol=2e-5, rtol=1e-5)
    assert torch.equal(labels, expected_labels)


def test_images_that_shrink_are_left_to_pytorch() -> None:
    assert not resident(31).fused


@with_triton
def test_a_cuda_graph_holds_the_kernel_before_any_batch_was_made() -> None:
    split = resident(64)
    rows = torch.tensor([3, 1, 4, 1, 5], device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        images, labels = split.to_input(Raw(rows, None))
    rows.copy_(torch.tensor([9, 2, 6, 5, 30]))
    graph.replay()
    expected, expected_labels = operations(split, rows)
    torch.testing.assert_close(images, expected, atol=2e-5, rtol=1e-5)
    assert torch.equal(labels, expected_labels)


@with_triton
def test_rows_that_begin_anywhere_need_no_second_kernel() -> None:
    split = resident(40)
    kernels = fused_input._compiled().device_caches[0][0]
    before = len(kernels)
    assert before > 0
    for raw in split.batches(torch.arange(49).view(7, 7)):
        images, _ = split.to_input(raw)
        torch.testing.assert_close(images, operations(split, raw.indices)[0], atol=2e-5, rtol=1e-5)
    assert len(kernels) == before


@with_triton
def test_without_triton_pytorchs_operations_give_the_same_images(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rows = torch.tensor([7, 49, 7, 0, 12], device="cuda")
    with_kernel = resident(227)
    fused_input._compiled.cache_clear()
    assert "without Triton" not in caplog.text
    monkeypatch.setitem(sys.modules, "triton", None)
    without = resident(227)
    assert with_kernel.fused and not without.fused
    assert caplog.text.count("input by PyTorch's operations, without Triton") == 1
    found, expected = (split.to_input(Raw(rows, None)) for split in (without, with_kernel))
    torch.testing.assert_close(found[0], expected[0], atol=2e-5, rtol=1e-5)
    assert torch.equal(found[1], expected[1])


def test_two_loader_processes_deliver_pinned_batches() -> None:
    config = DataConfig(name="synthetic", train_images=64, pipeline="loader", workers=2)
    split = open_split(prepare(config), "train", config, torch.device("cuda"))
    assert sum(len(raw.indices) for raw in split.batches(torch.arange(64).view(8, 8))) == 64
    split.close()


@pytest.mark.parametrize(("free", "placement"), [(10**9, "device"), (10**4, "host")])
def test_placement_goes_by_the_free_memory_of_the_gpu(
    free: int, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_module.torch.cuda, "mem_get_info", lambda _: (free, 10**10))
    config = DataConfig(name="synthetic", train_images=50, test_images=5)
    split = open_split(prepare(config), "train", config, torch.device("cuda"))
    assert split.placement == placement


@pytest.fixture
def photographs(tmp_path: Path, picture: Callable[[int, int, int], np.ndarray]) -> Path:
    """JPEG files of one size and every subsampling, and grey and progressive ones."""
    root = tmp_path / "photographs"
    for number in range(96):
        folder = root / ("test" if number == 95 else "train") / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(picture(50, 66, number))
        image = image.convert("L") if number % 16 == 7 else image
        progressive = number % 16 == 11
        image.save(folder / f"{number}.jpg", subsampling=number % 3, progressive=progressive)
    for label in range(3):
        (root / "test" / f"class{label}").mkdir(exist_ok=True)
        Image.fromarray(picture(50, 66, label)).save(root / "test" / f"class{label}" / "t.jpg")
    return root


def decoded(root: Path, rows: torch.Tensor, **values: object) -> list[torch.Tensor]:
    """The batches of uint8 images, on the CPU."""
    config = DataConfig(name="imagefolder", root=str(root), image_size=32, pipeline="loader")
    config = dataclasses.replace(config, **values)  # type: ignore[arg-type]
    split = open_split(prepare(config), "train", config, torch.device("cuda", 0))
    found = []
    for raw in split.batches(rows):
        assert raw.images is not None
        assert raw.images.device.type == "cuda"
        found.append(raw.images.cpu())
    split.close()
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_nvjpeg_gives_pillows_images_but_for_rounding(photographs: Path, workers: int) -> None:
    rows = torch.randperm(95, generator=torch.Generator().manual_seed(0))[:90].view(9, 10)
    right = decoded(photographs, rows)
    found = decoded(photographs, rows, decode="device", workers=workers)
    difference = (torch.cat(found).float() - torch.cat(right).float()).abs()
    per_image = difference.mean(dim=(1, 2, 3))
    # Levels of 255: another image differs by 40 and more, another order of the colours by 25.
    # nvJPEG enlarges chroma in a way of its own, told at coloured edges: up to 4.4 on an H200.
    assert per_image.max() < 8
    assert difference.mean() < 2
    again = decoded(photographs, rows, decode="device", workers=workers)
    assert torch.equal(torch.cat(found), torch.cat(again))


def test_files_of_different_sizes_become_squares_on_the_gpu(
    photographs: Path, picture: Callable[[int, int, int], np.ndarray]
) -> None:
    for number, size in enumerate([(70, 40), (20, 90), (128, 128)]):
        path = photographs / "train" / "class0" / f"x{number}.jpg"
        Image.fromarray(picture(*size, number)).save(path, subsampling=0)
    rows = torch.arange(98).view(7, 14)
    right = decoded(photographs, rows)
    found = decoded(photographs, rows, decode="device")
    assert found[0].shape == (14, 32, 32, 3)
    assert (torch.cat(found).float() - torch.cat(right).float()).abs().mean() < 2


@pytest.fixture
def decoder(photographs: Path) -> Iterator[Split]:
    """The training images, decoded by the device; 0 to 94."""
    config = DataConfig(
        name="imagefolder", root=str(photographs), image_size=32, pipeline="loader", decode="device"
    )
    split = open_split(prepare(config), "train", config, torch.device("cuda", 0))
    yield split
    split.close()


def sums_at_once(split: Split) -> dict[int, int]:
    """The sum of each image's pixels, where nothing is left to run while the next are decoded."""
    found: dict[int, int] = {}
    for raw in split.batches(torch.arange(95).view(19, 5)):
        assert raw.images is not None
        sums = raw.images.long().sum(dim=(1, 2, 3)).tolist()
        found |= dict(zip(raw.indices.tolist(), sums, strict=True))
        torch.cuda.synchronize()
    assert len(set(found.values())) > 60  # so that one image is told from another
    return found


def long_kernel() -> Callable[[], object]:
    """Enqueues some milliseconds of work on the current stream, and no new memory."""
    factor, product = torch.randn(2, 4096, 4096, device="cuda")
    torch.cuda.synchronize()
    return lambda: torch.mm(factor, factor, out=product)


def test_decoding_ahead_never_writes_into_a_batch_that_is_still_read(decoder: Split) -> None:
    """Memory of the decoder's stream, read by kernels of the consumer's."""
    expected, work = sums_at_once(decoder), long_kernel()
    found = []
    for raw in decoder.batches(torch.arange(95).repeat(20).view(190, 10)):
        assert raw.images is not None
        work()  # the sum below is read long after the host has gone on
        found.append((raw.indices, raw.images.long().sum(dim=(1, 2, 3))))
        del raw
    for indices, sums in found:
        assert sums.tolist() == [expected[index] for index in indices.tolist()]


def test_decoding_ahead_never_writes_into_a_file_that_is_still_put_into_its_batch(
    decoder: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision#9606: its decoder does not wait for kernels that read the memory it is given.

    Here they are the decoder's own: those that make a batch of decoded files.
    """
    expected, work = sums_at_once(decoder), long_kernel()
    sized = DecodedBatches._sized

    def slowly(batches: DecodedBatches, image: torch.Tensor) -> torch.Tensor:
        work()
        return sized(batches, image)

    monkeypatch.setattr(DecodedBatches, "_sized", slowly)
    found = []
    for raw in decoder.batches(torch.arange(95).repeat(4).view(38, 10)):
        assert raw.images is not None
        found.append((raw.indices, raw.images.long().sum(dim=(1, 2, 3))))
        del raw
    for indices, sums in found:
        assert sums.tolist() == [expected[index] for index in indices.tolist()]
