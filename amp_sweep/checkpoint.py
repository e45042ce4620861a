"""Training state on disk: written whole, verified, and read without running foreign code."""

import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

FORMAT_VERSION = 1

# What torch's unpickler raises on bytes that no pickler wrote; not Exception: a lack of memory is
# no fault of the file.
_UNREADABLE = (
    *(OSError, RuntimeError, pickle.UnpicklingError, struct.error, EOFError, ValueError),
    *(LookupError, TypeError, AttributeError, AssertionError),
)


class CheckpointError(Exception):
    """A checkpoint that cannot be used, with its path and the reason in words."""


def unwrap(module: nn.Module) -> nn.Module:
    """The module without DataParallel or DistributedDataParallel around it."""
    while isinstance(module, DataParallel | DistributedDataParallel):
        module = module.module
    return module


def verify(path: Path) -> None:
    """Compare every part of the file with its stored checksum. Raises CheckpointError."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
            # No checksum covers these, and torch reads a part marked as a folder as random memory.
            marked = [part.filename for part in archive.infolist() if part.external_attr]
    # RuntimeError: a bit that says "encrypted"; ValueError: names that are no text, lengths.
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged or not a checkpoint ({error})") from error
    if damaged is not None:
        raise CheckpointError(f"{path}: damaged (checksum of {damaged})")
    if marked:
        raise CheckpointError(f"{path}: damaged (attributes of {marked[0]})")


def save(path: Path, state: dict[str, Any], previous: Path | None = None) -> None:
    """Write `state` to a temporary file, verify it, rename it to `path`.

    An older file at `path` becomes `previous` if that is given, and only once the new one is
    verified. Raises OSError or CheckpointError; what was there before then stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            try:
                torch.save({"format_version": FORMAT_VERSION, **state}, file)
            except RuntimeError as error:
                if isinstance(error.__context__, OSError):  # a full disk, hidden by torch's own
                    raise error.__context__ from None
                raise
            file.flush()
            os.fsync(file.fileno())
        verify(temporary)
        if previous is not None and path.exists():
            path.replace(previous)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path, fingerprint: str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read and verify what `save` wrote for the run `fingerprint`. Raises CheckpointError.

    Only tensors and plain values are read (`weights_only`): a crafted pickle is refused.
    """
    verify(path)
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path}: refused or unreadable ({reason})") from error
    if not isinstance(state, dict) or state.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(f"{path}: not a checkpoint of this program's format")
    if state.get("fingerprint") != fingerprint:
        raise CheckpointError(f"{path}: belongs to another configuration")
    return state


def load_newest(
    candidates: list[Path], fingerprint: str
) -> tuple[dict[str, Any] | None, list[str]]:
    """The first usable checkpoint of `candidates`, and what was wrong with those before it."""
    problems: list[str] = []
    for path in candidates:
        if not path.exists():
            continue
        try:
            return load(path, fingerprint), problems
        except CheckpointError as error:
            problems.append(str(error))
    return None, problems
