"""For notebooks: runs and their epochs as data frames.

import analysis

runs = analysis.load("outputs/NAME")
runs.groupby(["parallel", "precision"])["images_per_s"].mean().unstack().plot.bar()
"""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from amp_sweep import record
from analysis import frame
from analysis.values import FLOAT, INT, clean, column, kind_of

Folder = str | os.PathLike[str]

# What of a run stands in each row of its epochs.
RUN_COLUMNS = ("run_dir", "name", "status", "model", "data", "parallel", "precision", "seed")

EPOCH_COLUMNS = {
    "epoch": INT,
    "train_loss": FLOAT,
    "test_accuracy": FLOAT,
    "test_loss": FLOAT,
    "lr": FLOAT,
    "train_time_s": FLOAT,
    "images_per_s": FLOAT,
}


class RecordWarning(UserWarning):
    """A record, or a value in one, that could not be used and was passed over."""


def load(*dirs: Folder) -> pd.DataFrame:
    """The runs of sweep directories, or of single run directories: a row per run.

    The columns and their types are always the same: what a run is and was asked to do, its
    figures, what really ran, where, its error, and `config.*` with every setting as text.
    Text is `string`, whole numbers are `Int64`, others `Float64`, yes or no is `boolean`; null
    is `pd.NA`. Of a figure per device the column holds the largest, and `<name>_each` all as
    text. Swept axes that are no column yet and figures that this version does not know add
    columns of their own. Of several runs of the same settings on the same hardware the newest
    completed one stands. What is passed over is told by a RecordWarning each.
    """
    runs, problems = frame.load(*map(Path, dirs))
    _warn(problems)
    return runs


def load_epochs(*dirs: Folder) -> pd.DataFrame:
    """The epochs of the runs that `load` gives: a row per run and epoch, in order.

    `run_dir` names the run, as in `load`; beside it stand its name, status, model, data,
    parallel, precision and seed, then `epoch` (from 1) and its figures, then those that this
    version does not know. Runs without an epoch have no row.
    """
    runs, files, problems = frame.load_with_files(*map(Path, dirs))
    columns: dict[str, list[Any]] = {name: [] for name in EPOCH_COLUMNS}
    owners: list[int] = []
    for row, file in enumerate(files):
        try:
            epochs = record.read(file).epochs
        except record.RecordError as error:  # changed since it was loaded
            problems.append(clean(str(error)))
            continue
        for epoch in epochs:
            for name in epoch:
                if name not in columns:
                    columns[name] = [None] * len(owners)
            for name, values in columns.items():
                values.append(epoch.get(name))
            owners.append(row)
    data = {name: runs[name].array.take(np.array(owners, dtype=np.int64)) for name in RUN_COLUMNS}
    for name, values in columns.items():
        made = column(values, EPOCH_COLUMNS.get(name) or kind_of(values))
        problems += [
            clean(f"{files[owners[place]]}: epochs: {name}: {reason}; taken as null")
            for place, reason in made.misfits.items()
        ]
        data[f"epoch_{name}" if name in RUN_COLUMNS else name] = made.values
    _warn(problems)
    return pd.DataFrame(data)


def _warn(problems: list[str]) -> None:
    for problem in problems:
        warnings.warn(problem, RecordWarning, stacklevel=3)
