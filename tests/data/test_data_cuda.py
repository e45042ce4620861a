"""The same on a GPU; `python -m pytest tests/data/test_data_cuda.py` there."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from amp_sweep.config import DataConfig
from amp_sweep.data import epoch_order, open_split, prepare, rank_batches
from amp_sweep.data import pipeline as pipeline_module

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
