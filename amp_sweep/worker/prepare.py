"""What must hold before a rank starts: devices known, data ready, network and images fit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from amp_sweep import data, legality, models, parallel
from amp_sweep.config import DataConfig, ModelConfig, RunConfig, is_own_callable
from amp_sweep.hardware import detect, environment
from amp_sweep.messages import Expectation, Hardware, Plan, Preparation
from amp_sweep.worker.build import Invalid, outputs_of
from amp_sweep.worker.estimate import expectation

# Of a network before the data tell how many: what size of image it takes does not depend on it.
SOME_CLASSES = 2


def prepare(
    cells: Sequence[RunConfig],
    devices: Iterable[str],
    progress: Callable[[str, int, int], None],
    nodes: int = 1,
) -> Preparation:
    """Look at the devices, make the data ready once, and check that everything fits.

    `devices` are all requests to look at (`auto`, `cpu`, ...), those of `cells` among them.
    `progress(what, done, total)` is called during long work. No data are touched for a sweep that
    is known without them to be refused, nor for a cell that cannot run here. Runs in a process of
    its own.
    """
    result = Preparation(prepared=[None] * len(cells))
    for device in devices:
        result.hardware[device] = detect(device)
        result.environments[device] = environment(result.hardware[device])
    sized: dict[tuple[ModelConfig, int], bool] = {}
    for settings in cells:
        reason, plan = _plan(settings, result.hardware[settings.device], nodes, result.problems)
        result.invalid.append(reason)
        result.plans.append(plan)
        _check_batch(settings, plan, settings.data.train_images, result.problems)
        network = (settings.model, settings.data.image_size)
        if network not in sized:
            sized[network] = _check_network(settings, None, result.problems)
    opened: dict[DataConfig, data.Prepared | None] = {}
    if not result.problems:
        users: dict[DataConfig, list[tuple[RunConfig, Plan]]] = {}
        for settings, plan in zip(cells, result.plans, strict=True):
            if plan is not None:
                users.setdefault(settings.data, []).append((settings, plan))
        for config, those in users.items():
            opened[config] = _open(config, those, sized, progress, result.problems)
    for index, (settings, plan) in enumerate(zip(cells, result.plans, strict=True)):
        prepared = opened.get(settings.data)
        if plan is not None and prepared is not None:
            result.prepared[index] = str(prepared.folder)
    result.problems = list(dict.fromkeys(result.problems))
    if not result.problems:
        result.expectation = _expectation(cells, result, opened)
    return result


class _Unfit(Exception):
    """What the data hold does not fit the cells; why stands among the problems."""


def _open(
    config: DataConfig,
    users: Sequence[tuple[RunConfig, Plan]],
    sized: dict[tuple[ModelConfig, int], bool],
    progress: Callable[[str, int, int], None],
    problems: list[str],
) -> data.Prepared | None:
    """The data of these cells, ready; None with a problem more.

    What can be told of them before their images are decoded is told then.
    """
    fits: set[tuple[ModelConfig, int, int]] = set()

    def known(classes: int | None, train_images: int) -> None:
        before = len(problems)
        for settings, plan in users:
            _check_batch(settings, plan, train_images, problems)
            network = (settings.model, settings.data.image_size)
            if classes is None or (*network, classes) in fits:
                continue
            fits.add((*network, classes))
            _check_outputs(settings, classes, problems)
            if not sized[network]:
                _check_network(settings, classes, problems)
        if len(problems) > before:
            raise _Unfit

    try:
        prepared = data.prepare(config, progress, known)
        # It has not been asked where they were ready, nor knew all where only the labels tell.
        known(len(prepared.classes), prepared.train_count)
    except data.DataError as error:
        problems.append(str(error))
    except _Unfit:
        pass
    else:
        return prepared
    return None


def _expectation(
    cells: Sequence[RunConfig],
    result: Preparation,
    opened: dict[DataConfig, data.Prepared | None],
) -> Expectation | None:
    known = []
    for settings, plan in zip(cells, result.plans, strict=True):
        prepared, hardware = opened.get(settings.data), result.hardware[settings.device]
        if plan is None or prepared is None or hardware.device_type != "cpu":
            continue
        if hardware.native_bf16(1) is False:
            steps = settings.epochs * (prepared.train_count // plan.global_batch)
            known.append((settings, outputs_of(settings, len(prepared.classes)), steps))
    if not any(settings.precision.autocast for settings, _, _ in known):
        return None
    try:
        return expectation(known)
    except Exception:  # a person's own network may raise anything; training tells what
        if any(is_own_callable(settings.model.name) for settings, _, _ in known):
            return None
        raise


def _plan(
    settings: RunConfig, hardware: Hardware, nodes: int, problems: list[str]
) -> tuple[str | None, Plan | None]:
    shared, visible = settings.parallel, len(hardware.device_names)
    asked = shared.devices if isinstance(shared.devices, int) else visible * nodes
    reason = legality.impossible_here(
        settings,
        device_type=hardware.device_type,
        visible_devices=visible * nodes,
        native_bf16=hardware.native_bf16(1 if shared.name == "none" else -(-asked // nodes)),
    )
    if reason is not None:
        return reason, None
    if nodes > 1 and hardware.device_type != "cuda" and shared.devices == "auto":
        shared = replace(shared, devices=nodes)
    try:
        plan = parallel.make_plan(
            shared,
            settings.data.batch_size,
            settings.data.batch_mode,
            hardware.device_type,
            visible * nodes,
        )
        plan = parallel.on_nodes(plan, nodes)
    except parallel.PlanError as error:
        problems.append(str(error))
        return None, None
    return None, plan


def _check_batch(
    settings: RunConfig, plan: Plan | None, images: int | None, problems: list[str]
) -> None:
    batch = plan.global_batch if plan else settings.data.batch_size
    if images is not None and batch > images:
        problems.append(
            f"data.batch_size: a global batch of {batch} exceeds the {images} training images"
        )


def _check_outputs(settings: RunConfig, classes: int, problems: list[str]) -> None:
    try:
        outputs_of(settings, classes)
    except Invalid as error:
        problems.append(str(error))


def _check_network(settings: RunConfig, classes: int | None, problems: list[str]) -> bool:
    """Whether that was all: False where it could not be built without the number of `classes`."""
    outputs = settings.model.outputs
    if outputs == "auto":
        outputs = classes or SOME_CLASSES
    try:
        models.check_image_size(
            settings.model.name,
            settings.data.image_size,
            width=settings.model.width,
            outputs=int(outputs),
        )
    except models.NotBuilt as error:
        if classes is None and settings.model.outputs == "auto":
            return False
        problems.append(str(error))
    except models.ModelError as error:
        problems.append(str(error))
    return True
