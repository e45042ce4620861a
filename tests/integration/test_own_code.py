"""A person's own network, data and configuration folder."""

from pathlib import Path

import pytest

from amp_sweep import record
from tests.conftest import CommandLine

MODULE = """
import os
import signal

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


class Spare(Net):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.spare = nn.Linear(2, 2)


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


class Deadly(Stripes):
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


class Leaving(Stripes):
    def __getitem__(self, index):
        os._exit(3)
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
    assert "none x bf16, model.name=mine:Bad, seed 0: FAILED" in run.err
    assert "none x bf16, model.name=mine:Scaled, seed 0: trained" in run.out


def test_a_layer_that_gets_no_gradient_trains_under_ddp_where_it_is_asked_for(
    own: CommandLine,
) -> None:
    setting = "parallel.find_unused_parameters"
    spare = ("-m", "parallel=ddp", "model.name=mine:Spare", f"{setting}=false,true", *STRIPES)
    run = own.train(*spare, "measure.probes=false")
    assert run.code == 1, run.text
    paths = record.find(own.folder / "outputs" / "matrix")
    found = {r.config["parallel"]["find_unused_parameters"]: r for r in map(record.read, paths)}
    assert found[True].status == record.COMPLETED
    assert found[False].status == record.FAILED
    assert found[False].error is not None
    assert f"{setting}=true" in found[False].error["message"].splitlines()[0]
    assert f"ddp x fp32, {setting}=false, seed 0: FAILED" in run.err
    plan = own.train(*spare, "measure.probes=false", "plan=true").out.splitlines()
    words = [" ".join(line.split("  (")[0].split()) for line in plan[-2:]]
    assert words == [
        f"ddp x fp32, {setting}=false, seed 0 resume: failed before",
        f"ddp x fp32, {setting}=true, seed 0 skip: completed before",
    ]


def test_an_item_that_cannot_be_had_is_named_in_one_line(own: CommandLine) -> None:
    run = own.train(*STRIPES, "data.name=mine:Torn", "model.name=mine:Net")
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


def test_an_edited_network_is_not_resumed_and_not_compared_without_a_word(
    own: CommandLine,
) -> None:
    cell = ("model.name=mine:Net", *STRIPES, "epochs=2", "checkpoint.min_interval_s=0")
    file = own.folder / "mine.py"
    fails = "self.calls = getattr(self, 'calls', 0) + self.training; assert self.calls < 6"
    file.write_text(MODULE.replace("return self", f"{fails}\n        return self", 1))
    ranks = ("parallel=ddp", "parallel.devices=2")
    assert own.train(*cell, *ranks).code == 1
    assert list(own.folder.rglob("last.pt"))
    before = own.only_record()
    assert len(before.epochs) == 1

    file.write_text(MODULE.replace("Pool2d(8)", "Pool2d(4)").replace("192", "48"))
    again = own.train(*cell, *ranks)
    assert again.code == 0, again.text
    done = own.only_record()
    assert [segment["from_epoch"] for segment in done.segments] == [0, 0]
    why = "started over: the code of mine:Net and mine:Stripes has changed since the checkpoint"
    assert [note for note in done.notes if note.startswith(why)]
    assert why in next(own.folder.rglob("train.log")).read_text()
    assert before.effective["code_digest"] != done.effective["code_digest"]

    unchanged = own.train(*cell, *ranks)
    assert unchanged.code == 0 and "skipped" in unchanged.out
    # The whole phrase: a diagnosis may say that gradients are "exchanged".
    assert "has changed since" not in " ".join(unchanged.text.split())
    file.write_text(MODULE)
    both = own.train("-m", "parallel=none,ddp", *ranks[1:], *cell)
    assert both.code == 0, both.text
    changed = f"the code of mine:Net and mine:Stripes has changed since {own.run_dir('ddp').name}"
    said = " ".join(both.text.split())
    assert changed in said
    assert "runs of mine:Net on mine:Stripes had different code (code_digest)" in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Deadly", "was killed by SIGKILL, perhaps for want of memory"),
        ("Leaving", "ended with exit code 3; its own words stand above"),
    ],
)
def test_data_that_end_the_preparing_process_are_told_in_a_line(
    own: CommandLine, name: str, said: str
) -> None:
    run = own.train(f"data.name=mine:{name}", "data.image_size=16", "model.name=mine:Net")
    assert (run.code, run.text) == (1, f"error: the preparing process {said}\n")
    assert not (own.folder / "outputs").exists()
