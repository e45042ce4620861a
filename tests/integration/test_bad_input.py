"""Bad input gives one clear message and exit code 1, before anything is trained."""

from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import CommandLine

LONG = "a" * 300

# Overrides, and what the message must say: the key or value, the reason, what is allowed.
REFUSED = [
    (["precision=fp33"], ["precision/fp33", "autocast", "scaler"]),
    (["parallel=dpp"], ["parallel/dpp", "ddp"]),
    (["-m", "parallel=none,dpp"], ["parallel/dpp", "ddp"]),
    (["parallel=null"], ["parallel=null", "none, dp, ddp"]),
    (["-m", "parallel=none,null"], ["null is no choice", "none, dp, ddp"]),
    (["~parallel"], ["parallel=null", "none, dp, ddp"]),
    (["optimizer.lrr=1"], ["optimizer has no key 'lrr'", "did you mean lr?"]),
    (["epoch=1"], ["no key 'epoch'", "did you mean epochs?"]),
    (["epochs=abc"], ["epochs", "abc", "Integer"]),
    (["epochs=0"], ["epochs=0", "at least 1"]),
    (["parallel.devices=two"], ["parallel.devices=two", "a number or auto"]),
    (["precision.scaler=true"], ["precision.scaler=true", "needs precision.autocast"]),
    (
        ["parallel=ddp", "data.batch_size=65"],
        ["data.batch_size=65", "divide by 2", "multiple of 2"],
    ),
    (["-m", "parallel=none,ddp", "parallel.devices=3"], ["does not divide by 3"]),
    (["data.batch_size=5000"], ["5000", "1437 training images"]),
    (["data.image_size=32"], ["data.image_size=32", "at least 63"]),
    (["data=imagefolder"], ["data.root"]),
    (["data=imagefolder", "data.root=missing"], ["missing", "does not exist"]),
    (["data=imagefolder", "data.root=empty"], ["no class folders"]),
    (["data=imagefolder", "data.root=flat"], ["no class folders"]),
    (["data=imagefolder", "data.root=alien"], ["dog", "train"]),
    (["data=imagefolder", "data.root=broken", "data.batch_size=2"], ["broken/train/cat/b.png"]),
    (["data=cifar10"], ["CIFAR-10", "data=imagefolder"]),
    (["data.name=nothing"], ["data.name=nothing", "digits"]),
    (["data.name=no_module:thing"], ["no_module"]),
    (["model.name=alexnett"], ["alexnett", "package.module:callable"]),
    (["model.name=no_module:thing"], ["no_module"]),
    (["model.name=resnet18", "model.width=0.5"], ["model.width", "AlexNet"]),
    (["model.outputs=3"], ["model.outputs=3", "10 classes"]),
    (["outputs=file"], ["cannot write", "file"]),
    ([f"outputs={LONG}"], ["cannot write", "name too long"]),
    ([f"outputs={LONG}", "plan=true"], ["cannot write", "name too long"]),
    (["outputs=dangling"], ["cannot write", "dangling is a link to what does not exist"]),
    (["hydra/launcher=slurm"], ["hydra/launcher=slurm", "add -m"]),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folders")
    for part in ("train", "test"):
        (root / "empty" / part).mkdir(parents=True)
        (root / "flat" / part).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(root / "flat" / part / "a.png")
        for name in ("alien", "broken"):
            (root / name / part / "cat").mkdir(parents=True)
            for image in ("a", "b"):
                Image.new("RGB", (8, 8)).save(root / name / part / "cat" / f"{image}.png")
    (root / "alien" / "test" / "dog").mkdir()
    Image.new("RGB", (8, 8)).save(root / "alien" / "test" / "dog" / "a.png")
    (root / "broken" / "train" / "cat" / "b.png").write_bytes(b"\x89PNG\r\n\x1a\nnot an image")
    (root / "file").write_text("")
    (root / "dangling").symlink_to("nowhere")
    return root


@pytest.mark.parametrize(("overrides", "said"), REFUSED, ids=lambda v: " ".join(v)[:60])
def test_bad_input_is_refused_in_words(
    overrides: list[str], said: list[str], folders: Path, command: CommandLine
) -> None:
    elsewhere = CommandLine(
        command.folder, {**command.environment, "https_proxy": "http://127.0.0.1:9"}
    )
    for path in folders.iterdir():
        (command.folder / path.name).symlink_to(path)
    run = elsewhere.train(*overrides)
    assert run.code == 1, run.text
    assert "Traceback" not in run.text
    for words in said:
        assert words in run.text, run.text
    assert len(run.text.strip().splitlines()) <= 14
    assert not list(command.folder.rglob("record.json"))


def test_devices_that_are_not_there_make_the_cell_invalid(command: CommandLine) -> None:
    run = command.train("device=cuda", "parallel=ddp", "parallel.devices=2")
    assert run.code == 1
    assert "no CUDA device is visible here" in run.text
    assert "Traceback" not in run.text
    (found,) = command.records().values()
    assert found.status == "invalid"
    assert found.error is not None and "CUDA" in found.error["message"]


def test_what_cannot_be_honoured_here_is_invalid_and_the_other_cells_run(
    command: CommandLine,
) -> None:
    small = ("model.width=0.1", "data.train_images=64", "epochs=1")
    run = command.train("-m", "precision=fp32,tf32", *small)
    assert run.code == 1
    records = command.records()
    assert records["none-fp32-s0"].status == "completed"
    assert records["none-tf32-s0"].status == "invalid"
    assert "INVALID" in run.out


def test_usage_errors_of_our_own_parsers_exit_with_2(command: CommandLine) -> None:
    for module in ("amp_sweep.evaluate", "amp_sweep.status", "analysis"):
        assert command(module, "--no-such-option").code == 2


def test_evaluate_and_status_say_what_is_no_run(command: CommandLine) -> None:
    (command.folder / "empty").mkdir()
    for module in ("amp_sweep.evaluate", "amp_sweep.status", "analysis"):
        for name in ("empty", "missing"):
            run = command(module, name)
            assert run.code == 1, module
            assert name in run.text and "Traceback" not in run.text
