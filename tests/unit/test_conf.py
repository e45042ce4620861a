"""The YAML groups: what each says about itself, and what each composes to."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, MissingConfigException
from omegaconf import DictConfig

from amp_sweep import config, legality
from amp_sweep.config import RunConfig

CONF = Path(__file__).parents[2] / "conf"
FILES = sorted(CONF.rglob("*.yaml"))
CHOICES = [
    (path.parent.relative_to(CONF).as_posix(), path.stem) for path in FILES if path.parent != CONF
]
IMAGES = "data.root=/somewhere/images"


def named(path: Path) -> str:
    return path.relative_to(CONF).as_posix()


@pytest.fixture(scope="module", autouse=True)
def hydra_started() -> Iterator[None]:
    config.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def composed(*overrides: str, **options: Any) -> DictConfig:
    return compose("config", overrides=list(overrides), **options)


def settings(*overrides: str) -> RunConfig:
    return config.resolve(composed(*overrides))


def test_the_folder_that_the_program_uses_is_the_one_tested_here() -> None:
    assert config.conf_dir() == CONF
    assert len(FILES) > 30


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_file_begins_with_a_comment_that_says_what_it_is_for(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.parent.name == "experiment":
        assert lines[0] == "# @package _global_"
        lines = lines[1:]
    assert lines[0].startswith("# ") and "@package" not in lines[0]
    assert lines[0].endswith(".") and len(lines[0].split()) >= 4


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_file_holds_data_only(path: Path) -> None:
    def keys(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            for key, value in node.items():
                yield str(key)
                yield from keys(value)
        elif isinstance(node, list):
            for item in node:
                yield from keys(item)

    text = path.read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    assert "_target_" not in set(keys(content))
    assert "_target_" not in text
    assert isinstance(content, dict)


def test_all_groups_of_the_contract_are_there() -> None:
    groups = {group for group, _ in CHOICES}
    assert groups == {
        *("model", "data", "parallel", "precision", "optimizer", "scheduler", "memory", "track"),
        *("hydra/launcher", "experiment"),
    }


@pytest.mark.parametrize(("group", "choice"), [c for c in CHOICES if c[0] != "hydra/launcher"])
def test_every_choice_of_every_group_composes_and_is_legal(group: str, choice: str) -> None:
    overrides = [f"{group}={choice}", *([IMAGES] if choice.startswith("imagefolder") else [])]
    cell = settings(*overrides)
    assert legality.check(cell, overrides) == []
    # The words of the file itself arrive, resolved.
    content = yaml.safe_load((CONF / group / f"{choice}.yaml").read_text(encoding="utf-8"))
    there = cell if group == "experiment" else getattr(cell, group)
    for key, value in content.items():
        if key != "defaults" and not (isinstance(value, str) and "${" in value):
            expected = float(value) if isinstance(getattr(there, key), float) else value
            assert getattr(there, key) == expected, key


@pytest.mark.parametrize("group", ["parallel", "precision"])
def test_a_choice_carries_its_own_name(group: str) -> None:
    for choice in (choice for found, choice in CHOICES if found == group):
        name = getattr(settings(f"{group}={choice}"), group).name
        assert name == choice.removesuffix("_article"), choice


def test_the_bare_cell_is_the_one_that_runs_anywhere() -> None:
    cell = settings()
    assert (cell.name, cell.experiment, cell.seed, cell.epochs) == ("matrix", "none", 0, 10)
    assert (cell.model.name, cell.model.width, cell.model.outputs) == ("alexnet", 0.25, "auto")
    assert (cell.data.name, cell.data.image_size, cell.data.batch_size) == ("digits", 64, 64)
    assert cell.data.normalize and cell.data.shuffle and cell.data.pipeline == "resident"
    assert (cell.optimizer.name, cell.optimizer.lr) == ("adamw", 1e-3)
    assert (cell.scheduler.name, cell.track.name) == ("cosine", "tensorboard")
    assert (cell.parallel.name, cell.precision.name) == ("none", "fp32")


@pytest.mark.parametrize("experiment", ["none", "article_as_written"])
def test_all_nine_cells_of_an_experiment_are_legal_and_different(experiment: str) -> None:
    found = set()
    for parallel in ("none", "dp", "ddp"):
        for precision in ("fp32", "autocast", "scaler"):
            overrides = [
                f"experiment={experiment}",
                f"parallel={parallel}",
                f"precision={precision}",
            ]
            cell = settings(*overrides)
            assert legality.check(cell, overrides) == []
            assert (cell.precision.autocast, cell.precision.scaler) == {
                "fp32": (False, False),
                "autocast": (True, False),
                "scaler": (True, True),
            }[precision]
            assert not cell.precision.tf32
            found.add(config.cell_dir(cell))
    assert len(found) == 9


def article_settings(cell: RunConfig) -> dict[str, Any]:
    return {
        "model": (cell.model.name, cell.model.width, cell.model.outputs),
        "data": cell.data.name,
        "px": cell.data.image_size,
        "batch": (cell.data.batch_size, cell.data.batch_mode),
        "normalize": cell.data.normalize,
        "optimizer": (cell.optimizer.name, cell.optimizer.lr),
        "scheduler": (cell.scheduler.name, cell.scheduler.patience, cell.scheduler.factor),
        "epochs": cell.epochs,
    }


ARTICLE = {
    "model": ("alexnet", 1.0, 1000),
    "data": "cifar10",
    "px": 227,
    "batch": (64, "global"),
    "normalize": False,
    "optimizer": ("adamw", 1e-4),
    "scheduler": ("plateau", 3, 0.1),
    "epochs": 20,
}


def test_the_article_experiment_has_the_articles_settings_on_a_fast_input() -> None:
    cell = settings("experiment=article")
    assert article_settings(cell) == ARTICLE
    assert (cell.name, cell.experiment) == ("article", "article")
    assert (cell.data.pipeline, cell.data.shuffle, cell.data.workers) == ("resident", True, 0)
    assert cell.scheduler.metric == "epoch_mean"


@pytest.mark.parametrize(
    ("parallel", "shuffle", "workers"),
    [("none", False, 0), ("dp", False, 0), ("ddp", True, 2)],
)
def test_the_article_as_written_loads_as_it_does_for(
    parallel: str, shuffle: bool, workers: int
) -> None:
    cell = settings("experiment=article_as_written", f"parallel={parallel}")
    assert article_settings(cell) == ARTICLE
    assert (cell.name, cell.experiment) == ("article_as_written", "article_as_written")
    assert cell.data.pipeline == "pil"
    assert (cell.data.shuffle, cell.data.workers) == (shuffle, workers)
    assert cell.scheduler.metric == "last_batch"


@pytest.mark.parametrize("parallel", ["none", "dp", "ddp"])
def test_a_folder_of_images_can_take_the_articles_place(parallel: str) -> None:
    for experiment, data in (
        ("article", "imagefolder_article"),
        ("article_as_written", "imagefolder_as_written"),
    ):
        cell = settings(f"experiment={experiment}", f"data={data}", f"parallel={parallel}", IMAGES)
        same = settings(f"experiment={experiment}", f"parallel={parallel}")
        moved = dataclasses.replace(cell.data, name="cifar10", root=None)
        assert moved == same.data
        assert legality.check(cell) == []


@pytest.mark.parametrize("experiment", ["article", "article_as_written"])
def test_another_optimizer_does_not_inherit_the_articles_lr(experiment: str) -> None:
    alone = settings("optimizer=sgd").optimizer
    assert settings(f"experiment={experiment}", "optimizer=sgd").optimizer == alone
    assert alone.lr == 1e-2 and alone.momentum == 0.9


def test_other_groups_can_be_chosen_beside_an_experiment_in_any_order() -> None:
    before = settings("data=digits", "experiment=article")
    after = settings("experiment=article", "data=digits")
    assert before == after
    assert after.data.name == "digits" and after.model.outputs == 1000


def test_a_value_beside_an_experiment_wins() -> None:
    cell = settings("experiment=article", "epochs=3", "optimizer.lr=0.5", "name=mine")
    assert (cell.epochs, cell.optimizer.lr, cell.name) == (3, 0.5, "mine")


def test_hydra_itself_writes_nothing() -> None:
    hydra = composed(return_hydra_config=True).hydra
    assert hydra.output_subdir is None
    assert hydra.job.chdir is False
    assert set(hydra.job_logging.handlers) == {"console"}
    assert set(hydra.hydra_logging.handlers or {}) <= {"console"}
    assert hydra.run.dir == "."


def test_the_slurm_launcher_is_one_task_on_one_node() -> None:
    launcher = composed("hydra/launcher=slurm", return_hydra_config=True).hydra.launcher
    assert (launcher.nodes, launcher.tasks_per_node) == (1, 1)
    assert "partition" in launcher and "additional_parameters" in launcher


def test_the_sweep_is_ours() -> None:
    hydra = composed(return_hydra_config=True).hydra
    assert hydra.runtime.choices["hydra/sweeper"] == "amp_sweep"
    assert hydra.runtime.choices["hydra/launcher"] == "basic"


def test_an_unknown_choice_is_refused_with_the_choices() -> None:
    with pytest.raises(MissingConfigException) as caught:
        composed("precision=fp8")
    for choice in ("fp32", "autocast", "scaler", "bf16", "tf32"):
        assert choice in str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("precision.dtyp=float16", "dtyp"),
        ("epoch=3", "epoch"),
        ("data.batchsize=3", "batchsize"),
        ("epochs=many", "epochs"),
        ("data.normalize=perhaps", "normalize"),
        ("parallel.devices=2.5", "devices"),
        ("parallel.devices=true", "devices"),
        ("data.workers=null", "workers"),
        ("optimizer.lr=fast", "lr"),
    ],
)
def test_a_typo_or_a_wrong_type_fails_when_composed(override: str, words: str) -> None:
    with pytest.raises(ConfigCompositionException) as caught:
        composed(override)
    assert words in f"{caught.value} {caught.value.__cause__}"


def test_numbers_and_words_arrive_with_their_types() -> None:
    cell = settings("parallel=ddp", "parallel.devices=4", "optimizer.lr=1", "seed=3")
    assert cell.parallel.devices == 4 and isinstance(cell.parallel.devices, int)
    assert isinstance(cell.optimizer.lr, float) and cell.seed == 3
    assert settings("parallel=ddp").parallel.devices == "auto"


def test_a_group_left_out_is_named_with_its_choices() -> None:
    problems = legality.check(settings("~parallel"))
    assert len(problems) == 1
    for words in ("parallel", "none, dp, ddp"):
        assert words in problems[0]


def test_hydras_schema_has_the_fields_of_the_frozen_one() -> None:
    whole = composed()
    assert set(whole) == {item.name for item in dataclasses.fields(RunConfig)}
    for item in dataclasses.fields(RunConfig):
        if isinstance(item.type, type) and dataclasses.is_dataclass(item.type):
            names = {field.name for field in dataclasses.fields(item.type)}
            assert set(whole[item.name]) == names, item.name


def test_registering_twice_is_harmless() -> None:
    before = settings()
    config.register()
    assert settings() == before


def test_every_axis_of_the_matrix_parses_as_a_sweep() -> None:
    line = ["parallel=none,dp,ddp", "precision=fp32,autocast,scaler", "experiment=none,article"]
    parsed = OverridesParser.create().parse_overrides(line)
    assert all(item.is_sweep_override() for item in parsed)


@pytest.mark.parametrize("group", ["parallel", "experiment"])
def test_a_group_set_to_null_is_refused_before_hydra_ends_with_a_traceback(group: str) -> None:
    for value in ("null", "none,null"):
        problems = legality.check_arguments(["-m", f"{group}={value}"])
        assert len(problems) == 1
        assert group in problems[0] and "null" in problems[0]


def test_a_misspelt_key_is_refused_with_the_keys_there_are() -> None:
    (problem,) = legality.check_arguments(["-m", "optimizer.lrr=1e-3"])
    assert "did you mean lr?" in problem and "weight_decay" in problem
    (problem,) = legality.check_arguments(["epoch=3"])
    assert "did you mean epochs?" in problem


@pytest.mark.parametrize(
    "argument",
    [
        "-m",
        "--multirun",
        "--config-dir=/somewhere",
        "hydra/launcher=slurm",
        "hydra.launcher.partition=gpu",
        "+hydra.launcher.setup=[x]",
        "~parallel",
        "+experiment=article",
        "parallel=none,dp,ddp",
        "experiment=article",
        "seed=range(0,3)",
        "data.root=/a/b=c,d",
        "model.name=torchvision.models:resnet18",
        "name=a=b",
    ],
)
def test_a_legal_argument_is_left_to_hydra(argument: str) -> None:
    assert legality.check_arguments([argument]) == []
