"""A person's own data set: `package.module:callable`. No torch at import."""

import contextlib
import importlib
import inspect
import operator
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from amp_sweep.data.arrays import Part, Source
from amp_sweep.data.decode import resize
from amp_sweep.data.prepared import DataError, PartName
from amp_sweep.data.store import Images, Labels, SizesVary
from amp_sweep.data.subset import choose

_CHUNK = 256
_MOST_CLASSES = 1_000_000  # a label beyond is an identifier, not a class
_ITEM = "(PIL image or numpy uint8 array [height, width] or [height, width, 1 or 3], int label)"


def own(name: str, root: str | None, train_images: int | None, test_images: int | None) -> Source:
    """The data set of `callable(root=..., train=True)` and `callable(root=..., train=False)`.

    Both are map-style: `len()` and `[index]`, whose items are (image, label), see `_ITEM`.
    Where the training set has `.classes` these name the labels. Raises DataError, also for
    what the person's own code raises: it names the item, the exception and its place.
    """
    make = _find(name)
    datasets = {}
    for part, train in (("train", True), ("test", False)):
        with _told(f"data.name={name}: the {part} data set"):
            datasets[part] = make(root=root, train=train)
    classes = getattr(datasets["train"], "classes", None)
    return Source(
        name=name,
        classes=None if classes is None else tuple(str(item) for item in classes),
        train=_part(name, "train", datasets["train"], train_images),
        test=_part(name, "test", datasets["test"], test_images),
    )


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn what a person's own code raises into one line about `what`."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # a person's own code may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
        raise DataError(f"{what}: {message} ({last.filename}, line {last.lineno})") from error


def _find(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise DataError(f"data.name={name}: cannot import {module_name!r}: {error}") from error
    except Exception as error:  # a person's own code may raise anything
        what = f"{type(error).__name__}: {error}"
        raise DataError(f"data.name={name}: cannot import {module_name!r}: {what}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise DataError(f"data.name={name}: {module_name!r} has no {attribute!r}")
        found = getattr(found, part)
    wanted = f"data.name={name}: expected callable(root=..., train=True or False)"
    if not callable(found):
        raise DataError(f"{wanted}, got {type(found).__name__}")
    try:
        inspect.signature(found).bind(root=None, train=True)
    except TypeError as error:
        raise DataError(f"{wanted}: {error}") from error
    except ValueError:  # some built-in callables have no signature to look at
        pass
    made: Callable[..., Any] = found
    return made


def _part(name: str, part: PartName, dataset: Any, wanted: int | None) -> Part:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"data.name={name}: expected a data set with len() and [index], "
            f"got {type(dataset).__name__}"
        )
    with _told(f"data.name={name}: len() of the {part} data set"):
        count = len(dataset)
    if count == 0:
        raise DataError(f"data.name={name}: the {part} data set is empty")
    chosen = choose(name, part, count, wanted)

    def chunks(resize_to: int | None) -> Iterator[tuple[Images, Labels]]:
        for start in range(0, len(chosen), _CHUNK):
            items = []
            for index in chosen[start : start + _CHUNK].tolist():
                where = f"data.name={name}: {part} item {index}"
                with _told(where):
                    item = dataset[index]
                items.append(_item(item, where, resize_to))
            yield (
                _stack([image for image, _ in items], name),
                np.array([label for _, label in items], dtype=np.int64),
            )

    return Part(len(chosen), chunks)


def _stack(images: list[Images], name: str) -> Images:
    shapes = {image.shape for image in images}
    if len({channels for *_, channels in shapes}) > 1:
        raise DataError(f"data.name={name}: images with 1 and with 3 channels; use one of them")
    if len(shapes) > 1:
        raise SizesVary
    return np.stack(images)


def _item(item: Any, where: str, resize_to: int | None) -> tuple[Images, int]:
    """Image [height, width, channels] and label of one item; raises DataError."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"{where}: expected {_ITEM}, got {_describe(item)}")
    try:
        label = operator.index(item[1])
    except TypeError as error:
        raise DataError(f"{where}: expected {_ITEM}, got label {item[1]!r}") from error
    if abs(label) >= _MOST_CLASSES:
        raise DataError(f"{where}: label {label}, expected class numbers from 0 on")
    image = _pixels(item[0])
    if image is None:
        raise DataError(f"{where}: expected {_ITEM}, got {_describe(item[0])}")
    if resize_to is not None:
        whole = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        image = _with_channels(np.asarray(resize(whole, resize_to)))
    return image, label


def _pixels(image: Any) -> Images | None:
    """uint8 [height, width, 1 or 3]; None for what is no such image."""
    if isinstance(image, Image.Image):
        # 16-bit and float modes would be clipped to white.
        if image.mode.startswith(("I", "F")):
            return None
        if image.mode == "P":
            image = image.convert("RGBA")
        return np.asarray(image.convert("RGB"))
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.size == 0:
        return None
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3)):
        return None
    return _with_channels(image)


def _with_channels(image: NDArray[np.uint8]) -> Images:
    return image[..., None] if image.ndim == 2 else image


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array of shape {list(value.shape)}"
    if isinstance(value, Image.Image):
        return f"a PIL image of mode {value.mode}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__
