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
from amp_sweep.worker.measured import device_notes

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


def raising(many: Exception, one: Exception | None) -> Callable[..., list[torch.Tensor]]:
    """A decoder that raises for many files, and for a single one (None: decodes it)."""
    real = on_device_module._decode_jpegs

    def decode(jpegs: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        error = many if len(jpegs) > 1 else one
        if error is not None:
            raise error
        return real(jpegs, device)

    return decode


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, torch.AcceleratorError])
@pytest.mark.parametrize("alone", [False, True])
def test_a_device_that_fails_is_no_refusal_of_a_file(
    mixed: Path,
    folder_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[RuntimeError],
    alone: bool,
) -> None:
    config = settings(folder_config, mixed)
    split = open_split(prepare(config), "train", config, CPU)
    fails = kind("CUDA error")
    decode = raising(RuntimeError("3"), fails) if alone else raising(fails, None)
    monkeypatch.setattr(on_device_module, "_decode_jpegs", decode)
    with pytest.raises(kind, match="CUDA error"):
        list(split.batches([torch.arange(12)]))
    assert split.refused == 0
    if alone:  # nor is it a reason to say that there is no decoder
        with pytest.raises(kind, match="CUDA error"):
            open_split(prepare(config), "train", config, CPU)


def test_refusals_are_counted_and_the_first_is_told(
    mixed: Path,
    folder_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = settings(folder_config, mixed)
    split = open_split(prepare(config), "train", config, CPU)
    list(split.batches([torch.arange(12)]))
    assert split.refused == 0
    error = RuntimeError("")
    monkeypatch.setattr(on_device_module, "_decode_jpegs", raising(error, error))
    for _ in range(2):
        list(split.batches([torch.arange(12)]))
    assert split.refused == 2 * 4  # 0, 5, 6 and 11 are plain
    (told,) = caplog.messages
    assert told.endswith(f"first {paths(mixed)[0]} (RuntimeError)")
    host = dataclasses.replace(config, decode="host")
    assert open_split(prepare(host), "train", host, CPU).refused == 0


def test_the_record_says_how_many_images_the_device_refused() -> None:
    ranks = [{"gpus_end": [], "refused_images": count, "compiled": None} for count in (0, 1234)]
    (note,) = device_notes(None, ranks)
    assert note.startswith("data.decode=device: 1,234 times the host decoded a JPEG image")
    assert device_notes(None, ranks[:1]) == []


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


@pytest.mark.parametrize("decode", ["host", "device"])
def test_a_replaced_file_of_the_same_size_is_noticed_at_the_next_start_only(
    mixed: Path, folder_config: MakeConfig, picture: Picture, decode: str
) -> None:
    config = settings(folder_config, mixed, decode=decode)
    prepared = prepare(config)
    split = open_split(prepared, "train", config, CPU)
    Image.fromarray(picture(40, 32, 77)).save(paths(mixed)[0], subsampling=0)
    (raw,) = split.batches([torch.arange(1)])
    assert raw.images is not None
    expected = np.asarray(open_rgb(str(paths(mixed)[0]))).astype(int)
    np.testing.assert_allclose(raw.images[0].numpy().astype(int), expected, atol=2)
    assert prepare(config).digest != prepared.digest


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
                                   ImportError("cannot import name 'decode_jpeg'"),
                                   RuntimeError(" \n")])  # fmt: skip
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


def test_what_is_done_is_not_kept_waiting_for_the_items() -> None:
    begun = [threading.Event() for _ in range(5)]
    found: list[int] = []

    def items() -> Iterator[int]:
        for item in range(5):
            if item >= 2:
                assert begun[item - 1].wait(10)  # so those before it are done
            assert len(found) >= item - 2
            yield item

    def make(item: int) -> int:
        begun[item].set()
        return item

    for result in ahead(make, items(), depth=4):
        found.append(result)
    assert found == list(range(5))


def test_one_is_in_the_making_while_the_caller_is_slow() -> None:
    made: list[int] = []
    asked: list[int] = []

    def items() -> Iterator[int]:
        for item in range(12):
            asked.append(item)
            yield item

    def make(item: int) -> int:
        time.sleep(0.002)
        made.append(item)
        return item

    for result in ahead(make, items(), depth=2):
        assert len(asked) >= min(12, result + 2)
        until = time.monotonic() + 10
        while len(made) < len(asked) and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.002)  # by now all that were asked for are done


def test_what_a_step_ahead_raises_comes_in_its_place() -> None:
    def make(item: int) -> int:
        if item == 2:
            raise DataError("the third")
        return item

    results = ahead(make, range(5), depth=2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(DataError, match="the third"):
        next(results)
