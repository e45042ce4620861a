"""The accuracy of stored checkpoints: `python -m amp_sweep.evaluate DIR [DIR ...]`."""

from amp_sweep import ctrl_c, streams

if __name__ == "__main__":
    ctrl_c.ends_this_process()  # before the imports, which take long
    streams.open_missing()

import argparse
import contextlib
import dataclasses
import logging
import os
import sys
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from amp_sweep import (
    checkpoint,
    config,
    data,
    engine,
    forkserver,
    legality,
    memory,
    models,
    precision,
    record,
)
from amp_sweep.explain.lookup import printable
from amp_sweep.fast import space_to_depth
from amp_sweep.hardware import detect
from amp_sweep.paths import RunPaths
from amp_sweep.screen import Screen

log = logging.getLogger(__name__)


class EvaluationError(Exception):
    """A run that cannot be evaluated; the message is for a person."""


class NothingTrained(EvaluationError):
    """The run has no such weights, and is not completed either."""


@dataclass(frozen=True)
class Evaluation:
    """What a checkpoint answers on the run's test set."""

    accuracy: float
    correct: int
    images: int
    recorded: float | None  # the accuracy that the record has for these weights
    other_decoder: bool = False  # JPEG files decoded by the host, in training by the device


def _advice(paths: RunPaths, recorded: record.Record, which: str) -> str:
    """What a person can do about weights that are not there, as the end of a message."""
    ways = []
    if recorded.status in record.RESUMED_AGAIN:
        ways.append("the same training command goes on")
    if which == "final" and paths.best_weights.exists():
        ways.append("--which best for the best weights so far")
    return f": {'; '.join(ways)}" if ways else ""


def _misfits(section: Any, at: str) -> Iterator[str]:
    """Settings whose values have another type than the schema's, each in words."""
    for name, hint in typing.get_type_hints(type(section)).items():
        value, place = getattr(section, name), f"{at}.{name}"
        if dataclasses.is_dataclass(hint):
            yield from _misfits(value, place)
            continue
        allowed = set(typing.get_args(hint) or (hint,))
        if float in allowed:
            allowed.add(int)  # 1 is a float's value too, true is none
        if type(value) not in allowed:
            yield f"{place} has type {type(value).__name__}"


def _settings(recorded: record.Record, path: Path) -> config.RunConfig:
    """What the run was asked to do. Raises EvaluationError where the record cannot tell."""
    try:
        settings = config.from_dict(recorded.config)
    except (ValueError, TypeError) as error:
        raise EvaluationError(f"{path}: {error}") from error
    wrong = next(_misfits(settings, "config"), None)
    if wrong is not None:
        raise EvaluationError(f"{path}: {wrong}")
    return settings


def _threads(recorded: record.Record, path: Path) -> int:
    """The run's number of threads; this process's where the record has none."""
    threads = recorded.effective.get("threads")
    if threads is None:
        return torch.get_num_threads()
    if type(threads) is not int or not 0 < threads < 2**31:
        raise EvaluationError(f"{path}: effective.threads is {threads!r:.40}")
    return threads


def _accuracy(recorded: record.Record, epoch: int, path: Path) -> float | None:
    """What the record says of the weights of an epoch; None where it has no such epoch."""
    for row in recorded.epochs:
        if row.get("epoch") == epoch:
            value = row.get("test_accuracy")
            if isinstance(value, int | float):
                return float(value)
            raise EvaluationError(f"{path}: the test_accuracy of epoch {epoch} is {value!r:.40}")
    return None


def _runs(root: Path) -> list[Path]:
    """A run, or the runs of a sweep; none where it is a sweep's tables, which `NAME/*` names."""
    try:
        found = [path.parent for path in record.find(root)]
        tables = root.name == record.TABLES_NAME and bool(record.find(root.parent))
    except OSError:  # told when it is evaluated
        return [root]
    return found or ([] if tables else [root])


def evaluate_run(root: Path, which: str, screen: Screen) -> Evaluation:
    """Evaluate the `final` or `best` weights of a run, in the run's own precision and batches.

    Raises EvaluationError.
    """
    paths = RunPaths(root)
    if not os.path.isdir(root):  # noqa: PTH112 - never raises
        raise EvaluationError(f"{root}: no such directory")
    try:
        recorded = record.read(paths.record)
    except record.RecordError as error:
        raise EvaluationError(f"{root} is no run directory: {error}") from error
    settings = _settings(recorded, paths.record)
    try:
        return _evaluate(paths, recorded, settings, which, screen)
    except EvaluationError:
        raise
    except (Exception, SystemExit) as error:  # a person's own network may raise anything
        log.debug("%s", root, exc_info=True)  # it may be a fault of ours
        told = [f"{type(error).__name__}: {error}"]
        if isinstance(error, ValueError | TypeError | ArithmeticError | RuntimeError):
            # Of the right type, and yet nothing to train with: a negative size.
            told = legality.check(settings) or told
        reason = (told[0].splitlines() or [""])[0]
        raise EvaluationError(f"{root}: cannot be evaluated: {reason}") from error


def _evaluate(
    paths: RunPaths, recorded: record.Record, settings: config.RunConfig, which: str, screen: Screen
) -> Evaluation:
    weights = paths.final_weights if which == "final" else paths.best_weights
    if not weights.exists():
        missing = EvaluationError if recorded.status == record.COMPLETED else NothingTrained
        raise missing(
            f"{weights}: not there (the run is {recorded.status}){_advice(paths, recorded, which)}"
        )

    hardware = detect(settings.device)
    device = torch.device(hardware.device_type)
    # Sums of floats depend on the number of threads: take the run's.
    torch.set_num_threads(_threads(recorded, paths.record))
    precision.set_tf32(settings.precision.tf32)
    channels_last = memory.use_channels_last(settings.memory.format, device.type)
    try:
        prepared = data.prepare(settings.data, screen.preparing)
        state = checkpoint.load(weights, recorded.fingerprint, device)
        outputs = settings.model.outputs
        network = models.build(
            settings.model.name,
            len(prepared.classes) if outputs == "auto" else int(outputs),
            width=settings.model.width,
            dropout=settings.model.dropout,
        )
        network.load_state_dict(state["weights"])
        if recorded.effective.get("space_to_depth"):  # the same sums, to the last bit
            network = space_to_depth.convert(network)
    except (data.DataError, checkpoint.CheckpointError, models.ModelError) as error:
        raise EvaluationError(str(error)) from error
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except (RuntimeError, KeyError) as error:
        # PyTorch names the tensor in the second line.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()][:2]
        reason = " ".join(lines) or type(error).__name__
        raise EvaluationError(f"{weights}: does not fit the network ({reason})") from error
    network = network.to(device).to(memory_format=memory.memory_format(channels_last))
    dtype = precision.autocast_dtype(
        settings.precision.autocast, settings.precision.dtype, device.type
    )
    loss = precision.ClassifierLoss(network, device.type, dtype)
    other_decoder = settings.data.decode == "device" and device.type != "cuda"
    decode = "host" if other_decoder else settings.data.decode
    asked = dataclasses.replace(settings.data, decode=decode)
    split = data.open_split(prepared, "test", asked, device, channels_last)
    batch = asked.eval_batch_size or asked.batch_size
    batches = data.eval_batches(prepared.test_count, batch, 0, 1)
    known = _accuracy(recorded, int(state["epoch"]), paths.record)
    correct, images, _ = engine.evaluate(loss, split, batches, device).tolist()
    return Evaluation(correct / images, int(correct), int(images), known, other_decoder)


@ctrl_c.ends_the_command()
def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; 0 when every run was evaluated, or is still to be trained in its sweep."""
    parser = argparse.ArgumentParser(
        prog="amp-sweep-evaluate",
        description="Accuracy of a run's stored weights.",
        epilog="exit status: 0 every run was evaluated, or its sweep has yet to train it; 1 not, "
        "2 wrong usage",
    )
    parser.add_argument(
        "dirs", nargs="+", type=Path, metavar="DIR", help="run directories, or those of sweeps"
    )
    parser.add_argument(
        "--which",
        choices=("final", "best"),
        default="final",
        help="at the end of the training (the default), or of the epoch with the best accuracy",
    )
    options = parser.parse_args(arguments)
    config.find_own_code()
    with contextlib.suppress(OSError):  # few runs need one
        forkserver.make_room_for_sockets()  # of loader processes
    forkserver.track_quietly()  # Ctrl-C may kill them
    runs = list(dict.fromkeys(run for root in options.dirs for run in _runs(root)))
    screen = Screen(len(runs))
    code = 0
    if not runs:
        screen.fail(f"{printable(str(options.dirs[0]))} holds tables and no run")
        code = 1
    for root in runs:
        try:
            found = evaluate_run(root, options.which, screen)
        except EvaluationError as error:
            expected = isinstance(error, NothingTrained) and root not in options.dirs
            (screen.say if expected else screen.fail)(printable(str(error)))
            code = code if expected else 1
            continue
        line = f"{printable(str(root))}: accuracy {found.accuracy:.4f}"
        line += f" ({found.correct} of {found.images})"
        if found.recorded is None:
            line += ", none recorded"
        elif found.recorded == found.accuracy:
            line += ", as recorded"
        else:
            line += f", recorded {found.recorded:.4f}"
        if found.other_decoder:
            line += "; JPEG files decoded by the host, in training by a CUDA device"
        screen.say(line)
    return code


if __name__ == "__main__":
    sys.exit(main())
