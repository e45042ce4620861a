"""The data sets with a name: digits, synthetic, CIFAR-10."""

import hashlib
import http.server
import io
import json
import pickle
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from amp_sweep.config import DataConfig
from amp_sweep.data import DataError, epoch_order, eval_batches, open_split, prepare, rank_batches
from amp_sweep.data.prepared import PARTS, Prepared, images_path, labels_path


def pixels(prepared: Prepared, part: Any) -> np.ndarray:
    return np.load(images_path(prepared.folder, part))


def labels(prepared: Prepared, part: Any) -> np.ndarray:
    return np.load(labels_path(prepared.folder, part))


# ---------------------------------------------------------------------- digits


def test_digits_are_scikit_learns_split_once_and_for_all() -> None:
    from sklearn.datasets import load_digits

    prepared = prepare(DataConfig(name="digits"))
    assert (prepared.train_count, prepared.test_count) == (1437, 360)
    assert (prepared.height, prepared.width, prepared.channels) == (8, 8, 1)
    assert prepared.classes == tuple("0123456789")
    loaded = load_digits()
    expected = sorted(
        (np.rint(image * 255 / 16).astype(np.uint8).tobytes(), int(label))
        for image, label in zip(loaded.images, loaded.target, strict=True)
    )
    found = sorted(
        (image.tobytes(), int(label))
        for part in PARTS
        for image, label in zip(pixels(prepared, part), labels(prepared, part), strict=True)
    )
    assert found == expected
    # Stratified: each class has its share in the test set, within one image.
    shares = np.bincount(labels(prepared, "test")) - 360 * np.bincount(loaded.target) / 1797
    assert np.abs(shares).max() <= 1
    assert pixels(prepared, "train").max() == 255


def test_a_subset_of_the_digits_is_part_of_them() -> None:
    few = prepare(DataConfig(name="digits", train_images=300, test_images=50))
    assert (few.train_count, few.test_count) == (300, 50)
    assert np.bincount(labels(few, "train")).min() >= 15
    every = {image.tobytes() for image in pixels(prepare(DataConfig(name="digits")), "train")}
    assert {image.tobytes() for image in pixels(few, "train")} <= every
    with pytest.raises(DataError, match=r"data\.test_images=361: data=digits has 360 test images"):
        prepare(DataConfig(name="digits", test_images=361))


def test_the_digest_is_that_of_classes_labels_and_pixels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepared = prepare(DataConfig(name="digits"))
    total = hashlib.sha256(json.dumps([[8, 8, 1], list("0123456789")]).encode())
    for part in PARTS:
        total.update(len(labels(prepared, part)).to_bytes(8, "little"))
        total.update(labels(prepared, part).astype("<i8").tobytes())
        for image in pixels(prepared, part):
            total.update(hashlib.sha256(image.tobytes()).digest())
    assert prepared.digest == total.hexdigest()
    monkeypatch.setenv("AMP_SWEEP_CACHE", str(tmp_path / "another"))
    assert prepare(DataConfig(name="digits")).digest == prepared.digest


# ------------------------------------------------------------------- synthetic


def test_synthetic_images_are_the_same_each_time_and_have_the_size_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = DataConfig(
        name="synthetic", train_images=30, test_images=20, classes=3, source_size=17
    )
    first = prepare(config)
    assert (first.train_count, first.test_count, first.classes) == (
        30,
        20,
        ("class0", "class1", "class2"),
    )
    assert pixels(first, "test").shape == (20, 17, 17, 3)
    assert np.bincount(labels(first, "train")).tolist() == [10, 10, 10]
    monkeypatch.setenv("AMP_SWEEP_CACHE", str(tmp_path / "another"))
    assert prepare(config).digest == first.digest


def test_a_smaller_synthetic_set_is_the_start_of_a_larger_one() -> None:
    few = prepare(DataConfig(name="synthetic", train_images=700, test_images=5))
    many = prepare(DataConfig(name="synthetic", train_images=1500, test_images=5))
    np.testing.assert_array_equal(pixels(few, "train"), pixels(many, "train")[:700])
    assert not (pixels(few, "train")[:5] == pixels(few, "test")).all((1, 2, 3)).any()


def test_synthetic_defaults_are_2048_and_512_images_of_10_classes_and_32_pixels() -> None:
    prepared = prepare(DataConfig(name="synthetic"))
    assert (prepared.train_count, prepared.test_count, len(prepared.classes)) == (2048, 512, 10)
    assert (prepared.height, prepared.width, prepared.channels) == (32, 32, 3)


@pytest.mark.parametrize("key", ["train_images", "test_images", "classes", "source_size"])
def test_synthetic_sizes_of_nothing_are_refused(key: str) -> None:
    with pytest.raises(DataError, match=rf"data\.{key}=0: must be at least"):
        prepare(DataConfig(name="synthetic", **{key: 0}))


def test_a_small_network_learns_the_synthetic_images_quickly_but_not_at_once() -> None:
    config = DataConfig(name="synthetic", image_size=32)
    prepared = prepare(config)
    device = torch.device("cpu")
    train = open_split(prepared, "train", config, device)
    test = open_split(prepared, "test", config, device)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, 2, 1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 3, 2, 1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(32, 64, 3, 2, 1),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(1024, 10),
        )
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3)
    accuracies = []
    for epoch in range(5):
        order = epoch_order(train.count, 0, epoch, True)
        for raw in train.batches(rank_batches(order, 64, 0, 1)):
            images, targets = train.to_input(raw)
            loss = torch.nn.functional.cross_entropy(network(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = 0
        with torch.no_grad():
            for raw in test.batches(eval_batches(test.count, 64, 0, 1)):
                images, targets = test.to_input(raw)
                right += int((network(images).argmax(1) == targets).sum())
        accuracies.append(right / test.count)
    assert accuracies[0] < 0.9 < accuracies[-1]


# --------------------------------------------------------------------- CIFAR-10

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


class Archive:
    """A small archive in CIFAR-10's format, and what is in it."""

    def __init__(self, folder: Path) -> None:
        random = np.random.default_rng(0)
        self.images: dict[str, np.ndarray] = {}
        self.labels: dict[str, list[int]] = {}
        self.md5: dict[str, str] = {}
        self.path = folder / "cifar-10-python.tar.gz"
        batches = {f"data_batch_{index}": 6 for index in range(1, 6)} | {"test_batch": 10}
        with tarfile.open(self.path, "w:gz") as archive:
            for name, count in batches.items():
                data = random.integers(0, 256, (count, 3072), dtype=np.uint8)
                self.images[name] = data.reshape(count, 3, 32, 32).transpose(0, 2, 3, 1)
                self.labels[name] = random.integers(0, 10, count).tolist()
                self._add(archive, name, {"data": data, "labels": self.labels[name]})
            self._add(archive, "batches.meta", {"label_names": NAMES})
        self.archive_md5 = hashlib.md5(self.path.read_bytes()).hexdigest()

    def _add(self, archive: tarfile.TarFile, name: str, values: dict[str, Any]) -> None:
        content = pickle.dumps(values)
        self.md5[name] = hashlib.md5(content).hexdigest()
        entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """torchvision expects this archive in place of the real one; there is no network."""
    from torchvision.datasets import CIFAR10

    (tmp_path / "served").mkdir()
    made = Archive(tmp_path / "served")
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    monkeypatch.setattr(CIFAR10, "tgz_md5", made.archive_md5)
    for attribute in ("train_list", "test_list"):
        listed = [[name, made.md5[name]] for name, _ in getattr(CIFAR10, attribute)]
        monkeypatch.setattr(CIFAR10, attribute, listed)
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": made.md5["batches.meta"]})
    return made


@pytest.fixture
def server(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serves the archive; the paths that were downloaded."""
    from torchvision.datasets import CIFAR10

    downloads: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(archive.path.parent))

        def do_GET(self) -> None:
            downloads.append(self.path)
            super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *asked: Any) -> None:
            # torchvision looks for a redirection first, and may hang up before it has read all.
            if not isinstance(sys.exc_info()[1], ConnectionError):
                super().handle_error(*asked)

    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        address = f"http://127.0.0.1:{running.server_port}/cifar-10-python.tar.gz"
        monkeypatch.setattr(CIFAR10, "url", address)
        yield downloads
        running.shutdown()
        thread.join()


def check_content(prepared: Prepared, archive: Archive) -> None:
    batches = [f"data_batch_{index}" for index in range(1, 6)]
    expected = np.concatenate([archive.images[name] for name in batches])
    np.testing.assert_array_equal(pixels(prepared, "train"), expected)
    np.testing.assert_array_equal(pixels(prepared, "test"), archive.images["test_batch"])
    assert labels(prepared, "train").tolist() == [
        label for name in batches for label in archive.labels[name]
    ]
    assert labels(prepared, "test").tolist() == archive.labels["test_batch"]
    assert prepared.classes == tuple(NAMES)


def test_cifar10_is_downloaded_once_for_all_subsets(
    archive: Archive,
    server: list[str],
    cache: Path,
    log: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    prepared = prepare(DataConfig(name="cifar10"), log)
    requests = len(server)  # torchvision makes two: it looks for a redirection first
    check_content(prepared, archive)
    assert (cache / "cifar10/cifar-10-batches-py/test_batch").exists()
    few = prepare(DataConfig(name="cifar10", train_images=12))
    assert (few.train_count, few.test_count) == (12, 10)
    assert prepare(DataConfig(name="cifar10")) == prepared
    assert 1 <= requests == len(server)
    assert log.calls[0][0].startswith("downloading CIFAR-10")
    assert capfd.readouterr() == ("", "")  # the terminal is the sweep's


def test_processes_that_ask_for_cifar10_together_download_once(
    archive: Archive, server: list[str], tmp_path: Path
) -> None:
    prepare(DataConfig(name="cifar10", root=str(tmp_path / "alone"), train_images=4))
    alone = len(server)
    configs = [DataConfig(name="cifar10", train_images=count) for count in (5, 6, 7, 8)]
    threads = [threading.Thread(target=prepare, args=(config,)) for config in configs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [prepare(config).train_count for config in configs] == [5, 6, 7, 8]
    assert len(server) == 2 * alone


def test_an_archive_put_there_by_hand_needs_no_network(archive: Archive, tmp_path: Path) -> None:
    root = tmp_path / "by hand"
    root.mkdir()
    (root / archive.path.name).write_bytes(archive.path.read_bytes())
    check_content(prepare(DataConfig(name="cifar10", root=str(root))), archive)


def test_without_a_network_the_message_says_what_to_do_instead(
    archive: Archive, tmp_path: Path
) -> None:
    root = tmp_path / "none"
    with pytest.raises(DataError) as caught:
        prepare(DataConfig(name="cifar10", root=str(root)))
    message = str(caught.value)
    assert "Connection refused" in message
    assert str(root / "cifar-10-python.tar.gz") in message
    assert "data=imagefolder data.root=FOLDER" in message
    assert "data=digits" in message


def test_a_download_that_is_not_the_archive_is_refused(
    archive: Archive, server: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.datasets import CIFAR10

    monkeypatch.setattr(CIFAR10, "tgz_md5", "0" * 32)
    with pytest.raises(
        DataError, match=r"cannot be downloaded there \(File not found or corrupted"
    ):
        prepare(DataConfig(name="cifar10"))


def test_a_server_without_the_archive_is_reported(archive: Archive, server: list[str]) -> None:
    archive.path.unlink()
    with pytest.raises(DataError, match="HTTP Error 404"):
        prepare(DataConfig(name="cifar10"))
