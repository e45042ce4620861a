"""The accuracy of stored checkpoints: `python -m amp_sweep.evaluate RUN_DIR [RUN_DIR ...]`."""

from amp_sweep import ctrl_c

if __name__ == "__main__":
    ctrl_c.ends_this_process()  # before the imports, which take long

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from amp_sweep import checkpoint, config, data, engine, memory, models, precision, record
from amp_sweep.fast import space_to_depth
from amp_sweep.hardware import detect
from amp_sweep.paths import RunPaths
from amp_sweep.screen import Screen


class EvaluationError(Exception):
    """A run that cannot be evaluated; the message is for a person."""


@dataclass(frozen=True)
class Evaluation:
    """What a checkpoint answers on the run's test set."""

    accuracy: float
    correct: int
    images: int
    recorded: float | None  # the accuracy that the record has for these weights


def _advice(paths: RunPaths, recorded: record.Record, which: str) -> str:
    """What a person can do about weights that are not there, as the end of a message."""
    ways = []
    if recorded.status in record.RESUMED_AGAIN:
        ways.append("the same training command goes on")
    if which == "final" and paths.best_weights.exists():
        ways.append("--which best for the best weights so far")
    return f": {'; '.join(ways)}" if ways else ""


def evaluate_run(root: Path, which: str, screen: Screen) -> Evaluation:
    """Evaluate the `final` or `best` weights of a run, in the run's own precision and batches.

    Raises EvaluationError.
    """
    paths = RunPaths(root)
    if not root.is_dir():
        raise EvaluationError(f"{root}: no such directory")
    try:
        recorded = record.read(paths.record)
        settings = config.from_dict(recorded.config)
    except (record.RecordError, ValueError, TypeError) as error:
        raise EvaluationError(f"{root} is no run directory: {error}") from error
    weights = paths.final_weights if which == "final" else paths.best_weights
    if not weights.exists():
        raise EvaluationError(
            f"{weights}: not there (the run is {recorded.status}){_advice(paths, recorded, which)}"
        )

    hardware = detect(settings.device)
    device = torch.device(hardware.device_type)
    # Sums of floats depend on the number of threads: take the run's.
    torch.set_num_threads(int(recorded.effective.get("threads") or torch.get_num_threads()))
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
    except (RuntimeError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise EvaluationError(f"{weights}: does not fit the network ({reason})") from error
    network = network.to(device).to(memory_format=memory.memory_format(channels_last))
    dtype = precision.autocast_dtype(
        settings.precision.autocast, settings.precision.dtype, device.type
    )
    loss = precision.ClassifierLoss(network, device.type, dtype)
    split = data.open_split(prepared, "test", settings.data, device, channels_last)
    batch = settings.data.eval_batch_size or settings.data.batch_size
    batches = data.eval_batches(prepared.test_count, batch, 0, 1)
    correct, images, _ = engine.evaluate(loss, split, batches, device).tolist()
    epoch = int(state["epoch"])
    known = {row["epoch"]: row["test_accuracy"] for row in recorded.epochs}
    return Evaluation(correct / images, int(correct), int(images), known.get(epoch))


@ctrl_c.ends_the_command()
def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; 0 when every run was evaluated and agrees with its record."""
    parser = argparse.ArgumentParser(
        prog="amp-sweep-evaluate", description="Accuracy of a run's stored weights."
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--which", choices=("final", "best"), default="final", help="which weights (final)"
    )
    options = parser.parse_args(arguments)
    config.find_own_code()
    screen = Screen(len(options.runs))
    code = 0
    for root in options.runs:
        try:
            found = evaluate_run(root, options.which, screen)
        except EvaluationError as error:
            screen.fail(str(error))
            code = 1
            continue
        line = f"{root}: accuracy {found.accuracy:.4f} ({found.correct} of {found.images})"
        if found.recorded is None:
            line += ", none recorded"
        elif found.recorded == found.accuracy:
            line += ", as recorded"
        else:
            line += f", recorded {found.recorded:.4f}"
        screen.say(line)
    return code


if __name__ == "__main__":
    sys.exit(main())
