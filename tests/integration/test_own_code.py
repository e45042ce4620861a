"""A person's own network, data and configuration folder."""

from pathlib import Path

import pytest

from amp_sweep import record
from tests.conftest import CommandLine

MODULE = """
import numpy as np
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        layers = [nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, num_classes)]
        self.body = nn.Sequential(*layers)

    def forward(self, images):
        return self.body(images)


class Bad(Net):
    def forward(self, images):
        return self.body(images) * (1 / 0)


class Scaled(Net):
    def forward(self, images):
        return self.body(images / max(1.0, images.abs().max().item()))


class Stripes:
    classes = ["across", "down"]

    def __init__(self, root, train):
        self.count = 64 if train else 20

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        label = index % 2
        image = np.zeros((16, 16, 3), dtype=np.uint8)
        if label:
            image[:, index % 8 :: 8] = 255
        else:
            image[index % 8 :: 8] = 255
        return image, label


class Torn(Stripes):
    def __getitem__(self, index):
        if index == 5:
            raise OSError("no such image")
        return super().__getitem__(index)
"""

STRIPES = ("data.name=mine:Stripes", "data.image_size=16", "data.batch_size=16", "epochs=1")


@pytest.fixture
def own(command: CommandLine) -> CommandLine:
    (command.folder / "mine.py").write_text(MODULE)
    return command


def test_an_own_network_and_own_data_train_in_every_way(own: CommandLine) -> None:
    run = own.train(
        "-m",
        "parallel=none,ddp",
        "precision=fp32,scaler",
        "model.name=mine:Net",
        "data.name=mine:Stripes",
        "data.image_size=16",
        "data.batch_size=16",
        "epochs=2",
    )
    assert run.code == 0, run.text
    records = own.records()
    assert len(records) == 4
    for found in records.values():
        assert found.effective["train_images"] == 64
        assert found.effective["outputs"] == 2
    evaluated = own("amp_sweep.evaluate", str(own.run_dir("ddp-scaler")))
    assert evaluated.out.strip().endswith("as recorded")


# With bf16: its expected duration on a CPU without it comes from steps before the start.
def test_an_own_network_that_fails_is_one_failed_cell_among_others(own: CommandLine) -> None:
    run = own.train("-m", "model.name=mine:Bad,mine:Scaled", "precision=bf16", *STRIPES)
    assert run.code == 1, run.text
    assert "Traceback" not in run.err
    paths = record.find(own.folder / "outputs" / "matrix")
    found = {r.cell["model"]: r for r in map(record.read, paths)}
    assert found["mine:Scaled"].status == record.COMPLETED
    bad = found["mine:Bad"]
    assert bad.status == record.FAILED
    assert bad.error is not None and bad.error["type"] == "ZeroDivisionError"
    assert "(1 / 0)" in bad.error["traceback"]


def test_an_item_that_cannot_be_had_is_named_in_one_line(own: CommandLine) -> None:
    run = own.train(*STRIPES, "data.name=mine:Torn")
    assert run.code == 1
    (line,) = run.err.splitlines()
    assert line.startswith("error: data.name=mine:Torn: train item 5: OSError: no such image (")
    assert line.endswith(f"mine.py, line {own_line('no such image')})")
    assert not (own.folder / "outputs").exists()


def own_line(words: str) -> int:
    (number,) = (i for i, text in enumerate(MODULE.splitlines(), 1) if words in text)
    return number


def test_an_own_configuration_folder_adds_choices(own: CommandLine) -> None:
    folder = own.folder / "my_conf" / "model"
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text("name: mine:Net\n")
    run = own.train("--config-dir", "my_conf", "model=tiny", "epochs=1")
    assert run.code == 0, run.text
    assert own.records()["none-fp32-s0"].cell["model"] == "mine:Net"


def test_any_torchvision_classifier_trains_by_name(command: CommandLine) -> None:
    run = command.train(
        "model.name=squeezenet1_1",
        "data=synthetic",
        "data.train_images=64",
        "data.test_images=32",
        "data.batch_size=16",
        "epochs=1",
    )
    assert run.code == 0, run.text


@pytest.mark.parametrize("pipeline", ["resident", "loader", "pil"])
def test_a_folder_of_images_trains_through_every_pipeline(
    command: CommandLine, pipeline: str
) -> None:
    from tests.integration.images import make_folder

    make_folder(command.folder / "images", train=24, test=9)
    run = command.train(
        "data=imagefolder",
        "data.root=images",
        "data.image_size=64",
        "data.batch_size=8",
        f"data.pipeline={pipeline}",
        "model.width=0.1",
        "epochs=2",
    )
    assert run.code == 0, run.text
    (found,) = command.records().values()
    assert found.effective["train_images"] == 24
    assert Path(found.config["data"]["root"]).is_absolute()
