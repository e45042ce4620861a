"""What a run is asked to do: the schema, the resolved form, its identity. No torch here.

The frozen dataclasses below are the schema. Hydra composes into plain twins of
them (`register`), since frozen nodes break its composition; `resolve` turns the
composed config into the frozen form once, and every later stage reads only that.
"""

import dataclasses
import hashlib
import json
import re
import sys
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from amp_sweep import record


@dataclass(frozen=True)
class ModelConfig:
    """Which network: `alexnet`, a torchvision classifier, or `package.module:callable`."""

    name: str = MISSING
    width: float | None = None  # AlexNet only: multiplies every hidden channel; null is 1
    outputs: int | str = "auto"  # "auto" is the number of classes of the data
    dropout: float | None = None  # null leaves the network's own


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they reach the device."""

    name: str = MISSING  # digits, cifar10, imagefolder, synthetic, or package.module:callable
    # imagefolder: its folder; cifar10: where it is or goes (null: the cache); handed to one's own.
    root: str | None = None
    batch_size: int = 64  # images a step, of all devices: see batch_mode
    batch_mode: str = "global"  # or "per_device": batch_size on each
    eval_batch_size: int | None = None  # images of an evaluation batch; null is batch_size
    image_size: int = 64  # pixels, height and width that the network sees
    normalize: bool = True  # by mean and standard deviation of the training images
    pipeline: str = "resident"  # or loader, pil
    placement: str = "auto"  # resident only: device, host, or auto by what fits
    # Pipeline loader, imagefolder: who decodes JPEG files, host or device (CUDA). Their pixels
    # differ a little.
    decode: str = "host"
    shuffle: bool = True
    workers: int = 0  # loader processes per rank, for pipelines loader and pil
    train_images: int | None = None  # synthetic: how many; other data: the first N of a fixed order
    test_images: int | None = None
    classes: int | None = None  # synthetic only
    source_size: int | None = None  # synthetic only: pixels before resizing


@dataclass(frozen=True)
class ParallelConfig:
    """How many devices share a batch, and how."""

    name: str = MISSING  # none, dp, ddp
    devices: int | str = "auto"  # of dp and ddp; none has one
    backend: str = "auto"  # of ddp: nccl on CUDA, gloo on a CPU
    sync_batch_norm: bool = False  # of ddp on CUDA: batch norm over all devices
    find_unused_parameters: bool = False  # of ddp: some parameters get no gradient in a step


@dataclass(frozen=True)
class PrecisionConfig:
    """Number formats of the training step."""

    name: str = MISSING
    autocast: bool = False
    dtype: str = "auto"  # autocast's dtype: float16, bfloat16, or PyTorch's own choice per device
    scaler: bool = False
    init_scale: float = 65536.0  # of the scaler
    growth_interval: int = 2000  # steps without an overflow until the scale doubles
    tf32: bool = False  # convolutions and matrix products alike


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule."""

    name: str = MISSING  # adamw, sgd
    lr: float = MISSING
    weight_decay: float = 0.01
    beta1: float = 0.9  # adamw
    beta2: float = 0.999  # adamw
    eps: float = 1e-8  # adamw
    momentum: float = 0.9  # sgd
    nesterov: bool = False  # sgd
    clip_norm: float | None = None  # largest norm of all gradients; null clips nothing


@dataclass(frozen=True)
class SchedulerConfig:
    """The learning rate over epochs."""

    name: str = MISSING  # plateau, cosine, constant
    patience: int = 3  # plateau: epochs without improvement before the lr is lowered
    factor: float = 0.1  # plateau: by which it is multiplied
    min_lr: float = 0.0  # plateau, cosine
    metric: str = "epoch_mean"  # plateau: loss it watches; "last_batch" is the article's


@dataclass(frozen=True)
class MemoryConfig:
    """How tensors lie in memory, and how often they cross it. For `auto` see `speedups`."""

    format: str = "auto"  # channels_last, contiguous; auto is channels_last on CUDA
    compile: str = "off"  # torch.compile: off, default, max-autotune, auto
    cuda_graph: bool | str = False  # the whole step as one CUDA graph: true, false, auto
    # Strided convolutions of few channels on blocks of pixels: the same mathematics, other sums.
    # true, false, auto.
    space_to_depth: bool | str = False
    # Autocast's half-precision weights kept beside float32 masters instead of cast anew at every
    # step, and gradients left in half precision: the same mathematics on one device, other
    # rounding. true, false, auto.
    master_weights: bool | str = False
    # dp: threads of the replicas live on between steps, with what cuDNN knows. true, false, auto.
    keep_threads: bool | str = False


@dataclass(frozen=True)
class TrackConfig:
    """Where curves go."""

    name: str = MISSING  # tensorboard, none
    every_steps: int = 10  # the loss and the lr, here and in steps.csv


@dataclass(frozen=True)
class CheckpointConfig:
    """When training state is saved."""

    every_steps: int | None = None  # besides those at ends of epochs
    every_epoch: bool = False  # keep each epoch's weights
    min_interval_s: float = 60.0  # at least between those at ends of epochs


@dataclass(frozen=True)
class LaunchConfig:
    """How cells are started and supervised."""

    on_error: str = "continue"  # with the other cells; or "stop"
    stall_timeout_s: float = 600.0  # without a step or a sign of life: the cell is a timeout
    wait: bool = True  # SLURM: false submits and returns
    snapshot: bool = False  # SLURM: run the jobs from a copy of the code made at submission


@dataclass(frozen=True)
class GuardConfig:
    """When a run counts as diverged."""

    nonfinite_steps: int = 20  # non-finite losses in a row
    min_scale: float = 2.0**-14  # a gradient scale below this


@dataclass(frozen=True)
class MeasureConfig:
    """What is measured beside the training time."""

    step_times: bool = True
    energy: bool = True  # joules, clocks and other processes, where NVML tells
    probes: bool = True  # after training: memory, FLOPs, ceilings, underflow, diagnosis
    probes_s: float = 3.0  # on a CPU: what they may take, if that exceeds 5% of the training
    price_per_hour: float | None = None  # of one device, in any currency: gives a run's cost


@dataclass(frozen=True)
class RunConfig:
    """One cell, resolved."""

    name: str = "matrix"
    experiment: str = "none"
    outputs: str = "outputs"
    seed: int = 0
    epochs: int = 10
    device: str = "auto"  # auto (CUDA where there is one, else the CPU), cuda, mps, cpu
    force: bool = False  # train completed and diverged cells again
    plan: bool = False  # say what would run, and run nothing
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    track: TrackConfig = field(default_factory=TrackConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)


OWN_CALLABLE = re.compile(r"^[\w.]+:[\w.]+$")


def is_own_callable(name: str) -> bool:
    """Whether `name` has the form `package.module:callable`."""
    return bool(OWN_CALLABLE.match(name))


def find_own_code() -> None:
    """Let a person's own modules in the working directory be imported, as `python -m` does.

    Console scripts do not have it on the path; it comes last, so that it shadows nothing. Raises
    SystemExit where there is none any more.
    """
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        sys.exit("error: the working directory was deleted; change to one that exists")
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def conf_dir() -> Path:
    """Folder of the YAML groups: inside the package when installed, beside it in a checkout."""
    inside = Path(__file__).parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parents[1] / "conf"


def _plain(cls: type) -> type:
    """The unfrozen twin of a frozen dataclass, field by field."""
    hints = typing.get_type_hints(cls)
    fields: list[tuple[str, Any, Any]] = []
    for item in dataclasses.fields(cls):
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint):
            twin = _plain(typing.cast(type, hint))
            fields.append((item.name, twin, field(default_factory=twin)))
        else:
            # OmegaConf reads typing.Union and not yet the `X | Y` form.
            if isinstance(hint, types.UnionType):
                hint = Union[typing.get_args(hint)]  # noqa: UP007
            fields.append((item.name, hint, field(default=item.default)))
    return dataclasses.make_dataclass(cls.__name__, fields)


def register() -> None:
    """Make the schema and our resolver known to Hydra; harmless to call again."""
    ConfigStore.instance().store(name="schema", node=_plain(RunConfig), provider="amp_sweep")
    # The article loads its data differently for ddp: `${if_ddp:2,0}`.
    OmegaConf.register_new_resolver(
        "if_ddp",
        lambda then, otherwise, *, _root_: then if _root_.parallel.name == "ddp" else otherwise,
        replace=True,
    )


def _build(cls: Any, values: dict[str, Any]) -> Any:
    """A frozen `cls` from plain nested values. Raises ValueError on unknown or missing keys."""
    hints = typing.get_type_hints(cls)
    if not isinstance(values, dict):
        raise ValueError(f"{cls.__name__} must be a mapping, not {type(values).__name__}")
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} in {cls.__name__}")
    built = {
        key: _build(hints[key], value or {}) if dataclasses.is_dataclass(hints[key]) else value
        for key, value in values.items()
    }
    return cls(**built)


def resolve(composed: DictConfig) -> RunConfig:
    """The composed Hydra config as frozen plain data, normalised to what was meant.

    A group set to null (`parallel=null`) keeps MISSING names, which `legality.check` reports.
    """
    container = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    if not isinstance(container, dict):
        raise TypeError("a run's config must be a mapping")
    values = {str(key): value for key, value in container.items() if key != "hydra"}
    return normalise(_build(RunConfig, values))


def normalise(config: RunConfig) -> RunConfig:
    """One spelling for one meaning, so that equal runs get equal fingerprints."""
    data, model, parallel = config.data, config.model, config.parallel
    if data.root is not None:
        data = dataclasses.replace(data, root=str(Path(data.root).expanduser().absolute()))
    if model.name == "alexnet" and model.width is None:
        model = dataclasses.replace(model, width=1.0)
    elif model.name != "alexnet" and model.width is not None:
        model = dataclasses.replace(model, width=None)
    if parallel.name != "ddp":  # only ddp has a process group
        parallel = dataclasses.replace(
            parallel, backend="auto", sync_batch_norm=False, find_unused_parameters=False
        )
    if parallel.name == "none" and isinstance(parallel.devices, int):  # always one device
        parallel = dataclasses.replace(parallel, devices="auto")
    precision = config.precision
    if not precision.autocast and precision.dtype in ("float16", "bfloat16"):
        # Only autocast has a dtype to choose.
        precision = dataclasses.replace(precision, dtype="auto")
    return dataclasses.replace(
        config, data=data, model=model, parallel=parallel, precision=precision
    )


def to_dict(config: RunConfig) -> dict[str, Any]:
    """The config as nested plain values."""
    return dataclasses.asdict(config)


def from_dict(values: dict[str, Any]) -> RunConfig:
    """The inverse of `to_dict`. Raises ValueError on unknown keys."""
    built: RunConfig = _build(RunConfig, values)
    return built


def save(config: RunConfig, path: Path) -> None:
    """Write the resolved config as YAML."""
    path.write_text(yaml.safe_dump(to_dict(config), sort_keys=False), encoding="utf-8")


def load(path: Path) -> RunConfig:
    """Read what `save` wrote. Raises OSError, yaml.YAMLError or ValueError."""
    return from_dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def fingerprint(config: RunConfig) -> str:
    """SHA-256, in hex, of everything requested that changes the result."""
    values = record.identity(record.flatten(to_dict(config)))
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def cell_dir(config: RunConfig) -> str:
    """Name of the run directory: fixed, sanitised fields and the start of the fingerprint."""
    parts = [config.parallel.name, config.precision.name, f"s{config.seed}"]
    safe = [re.sub(r"[^A-Za-z0-9_]+", "_", part) for part in parts]
    return "-".join([*safe, fingerprint(config)[:8]])


def run_dir(config: RunConfig) -> Path:
    """Absolute path of the run directory."""
    return (Path(config.outputs) / config.name / cell_dir(config)).absolute()
