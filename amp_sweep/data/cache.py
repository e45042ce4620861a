"""Data made ready once, kept in a folder, never stale. No torch at import."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amp_sweep.data.arrays import Source, store_arrays
from amp_sweep.data.files import store_files
from amp_sweep.data.folder import list_folder
from amp_sweep.data.locked import locked
from amp_sweep.data.own import own
from amp_sweep.data.prepared import (
    PARTS,
    DataError,
    Prepared,
    Progress,
    from_meta,
    images_path,
    labels_path,
    map_array,
    read_meta,
    sizes_agree,
)
from amp_sweep.data.sources import cifar10, digits
from amp_sweep.data.store import content_digest, image_hashes, writing
from amp_sweep.data.synthetic import synthetic

if TYPE_CHECKING:  # the schema brings Hydra, which decoding processes do without
    from amp_sweep.config import DataConfig

_OWN = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")
NAMES = ("digits", "cifar10", "imagefolder", "synthetic")

# Called as known(classes, train_images), classes None where only the labels tell.
Known = Callable[[int | None, int], None]


@dataclass(frozen=True)
class _Recipe:
    """How a data set is made, and what tells that a stored one is still right."""

    key: str
    made_from: dict[str, Any]
    build: Callable[[Path], Prepared]


def _silent(what: str, done: int, total: int) -> None:
    pass


def _anything_goes(classes: int | None, train_images: int) -> None:
    pass


def cache_dir() -> Path:
    """Where prepared data are kept: AMP_SWEEP_CACHE, or the user's own cache. Raises DataError."""
    chosen = os.environ.get("AMP_SWEEP_CACHE")
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        base = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG specification: a relative path is to be ignored.
        folder = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        raise DataError("there is no home directory here; set AMP_SWEEP_CACHE=FOLDER") from error
    return folder / "amp_sweep"


def prepare(
    config: "DataConfig", progress: Progress = _silent, known: Known = _anything_goes
) -> Prepared:
    """Make the data ready: download, decode and check what is not yet in the cache.

    For a process without CUDA. Several processes that ask for the same data do the work once.
    `progress(what, done, total)` tells how far it is. `known` is told what the data hold before
    their images are decoded, which is not done if it raises. Raises DataError.
    """
    data = cache_dir() / "data"
    if _OWN.fullmatch(config.name):
        return _prepare_own(config, data, progress, known)
    recipe = _recipe(config, progress, known)
    # Whoever finds it ready needs no lock, and no permission to write.
    found = _find(data, recipe, config.image_size)
    if found is None:
        with _lock(data, recipe.key, progress):
            found = _find(data, recipe, config.image_size)
            if found is None:
                found = _build(data, recipe)
    return found


def _recipe(config: "DataConfig", progress: Progress, known: Known) -> _Recipe:
    chosen = (config.train_images, config.test_images)
    request: dict[str, Any] = {"train_images": chosen[0], "test_images": chosen[1]}

    def from_arrays(made_from: dict[str, Any], source: Callable[[], Source]) -> _Recipe:
        return _Recipe(
            _key(config.name, request),
            made_from,
            lambda to: _store(to, made_from, source(), config, progress, known),
        )

    match config.name:
        case "digits":
            made_from = {"scikit-learn": version("scikit-learn")}
            return from_arrays(made_from, lambda: digits(*chosen))
        case "cifar10":
            root = Path(config.root).absolute() if config.root else cache_dir() / "cifar10"
            return from_arrays({}, lambda: cifar10(root, *chosen, progress))
        case "synthetic":
            source = synthetic(*chosen, config.classes, config.source_size)
            request |= {"classes": config.classes, "source_size": config.source_size}
            return from_arrays({"numpy": version("numpy")}, lambda: source)
        case "imagefolder":
            return _folder_recipe(config, request, progress, known)
    raise DataError(
        f"data.name={config.name}: allowed are {', '.join(NAMES)} or package.module:callable"
    )


def _store(
    folder: Path,
    made_from: dict[str, Any],
    source: Source,
    config: "DataConfig",
    progress: Progress,
    known: Known,
) -> Prepared:
    known(None if source.classes is None else len(source.classes), source.train.count)
    return store_arrays(folder, made_from, source, config.image_size, progress)


def _folder_recipe(
    config: "DataConfig", request: dict[str, Any], progress: Progress, known: Known
) -> _Recipe:
    if config.root is None:
        raise DataError(
            "data=imagefolder needs data.root=FOLDER with train/ and test/ (or val/) in it"
        )
    listing = list_folder(config.root, config.train_images, config.test_images)
    keep_pixels = config.pipeline == "resident"
    made_from = {"listing": listing.digest, "pillow": version("pillow")}

    def build(to: Path) -> Prepared:
        known(len(listing.classes), len(listing.train))
        return store_files(to, made_from, listing, keep_pixels, config.image_size, progress)

    key = _key("imagefolder", request | {"root": str(listing.root), "pixels": keep_pixels})
    return _Recipe(key, made_from, build)


def _prepare_own(config: "DataConfig", data: Path, progress: Progress, known: Known) -> Prepared:
    """Prepared anew each time, since nobody can tell whether it has changed; its content
    names its folder.
    """
    key = _key(config.name, {"root": config.root})
    with _lock(data, key, progress), _temporary(data, key) as folder:
        # Under the lock too, since it may download.
        source = own(config.name, config.root, config.train_images, config.test_images)
        made = _store(folder, {}, source, config, progress, known)
        target = data / f"own-{made.digest[:16]}"
        there = _valid(target, {})
        if there is not None and there.digest == made.digest:
            return there
        return _publish(folder, target)


def _key(name: str, request: dict[str, Any]) -> str:
    """Name of a folder: readable, and unique for what is asked for."""
    digest = hashlib.sha256(json.dumps([name, request], sort_keys=True).encode()).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9]+', '_', name)}-{digest[:12]}"


def _places(data: Path, recipe: _Recipe, image_size: int) -> tuple[Path, Path]:
    """Where it lies with its own size, and where when it had to be resized."""
    return data / recipe.key, data / f"{recipe.key}-{image_size}px"


def _find(data: Path, recipe: _Recipe, image_size: int) -> Prepared | None:
    for folder in _places(data, recipe, image_size):
        found = _valid(folder, recipe.made_from)
        if found is not None:
            return found
    return None


def _valid(folder: Path, made_from: dict[str, Any]) -> Prepared | None:
    """What lies in `folder`, if it is whole and was made from this; else None."""
    try:
        meta = read_meta(folder)
        if meta["made_from"] != made_from or not sizes_agree(folder, meta):
            return None
        prepared = from_meta(folder, meta)
        times = {name: (folder / name).stat().st_mtime_ns for name in meta["files"]}
        untouched = all(times[name] == time for name, (_, time) in meta["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # Written since, or copied from elsewhere: only its content tells.
    return prepared if untouched or _content_agrees(prepared) else None


def _content_agrees(prepared: Prepared) -> bool:
    if not prepared.stored:
        return False
    try:
        parts = [
            (
                map_array(labels_path(prepared.folder, part)),
                image_hashes(map_array(images_path(prepared.folder, part))),
            )
            for part in PARTS
        ]
    except DataError:
        return False
    shape = (prepared.height, prepared.width, prepared.channels)
    return content_digest(prepared.classes, shape, parts) == prepared.digest


def _build(data: Path, recipe: _Recipe) -> Prepared:
    """Build in a temporary folder, then put it in its place. The lock must be held."""
    with _temporary(data, recipe.key) as folder:
        made = recipe.build(folder)
        resized = f"-{made.resized_to}px" if made.resized_to else ""
        # What was made from other files is of no use to anybody.
        for old in data.glob(f"{recipe.key}*/"):
            if _valid(old, recipe.made_from) is None:
                shutil.rmtree(old, ignore_errors=True)
        return _publish(folder, data / f"{recipe.key}{resized}")


@contextlib.contextmanager
def _lock(data: Path, key: str, progress: Progress) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with writing(data):
            data.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(data / f"{key}.lock", progress))
        yield


@contextlib.contextmanager
def _temporary(data: Path, key: str) -> Iterator[Path]:
    """A new folder beside the others, gone at the end. The lock of `key` must be held."""
    with writing(data):
        for left in data.glob(f".{key}.*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(dir=data, prefix=f".{key}."))
        folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, target: Path) -> Prepared:
    """Rename `folder` to `target`. Maps of files that lay there stay good: they have the inode."""
    with writing(target):
        if target.exists():
            target.rename(folder.with_name(f"{folder.name}.old"))
        folder.rename(target)
    shutil.rmtree(folder.with_name(f"{folder.name}.old"), ignore_errors=True)
    return from_meta(target, read_meta(target))
