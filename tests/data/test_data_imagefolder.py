"""A folder of images per class: listed, decoded, stored or only looked at."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from amp_sweep.config import DataConfig
from amp_sweep.data import DataError, open_prepared, prepare
from amp_sweep.data.prepared import images_path, labels_path

MakeFolder = Callable[..., Path]
MakeConfig = Callable[..., DataConfig]


def test_pixels_labels_and_statistics_equal_torchvision_and_numpy(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    from torchvision.datasets import ImageFolder

    root = make_folder()
    prepared = prepare(folder_config(root))
    for part in ("train", "test"):
        expected = ImageFolder(str(root / part))
        pixels = np.stack([np.asarray(image) for image, _ in expected])
        np.testing.assert_array_equal(np.load(images_path(prepared.folder, part)), pixels)
        labels = np.load(labels_path(prepared.folder, part))
        assert labels.dtype == np.int64
        assert labels.tolist() == expected.targets
        assert prepared.classes == tuple(expected.classes)
        if part == "train":
            scaled = pixels / 255
            assert prepared.mean == pytest.approx(scaled.mean(axis=(0, 1, 2)))
            assert prepared.std == pytest.approx(scaled.std(axis=(0, 1, 2)))
    assert (prepared.height, prepared.width, prepared.channels) == (12, 10, 3)
    assert (prepared.train_count, prepared.test_count) == (7, 4)
    assert prepared.resized_to is None
    assert open_prepared(prepared.folder) == prepared


def test_images_of_different_sizes_are_resized_as_torchvision_does(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import Resize

    root = make_folder()
    Image.new("RGB", (31, 57), (10, 200, 30)).save(root / "test" / "dog" / "other.jpg")
    prepared = prepare(folder_config(root))
    for part in ("train", "test"):
        resized = ImageFolder(str(root / part), transform=Resize((16, 16)))
        pixels = np.stack([np.asarray(image) for image, _ in resized])
        np.testing.assert_array_equal(np.load(images_path(prepared.folder, part)), pixels)
    assert (prepared.height, prepared.width, prepared.resized_to) == (16, 16, 16)
    other = prepare(folder_config(root, image_size=8))
    assert other.folder != prepared.folder
    assert (other.height, other.resized_to) == (8, 8)
    assert prepare(folder_config(root)) == prepared


def test_images_of_one_size_are_stored_once_for_all_image_sizes(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    root = make_folder()
    assert prepare(folder_config(root)) == prepare(folder_config(root, image_size=64))


def test_many_files_are_decoded_by_processes_with_the_same_result(
    make_folder: MakeFolder,
    folder_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from amp_sweep.data import files

    root = make_folder({"train/a": 30, "train/b": 20, "test/a": 9})
    threads = prepare(folder_config(root))
    monkeypatch.setattr(files, "_PROCESSES_FROM", 1)
    monkeypatch.setattr(files, "_JOB_FILES", 7)
    monkeypatch.setenv("AMP_SWEEP_CACHE", str(tmp_path / "other"))
    processes = prepare(folder_config(root))
    assert processes.digest == threads.digest
    np.testing.assert_array_equal(
        np.load(images_path(processes.folder, "train")),
        np.load(images_path(threads.folder, "train")),
    )
    (root / "test/a/broken.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"broken\.png: not an image"):
        prepare(folder_config(root))


def test_progress_counts_up_to_every_image(
    make_folder: MakeFolder, folder_config: MakeConfig, log: Callable[..., None]
) -> None:
    prepare(folder_config(make_folder()), log)
    assert log.calls[-1] == ("decoding test images", 4, 4)
    train = [
        done for what, done, total in log.calls if (what, total) == ("decoding train images", 7)
    ]
    assert train == sorted(train)
    assert train[-1] == 7


def test_val_serves_as_test_and_test_comes_first(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    root = make_folder({"train/a": 2, "train/b": 2, "val/a": 1})
    assert prepare(folder_config(root)).test_count == 1
    (root / "test").mkdir()  # without class folders
    assert prepare(folder_config(root)).test_count == 1
    (root / "test" / "b").mkdir()
    for name in ("x.png", "y.png"):
        Image.new("RGB", (10, 12)).save(root / "test" / "b" / name)
    assert prepare(folder_config(root)).test_count == 2


def test_labels_go_by_class_name_not_by_position(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    root = make_folder({"train/ant": 1, "train/bee": 1, "train/cow": 1, "test/cow": 2})
    prepared = prepare(folder_config(root))
    assert prepared.classes == ("ant", "bee", "cow")
    assert np.load(labels_path(prepared.folder, "test")).tolist() == [2, 2]


def test_a_test_class_that_train_lacks_is_refused_by_name(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    root = make_folder({"train/ant": 1, "train/bee": 1, "test/bee": 1, "test/emu": 1})
    with pytest.raises(
        DataError, match=r"test/emu: class 'emu' is not among the classes .*ant, bee"
    ):
        prepare(folder_config(root))


def test_extensions_are_torchvisions_in_any_case_and_hidden_files_do_not_count(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    from amp_sweep.data.folder import EXTENSIONS

    assert sorted(EXTENSIONS) == sorted(IMG_EXTENSIONS)
    root = make_folder()
    Image.new("RGB", (10, 12)).save(root / "train/cat/UPPER.JPG")
    (root / "train/cat/deeper").mkdir()
    Image.new("RGB", (10, 12)).save(root / "train/cat/deeper/one.png")
    (root / "train/cat/._resource.png").write_bytes(b"hidden")
    (root / "train/cat/notes.txt").write_text("no image")
    (root / "train/.ipynb_checkpoints").mkdir()
    (root / "train/loose.png").write_bytes(b"in no class")
    (root / "train/cat/loop").symlink_to(root / "train/cat")
    assert prepare(folder_config(root)).train_count == 7 + 2


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"test/a": 1}, "train does not exist; expected train/ and test/"),
        ({"train": 2, "test/a": 1}, "train has no class folders"),
        ({"train/a": 1}, "neither test/ nor val/"),
        ({"train/a": 1, "test": 2}, "test has no class folders"),
        ({"train/a": 1, "train/b": 0, "test/a": 1}, r"train/b: no images in it \(accepted: .jpg"),
        ({"train/a": 1, "test/a": 0}, "test/a: no images in it"),
    ],
)
def test_a_folder_that_is_laid_out_otherwise_is_refused(
    make_folder: MakeFolder, folder_config: MakeConfig, counts: dict[str, int], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        prepare(folder_config(make_folder(counts)))


def test_a_root_that_is_missing_or_no_folder_is_refused(
    tmp_path: Path, folder_config: MakeConfig
) -> None:
    with pytest.raises(DataError, match=r"needs data\.root=FOLDER"):
        prepare(DataConfig(name="imagefolder"))
    with pytest.raises(DataError, match=r"data\.root=.*nowhere does not exist"):
        prepare(folder_config(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file is no folder"):
        prepare(folder_config(tmp_path / "file"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="train does not exist"):
        prepare(folder_config(tmp_path / "empty"))


def test_a_root_that_may_not_be_entered_is_refused(
    tmp_path: Path, folder_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", denied)
    with pytest.raises(DataError, match=r"mine: Permission denied$"):
        prepare(folder_config(tmp_path / "mine"))


def test_a_broken_image_is_refused_by_name_and_leaves_no_cache(
    make_folder: MakeFolder, folder_config: MakeConfig, cache: Path
) -> None:
    root = make_folder()
    broken = root / "train/dog/001.png"
    broken.write_bytes(broken.read_bytes()[:100])
    for pipeline in ("resident", "loader"):
        with pytest.raises(DataError, match=r"train/dog/001\.png: "):
            prepare(folder_config(root, pipeline=pipeline))
    assert [path.name for path in (cache / "data").iterdir() if path.is_dir()] == []


def test_names_in_any_encoding_work(make_folder: MakeFolder, folder_config: MakeConfig) -> None:
    root = make_folder({"train/häuser": 1, "train/b c": 1, "test/häuser": 1})
    odd = os.fsdecode(b"\xff\xfe.png")  # no UTF-8
    Image.new("RGB", (10, 12)).save(root / "train/b c/x.png")
    (root / "train/b c/x.png").rename(root / "train/b c" / odd)
    for pipeline in ("resident", "loader"):
        prepared = prepare(folder_config(root, pipeline=pipeline))
        assert prepared.classes == ("b c", "häuser")
        assert prepared.train_count == 3


@pytest.mark.parametrize("varied", [False, True])
def test_unstored_files_have_the_digest_and_statistics_of_stored_ones(
    make_folder: MakeFolder, folder_config: MakeConfig, varied: bool
) -> None:
    root = make_folder()
    if varied:
        Image.new("RGB", (31, 57), (10, 200, 30)).save(root / "train/dog/other.jpg")
    stored = prepare(folder_config(root))
    for pipeline in ("loader", "pil"):
        unstored = prepare(folder_config(root, pipeline=pipeline))
        assert (unstored.stored, unstored.root) == (False, str(root))
        assert not images_path(unstored.folder, "train").exists()
        assert unstored.digest == stored.digest
        assert (unstored.mean, unstored.std) == (stored.mean, stored.std)


def test_a_subset_is_the_same_each_time_and_nested_in_a_larger_one(
    make_folder: MakeFolder, folder_config: MakeConfig, log: Callable[..., None]
) -> None:
    root = make_folder({"train/a": 40, "train/b": 40, "test/a": 20})
    few = prepare(folder_config(root, train_images=20, test_images=5), log)
    assert sum(total for _, done, total in log.calls if done == total) == 25
    assert (few.train_count, few.test_count) == (20, 5)
    labels = np.load(labels_path(few.folder, "train"))
    assert 4 < labels.sum() < 16  # both classes, about alike
    more = prepare(folder_config(root, train_images=50))
    images = {image.tobytes() for image in np.load(images_path(more.folder, "train"))}
    assert {image.tobytes() for image in np.load(images_path(few.folder, "train"))} <= images
    every = prepare(folder_config(root, train_images=80, test_images=20))
    assert every.digest == prepare(folder_config(root)).digest


def test_a_subset_larger_than_the_data_is_refused(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    with pytest.raises(DataError, match=r"data\.train_images=8: data=imagefolder has 7 train"):
        prepare(folder_config(make_folder(), train_images=8))


def test_an_image_whose_file_is_broken_is_not_decoded_outside_the_subset(
    make_folder: MakeFolder, folder_config: MakeConfig
) -> None:
    root = make_folder({"train/a": 10, "test/a": 2})
    config = folder_config(root, train_images=3)
    chosen = np.load(images_path(prepare(config).folder, "train"))
    whole = {path: np.asarray(Image.open(path)) for path in sorted(root.glob("train/a/*.png"))}
    outside = [path for path, image in whole.items() if not (chosen == image).all((1, 2, 3)).any()]
    assert len(outside) == 7
    outside[0].write_bytes(b"broken")
    assert prepare(config).train_count == 3
