"""One image file as 8-bit RGB, or a message that names the file. No torch here."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from amp_sweep.data.prepared import DataError

# Pillow's own default (a quarter of a gigabyte at three bytes a pixel); from here on it warns.
MAX_PIXELS = 89_478_485

# What Pillow's decoders raise for broken files, beside OSError.
_BROKEN = (
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)


def resize(image: Image.Image, size: int) -> Image.Image:
    """`image` squashed to `size` x `size` pixels, as torchvision's `Resize((size, size))` does."""
    return image.resize((size, size), Image.Resampling.BILINEAR)


def open_rgb(path: str) -> Image.Image:
    """The image of a file in mode RGB, alpha dropped, EXIF orientation not applied.

    That is what torchvision's ImageFolder gives, except for 16-bit grey, which it clips
    to white and this scales. Raises DataError with the file's name.
    """
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(_bomb(path))
            return _rgb(image, path)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(_bomb(path)) from error
    except OSError as error:
        # Pillow's message for an unknown format repeats the path; the system's has a reason.
        unknown = isinstance(error, UnidentifiedImageError)
        reason = error.strerror or ("not an image that can be read" if unknown else error)
        raise DataError(f"{path}: {reason}") from error
    except _BROKEN as error:
        raise DataError(f"{path}: broken image ({type(error).__name__}: {error})") from error


def _bomb(path: str) -> str:
    return f"{path}: claims more than {MAX_PIXELS / 1e6:.0f} million pixels; make it smaller"


def _rgb(image: Image.Image, path: str) -> Image.Image:
    if image.mode.startswith("I;16"):
        return _from_16_bit(np.asarray(image)).convert("RGB")
    if image.mode == "I" and image.format in ("PNG", "PPM"):
        # These formats have at most 16 bits; Pillow hands them over in 32.
        return _from_16_bit(np.asarray(image)).convert("RGB")
    if image.mode in ("I", "F"):
        kind = "integers" if image.mode == "I" else "floats"
        raise DataError(f"{path}: pixels are 32-bit {kind}; save it with 8 or 16 bits a channel")
    if image.mode == "P" and "transparency" in image.info:
        # The direct way warns about the transparency it drops.
        image = image.convert("RGBA")
    return image.convert("RGB")


def _from_16_bit(pixels: NDArray[np.generic]) -> Image.Image:
    """Grey values 0..65535, [height, width], as an 8-bit image: 65535 becomes 255."""
    values = pixels.astype(np.uint32)
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))
