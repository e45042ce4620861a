"""What is refused before a sweep starts, what is invalid on one machine, and in which words."""

import dataclasses
import typing
from collections.abc import Callable
from typing import Any

import pytest
from omegaconf import MISSING

from amp_sweep import config, legality
from amp_sweep.config import RunConfig

Make = Callable[..., RunConfig]


def only_problem(cell: RunConfig, *overrides: str) -> str:
    problems = legality.check(cell, overrides)
    assert len(problems) == 1, problems
    assert "\n" not in problems[0]
    return problems[0]


def test_the_bare_matrix_is_legal(make: Make) -> None:
    for parallel in ("none", "dp", "ddp"):
        for autocast, scaler in ((False, False), (True, False), (True, True)):
            cell = make(
                parallel__name=parallel, precision__autocast=autocast, precision__scaler=scaler
            )
            assert legality.check(cell) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "gpu"}, ["device=gpu", "auto, cuda, mps, cpu"]),
        ({"data__batch_mode": "local"}, ["data.batch_mode=local", "global, per_device"]),
        ({"data__pipeline": "dali"}, ["data.pipeline=dali", "resident, loader, pil"]),
        ({"data__placement": "gpu"}, ["data.placement=gpu", "auto, device, host"]),
        ({"data__name": "mnist"}, ["data.name=mnist", "digits, cifar10, imagefolder, synthetic",
                                   "package.module:callable"]),
        ({"parallel__name": "fsdp"}, ["parallel.name=fsdp", "none, dp, ddp"]),
        ({"parallel__name": "ddp", "parallel__backend": "mpi"},
         ["parallel.backend=mpi", "auto, nccl, gloo"]),
        ({"parallel__name": "ddp", "parallel__devices": "two"},
         ["parallel.devices=two", "number", "auto"]),
        ({"parallel__name": "dp", "parallel__devices": 0}, ["parallel.devices=0", "at least 1"]),
        ({"precision__autocast": True, "precision__dtype": "fp16"},
         ["precision.dtype=fp16", "auto, float16, bfloat16"]),
        ({"precision__scaler": True}, ["precision.scaler", "precision.autocast", "float32"]),
        ({"precision__init_scale": 0.0}, ["precision.init_scale=0.0", "above 0"]),
        ({"precision__growth_interval": 0}, ["precision.growth_interval=0", "at least 1"]),
        ({"optimizer__name": "lion"}, ["optimizer.name=lion", "adamw, sgd"]),
        ({"optimizer__lr": 0.0}, ["optimizer.lr=0.0", "above 0"]),
        ({"optimizer__lr": float("nan")}, ["optimizer.lr=nan"]),
        ({"optimizer__beta2": 1.0}, ["optimizer.beta2=1.0", "below 1"]),
        ({"optimizer__clip_norm": 0.0}, ["optimizer.clip_norm=0.0", "above 0"]),
        ({"optimizer__nesterov": True, "optimizer__momentum": 0.0},
         ["optimizer.nesterov", "optimizer.momentum"]),
        ({"scheduler__name": "step"}, ["scheduler.name=step", "plateau, cosine, constant"]),
        ({"scheduler__metric": "accuracy"}, ["scheduler.metric=accuracy", "epoch_mean"]),
        ({"scheduler__factor": 1.0}, ["scheduler.factor=1.0", "below 1"]),
        ({"model__outputs": "many"}, ["model.outputs=many", "number", "auto"]),
        ({"model__dropout": 1.0}, ["model.dropout=1.0", "below 1"]),
        ({"model__width": 0.0}, ["model.width=0.0", "above 0"]),
        ({"memory__format": "nhwc"}, ["memory.format=nhwc", "auto, channels_last, contiguous"]),
        ({"track__name": "wandb"}, ["track.name=wandb", "tensorboard, none"]),
        ({"launch__on_error": "abort"}, ["launch.on_error=abort", "continue, stop"]),
        ({"epochs": 0}, ["epochs=0", "at least 1"]),
        ({"seed": -1}, ["seed=-1", "at least 0"]),
        ({"data__batch_size": 0}, ["data.batch_size=0", "at least 1"]),
        ({"data__name": "imagefolder"}, ["data=imagefolder", "data.root=", "train/", "test/"]),
        ({"data__classes": 5}, ["data.classes", "synthetic"]),
        ({"data__source_size": 8}, ["data.source_size", "synthetic"]),
        ({"data__workers": 2}, ["data.workers=2", "resident", "data.pipeline=loader"]),
        ({"data__pipeline": "loader", "data__placement": "host"},
         ["data.placement=host", "resident"]),
        ({"parallel__name": "ddp", "parallel__devices": 3},
         ["data.batch_size=64", "3", "ddp", "multiple of 3"]),
        ({"parallel__name": "dp", "parallel__devices": 5}, ["data.batch_size=64", "5", "dp"]),
        ({"parallel__name": "ddp", "device": "cpu", "data__batch_size": 63},
         ["data.batch_size=63", "2 devices"]),
        ({"parallel__name": "ddp", "parallel__backend": "nccl", "device": "cpu"},
         ["parallel.backend=nccl", "gloo"]),
        ({"parallel__name": "ddp", "device": "mps"}, ["parallel=ddp", "MPS"]),
        ({"name": ""}, ["name=''", "folder name"]),
        ({"name": "   "}, ["name='   '", "folder name"]),
        ({"name": ".."}, ["name='..'", "folder name"]),
        ({"name": "a/b"}, ["name='a/b'", "folder name"]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_request_that_cannot_be_meant_is_refused_in_words(
    make: Make, changes: dict[str, Any], words: list[str]
) -> None:
    problem = only_problem(make(**changes))
    for word in words:
        assert word in problem


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "cpu"},
        {"parallel__name": "ddp", "parallel__devices": 3, "data__batch_mode": "per_device"},
        {"parallel__name": "ddp", "parallel__devices": 3, "data__batch_size": 48},
        {"parallel__name": "ddp", "parallel__sync_batch_norm": True},
        {"parallel__name": "ddp", "parallel__backend": "gloo"},
        # A setting of ddp beside an axis of parallelisms is no reason to refuse the others.
        {"parallel__name": "dp", "parallel__backend": "nccl", "device": "cpu"},
        {"parallel__name": "none", "parallel__sync_batch_norm": True},
        {"parallel__name": "ddp", "parallel__find_unused_parameters": True},
        {"parallel__name": "dp", "parallel__find_unused_parameters": True},
        {"precision__autocast": True, "precision__dtype": "bfloat16"},
        {"data__name": "imagefolder", "data__root": "/images"},
        {"data__name": "synthetic", "data__classes": 5, "data__source_size": 8},
        {"data__name": "my.own:images", "model__name": "my.own:network"},
        {"data__pipeline": "loader", "data__workers": 2},
        {"optimizer__name": "sgd", "optimizer__nesterov": True},
        {"optimizer__clip_norm": 1.0},
        {"model__dropout": 0.0},
        {"model__outputs": 1000},
        {"checkpoint__min_interval_s": 0.0},
        {"name": "a b, c=d"},
    ],
    ids=lambda value: ",".join(value),
)
def test_a_request_that_can_be_meant_is_legal(make: Make, changes: dict[str, Any]) -> None:
    assert legality.check(make(**changes)) == []


@pytest.mark.parametrize("key", sorted(legality.CHOICES))
def test_a_wrong_word_is_answered_with_every_allowed_one(make: Make, key: str) -> None:
    # ddp, since none takes whatever is asked about devices as its one.
    changes = {"parallel__name": "ddp", key.replace(".", "__"): "zzz"}
    problems = legality.check(make(**changes))
    about = [problem for problem in problems if problem.startswith(f"{key}=zzz")]
    assert len(about) == 1
    for word in legality.CHOICES[key]:
        assert word in about[0]
    assert "did you mean" not in about[0]


@pytest.mark.parametrize(
    ("changes", "meant"),
    [
        ({"precision__autocast": True, "precision__dtype": "bfloat61"}, "bfloat16"),
        ({"optimizer__name": "adam"}, "adamw"),
        ({"scheduler__name": "plataeu"}, "plateau"),
        ({"track__name": "tensorbord"}, "tensorboard"),
        ({"memory__format": "channel_last"}, "channels_last"),
        ({"data__batch_mode": "per-device"}, "per_device"),
    ],
)
def test_a_misspelt_word_brings_the_one_that_was_meant(
    make: Make, changes: dict[str, Any], meant: str
) -> None:
    assert f"did you mean {meant}?" in only_problem(make(**changes))


def numbers_of_the_schema() -> list[str]:
    found = []
    for item in dataclasses.fields(RunConfig):
        hint = typing.get_type_hints(RunConfig)[item.name]
        inner = typing.get_type_hints(hint).items() if dataclasses.is_dataclass(hint) else []
        for name, kind in inner or [(item.name, hint)]:
            kinds = typing.get_args(kind) or (kind,)
            if int in kinds or float in kinds:
                found.append(f"{item.name}.{name}" if inner else name)
    return found


NUMBERS = numbers_of_the_schema()


def test_the_schema_has_many_numbers() -> None:
    assert {"seed", "optimizer.beta1", "parallel.devices", "launch.stall_timeout_s"} <= set(NUMBERS)


@pytest.mark.parametrize("key", NUMBERS)
def test_no_number_of_the_schema_may_be_negative(make: Make, key: str) -> None:
    # dp, since none has no device count; -3 divides nothing that is asked.
    cell = make(parallel__name="dp", **{key.replace(".", "__"): -3})
    assert any(problem.startswith(f"{key}=-3") for problem in legality.check(cell))


@pytest.mark.parametrize("key", ["optimizer.beta1", "optimizer.beta2"])
def test_a_beta_that_torch_refuses_is_refused_before_the_sweep(make: Make, key: str) -> None:
    import torch

    betas = {"optimizer.beta1": (-0.1, 0.9), "optimizer.beta2": (0.9, -0.1)}[key]
    with pytest.raises(ValueError, match="beta"):
        torch.optim.AdamW([torch.zeros(1)], betas=betas)
    assert key in only_problem(make(**{key.replace(".", "__"): -0.1}))


@pytest.mark.parametrize(
    "key", ["optimizer.lr", "optimizer.weight_decay", "model.width", "launch.stall_timeout_s"]
)
def test_an_infinite_number_is_refused(make: Make, key: str) -> None:
    assert key in only_problem(make(**{key.replace(".", "__"): float("inf")}))


def test_a_seed_that_torch_refuses_is_refused_before_the_sweep(make: Make) -> None:
    import torch

    generator = torch.Generator()
    with pytest.raises((RuntimeError, ValueError), match="verflow"):
        generator.manual_seed(2**64)
    assert "seed" in only_problem(make(seed=2**64))
    generator.manual_seed(2**63 - 1)
    assert legality.check(make(seed=2**63 - 1)) == []


@pytest.mark.parametrize(
    "section", ["model", "data", "parallel", "precision", "optimizer", "scheduler", "track"]
)
def test_a_group_without_a_choice_is_named(make: Make, section: str) -> None:
    problem = only_problem(make(**{f"{section}__name": MISSING}))
    assert problem.startswith(f"{section}=null")
    for word in legality.CHOICES.get(f"{section}.name", ()):
        assert word in problem


def test_a_missing_parallelism_brings_the_three_there_are(make: Make) -> None:
    problem = only_problem(make(parallel__name=MISSING))
    assert problem == "parallel=null is no choice: choose one of none, dp, ddp"


def test_a_width_for_another_network_is_refused_where_a_person_asked_for_it(make: Make) -> None:
    resnet = make(model__name="resnet18", model__width=0.5)
    assert legality.check(resnet) == []  # an experiment's leftover
    for override in ("model.width=0.5", "+model.width=0.5", "++model.width=0.5"):
        problem = only_problem(resnet, "seed=1", override)
        assert "model.width" in problem and "resnet18" in problem
    assert legality.check(make(model__width=0.5), ["model.width=0.5"]) == []


def test_everything_wrong_is_said_at_once(make: Make) -> None:
    problems = legality.check(make(epochs=0, device="gpu", optimizer__lr=-1.0, name=".."))
    assert len(problems) == 4
    for word in ("epochs=0", "device=gpu", "optimizer.lr=-1.0", "name='..'"):
        assert sum(word in problem for problem in problems) == 1


def here(cell: RunConfig, device_type: str, count: int = 1, native: bool | None = True) -> Any:
    return legality.impossible_here(
        cell, device_type=device_type, visible_devices=count, native_bf16=native
    )


AUTOCAST = {"precision__autocast": True}
FLOAT16 = {**AUTOCAST, "precision__dtype": "float16"}
BFLOAT16 = {**AUTOCAST, "precision__dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("changes", "device_type", "count", "native", "words"),
    [
        ({"device": "cuda"}, "cpu", 1, True, ["device=cuda", "no CUDA device"]),
        ({"device": "mps"}, "cpu", 1, True, ["device=mps", "no MPS device"]),
        (FLOAT16, "cpu", 1, True, ["float16", "CPU", "bfloat16"]),
        (FLOAT16, "cpu", 1, False, ["float16", "CPU"]),
        (BFLOAT16, "cuda", 1, False, ["bfloat16", "precision=scaler"]),
        ({"precision__tf32": True}, "cpu", 1, True, ["TF32", "NVIDIA"]),
        ({"precision__tf32": True}, "cuda", 1, False, ["TF32", "precision=fp32"]),
        ({"precision__tf32": True}, "mps", 1, None, ["TF32", "NVIDIA"]),
        ({"parallel__name": "ddp", "parallel__devices": 4}, "cuda", 2, True,
         ["parallel.devices=4", "2 CUDA"]),
        ({"parallel__name": "dp", "parallel__devices": 2}, "cuda", 1, True,
         ["parallel.devices=2", "1 CUDA"]),
        ({"parallel__name": "dp", "parallel__devices": 2}, "cpu", 1, True,
         ["parallel.devices=2", "1 CPU"]),
        ({"parallel__name": "ddp", "parallel__backend": "nccl"}, "cpu", 1, True,
         ["parallel.backend=nccl", "CUDA"]),
        ({"parallel__name": "ddp", "parallel__sync_batch_norm": True}, "cpu", 1, True,
         ["sync_batch_norm"]),
    ],
)  # fmt: skip
def test_what_this_machine_cannot_do_is_said(
    make: Make,
    changes: dict[str, Any],
    device_type: str,
    count: int,
    native: bool | None,
    words: list[str],
) -> None:
    cell = make(**changes)
    assert legality.check(cell) == []  # legal elsewhere
    reason = here(cell, device_type, count, native)
    assert reason is not None
    for word in words:
        assert word in reason


@pytest.mark.parametrize(
    ("changes", "device_type", "count", "native"),
    [
        ({}, "cpu", 1, False),
        ({}, "cuda", 1, False),
        ({"device": "cuda"}, "cuda", 1, True),
        (AUTOCAST, "cpu", 1, False),  # slow without native bfloat16, and said before the start
        (AUTOCAST, "cpu", 1, None),
        (FLOAT16, "cuda", 1, False),
        (BFLOAT16, "cuda", 1, True),
        (BFLOAT16, "cuda", 1, None),
        (BFLOAT16, "cpu", 1, True),
        ({"precision__tf32": True}, "cuda", 1, True),
        ({"parallel__name": "ddp", "parallel__devices": 4}, "cpu", 1, True),  # processes
        ({"parallel__name": "ddp", "parallel__devices": 2}, "cuda", 2, True),
        ({"parallel__name": "dp"}, "cpu", 1, True),
        ({"parallel__name": "dp", "parallel__devices": 1}, "cpu", 1, True),
        ({"parallel__name": "ddp", "parallel__backend": "gloo"}, "cuda", 2, True),
        ({"parallel__name": "ddp", "parallel__sync_batch_norm": True}, "cuda", 2, True),
        ({"parallel__name": "ddp", "parallel__find_unused_parameters": True}, "cpu", 1, True),
        ({"parallel__devices": 8}, "cuda", 1, True),  # none: always one
    ],
)
def test_what_this_machine_can_do_is_not_refused(
    make: Make, changes: dict[str, Any], device_type: str, count: int, native: bool | None
) -> None:
    assert here(make(**changes), device_type, count, native) is None


def test_every_bound_names_a_number_of_the_schema(make: Make) -> None:
    flat = {
        f"{section}.{name}" if section else name
        for section, part in {"": config.to_dict(make()), **config.to_dict(make())}.items()
        if isinstance(part, dict)
        for name in part
    }
    tables = (legality.AT_LEAST, legality.ABOVE, legality.BELOW, legality.CHOICES)
    for table in tables:
        assert set(table) <= flat
