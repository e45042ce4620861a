"""Image files of all kinds become 8-bit RGB, or an error that names the file."""

import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from amp_sweep.data import DataError
from amp_sweep.data.decode import open_rgb

Picture = Callable[[int, int, int], np.ndarray]


def as_array(path: Path) -> np.ndarray:
    image = open_rgb(str(path))
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("L", "png"), ("1", "png"), ("P", "png"), ("CMYK", "jpg"), ("RGBA", "png"), ("LA", "png"),
     ("L", "jpg"), ("RGB", "webp"), ("RGB", "bmp"), ("L", "pgm"), ("CMYK", "tif")],
)  # fmt: skip
def test_any_mode_becomes_what_torchvision_makes_of_it(
    tmp_path: Path, picture: Picture, mode: str, suffix: str
) -> None:
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(picture(9, 7, 0)).convert(mode).save(path)
    with Image.open(path) as image:  # torchvision's pil_loader
        expected = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(as_array(path), expected)


@pytest.mark.parametrize("transparency", [3, bytes([0, 128, 255] * 85)])
def test_a_palette_with_transparency_keeps_its_colours(
    tmp_path: Path, picture: Picture, transparency: int | bytes
) -> None:
    path = tmp_path / "palette.png"
    palette = Image.fromarray(picture(9, 7, 0)).quantize(255)
    palette.save(path, transparency=transparency)
    np.testing.assert_array_equal(as_array(path), np.asarray(palette.convert("RGB")))


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_grey_is_scaled_not_clipped_to_white(tmp_path: Path, suffix: str) -> None:
    values = np.linspace(0, 65535, 60).round().astype(np.uint16).reshape(6, 10)
    path = tmp_path / f"deep.{suffix}"
    Image.fromarray(values).save(path)
    expected = np.rint(values / 65535 * 255)
    np.testing.assert_array_equal(as_array(path), np.repeat(expected[..., None], 3, axis=2))


def test_a_16_bit_pgm_is_scaled_too(tmp_path: Path) -> None:
    values = np.array([[0, 32768, 65535]], dtype=">u2")
    path = tmp_path / "deep.pgm"
    path.write_bytes(b"P5 3 1 65535\n" + values.tobytes())
    assert as_array(path)[0, :, 0].tolist() == [0, 128, 255]


def test_a_16_bit_rgb_png_is_scaled(tmp_path: Path) -> None:
    row = b"\0" + struct.pack(">6H", 0, 32768, 65535, 65535, 256, 0)
    header = struct.pack(">2I5B", 2, 1, 16, 2, 0, 0, 0)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    path = tmp_path / "deep.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    )  # fmt: skip
    assert as_array(path).tolist() == [[[0, 128, 255], [255, 1, 0]]]


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_32_bit_pixels_are_refused_by_name(tmp_path: Path, dtype: type) -> None:
    path = tmp_path / "deep.tif"
    Image.fromarray(np.full((4, 4), 70000, dtype=dtype)).save(path)
    with pytest.raises(DataError, match=r"deep\.tif: pixels are 32-bit"):
        open_rgb(str(path))


def test_a_truncated_image_is_refused_by_name(tmp_path: Path, picture: Picture) -> None:
    for suffix in ("jpg", "png", "bmp", "webp", "tif"):
        path = tmp_path / f"half.{suffix}"
        Image.fromarray(picture(40, 40, 0)).save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(DataError, match=rf"half\.{suffix}: "):
            open_rgb(str(path))


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"])
def test_a_file_that_is_no_image_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "not.png"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"not\.png: not an image"):
        open_rgb(str(path))


def test_a_missing_file_is_told_with_the_systems_reason(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.png: No such file"):
        open_rgb(str(tmp_path / "gone.png"))


def test_damaged_files_never_raise_anything_else(tmp_path: Path, picture: Picture) -> None:
    random = np.random.default_rng(0)
    for suffix in ("png", "jpg", "ppm", "bmp", "webp"):
        path = tmp_path / f"damaged.{suffix}"
        Image.fromarray(picture(16, 16, 0)).save(path)
        whole = path.read_bytes()
        for _ in range(60):
            damaged = bytearray(whole)
            for place in random.integers(0, min(len(whole), 150), 3):
                damaged[place] = random.integers(256)
            path.write_bytes(damaged)
            try:
                assert open_rgb(str(path)).mode == "RGB"
            except DataError as error:
                assert str(path) in str(error)


@pytest.mark.parametrize("side", [12_000, 60_000])
@pytest.mark.parametrize("filter_action", ["error", "ignore"])
def test_a_decompression_bomb_is_refused_by_name(
    tmp_path: Path, side: int, filter_action: str
) -> None:
    path = tmp_path / "bomb.bmp"
    Image.new("1", (1, 1)).save(path)
    data = bytearray(path.read_bytes())
    data[18:26] = struct.pack("<2i", side, side)  # the header claims this size
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter(filter_action, Image.DecompressionBombWarning)
        with pytest.raises(DataError, match=r"bomb\.bmp: claims more than 89 million pixels"):
            open_rgb(str(path))


def test_exif_orientation_is_not_applied_as_in_torchvision(
    tmp_path: Path, picture: Picture
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    path = tmp_path / "turned.png"
    Image.fromarray(picture(8, 4, 0)).save(path, exif=exif)
    assert as_array(path).shape == (8, 4, 3)
