"""Which JPEG files every decoder reads alike: by Pillow's writer and by what is broken."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from amp_sweep.data import decode
from amp_sweep.data import jpeg as jpeg_module
from amp_sweep.data.jpeg import plain_size
from tests.data.conftest import smooth_image


def jpeg(mode: str = "RGB", size: tuple[int, int] = (40, 24), **options: Any) -> bytes:
    """A file of `size` (height, width)."""
    file = io.BytesIO()
    Image.fromarray(smooth_image(*size, seed=3)).convert(mode).save(file, "jpeg", **options)
    return file.getvalue()


@pytest.mark.parametrize("size", [(40, 24), (1, 1), (17, 300)])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quality": 100, "optimize": True},
        {"restart_marker_blocks": 1, "comment": b"\xff\xd9\xff\xc2"},
        {"exif": Image.Exif()},
        {"dpi": (300, 300), "icc_profile": b"\xff\xda" * 40_000},
    ],
)
def test_what_is_written_by_default_is_plain(
    size: tuple[int, int], subsampling: str, options: dict[str, Any]
) -> None:
    assert plain_size(jpeg(size=size, subsampling=subsampling, **options)) == size


def test_trailing_bytes_and_a_preview_are_no_part_of_the_image() -> None:
    preview = b"\xff\xe1" + (2 + len(jpeg(size=(8, 8)))).to_bytes(2, "big") + jpeg(size=(8, 8))
    whole = jpeg()
    assert plain_size(whole[:2] + preview + whole[2:] + b"\0\0more") == (40, 24)
    assert plain_size(whole[:2] + preview) is None


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("L", {}),
        ("CMYK", {}),
        ("RGB", {"progressive": True}),
        ("RGB", {"keep_rgb": True}),
    ],
)
def test_other_kinds_are_not(mode: str, options: dict[str, Any]) -> None:
    data = jpeg(mode, **options)
    assert Image.open(io.BytesIO(data)).size == (24, 40)
    assert plain_size(data) is None


def patched(data: bytes, after: bytes, offset: int, *values: int) -> bytes:
    """`data` with bytes replaced at an offset from where `after` begins."""
    at = data.index(after) + offset
    return data[:at] + bytes(values) + data[at + len(values) :]


def frame_of(data: bytes) -> bytes:
    at = data.index(b"\xff\xc0")
    return data[at : at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")]


FRAME, SCAN = b"\xff\xc0", b"\xff\xda"


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("extended", patched(jpeg(), FRAME, 1, 0xC1)),
        ("arithmetic", patched(jpeg(), FRAME, 1, 0xC9)),
        ("12 bits", patched(jpeg(), FRAME, 4, 12)),
        ("height told later", patched(jpeg(), FRAME, 5, 0, 0)),
        ("4:4:0", patched(jpeg(), FRAME, 11, 0x12)),
        ("chroma of its own", patched(jpeg(), FRAME, 14, 0x21)),
        ("other chroma of its own", patched(jpeg(), FRAME, 17, 0x21)),
        ("one component in the room of three", patched(jpeg(), FRAME, 9, 1)),
        ("another start", b"\xff\xd0" + jpeg()[2:]),
        ("a segment without a length", jpeg()[:2] + b"\xff\xe1\x00\x00" + jpeg()[2:]),
        ("some coefficients", patched(jpeg(), SCAN, 12, 5)),
        ("unknown colours", patched(patched(jpeg(), b"JFIF", 0, 0x4A, 0x46, 0x58), FRAME, 10, 7)),
        ("a bit of the scan", patched(jpeg(), SCAN, 40, 0xFF, 0xE0)),
        ("a later frame", jpeg()[:-2] + jpeg()[2:]),
        ("an empty frame first", jpeg().replace(FRAME, FRAME + b"\x00\x02" + FRAME, 1)),
        ("two frames", jpeg().replace(FRAME, frame_of(jpeg()) + FRAME, 1)),
        ("another format", b"\x89PNG\r\n\x1a\n" + jpeg()),
        ("nothing", b""),
    ],
)
def test_odd_and_broken_headers_are_not_plain(what: str, data: bytes) -> None:
    assert plain_size(data) is None


def test_without_a_word_on_colours_the_usual_names_of_components_will_do() -> None:
    nameless = patched(jpeg(), b"JFIF", 0, 0x4A, 0x46, 0x58)
    assert plain_size(nameless) == (40, 24)


def test_with_a_word_on_colours_components_may_have_any_names() -> None:
    renamed = jpeg()
    for number, (frame, scan) in enumerate(((10, 5), (13, 7), (16, 9))):
        renamed = patched(patched(renamed, FRAME, frame, number), SCAN, scan, number)
    assert plain_size(renamed) == (40, 24)
    pixels = [np.asarray(Image.open(io.BytesIO(data))) for data in (renamed, jpeg())]
    np.testing.assert_array_equal(*pixels)


def test_padding_between_segments_does_not_matter() -> None:
    padded = jpeg().replace(FRAME, b"\xff\xff" + FRAME, 1).replace(SCAN, b"\xff" + SCAN, 1)
    assert plain_size(padded) == (40, 24)
    np.testing.assert_array_equal(
        *(np.asarray(Image.open(io.BytesIO(data))) for data in (padded, jpeg()))
    )


def test_a_file_that_was_cut_off_is_never_plain() -> None:
    data = jpeg(size=(16, 16))
    assert plain_size(data) is not None
    assert [end for end in range(len(data)) if plain_size(data[:end]) is not None] == []


def test_random_bytes_after_the_start_raise_nothing() -> None:
    random = np.random.default_rng(0)
    whole = bytearray(jpeg())
    for _ in range(3000):
        damaged = bytearray(whole)
        for at in random.integers(0, len(whole), 3):
            damaged[at] = random.integers(0, 256)
        found = plain_size(bytes(damaged))
        assert found is None or len(found) == 2


def test_more_pixels_than_the_host_takes_are_not_for_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jpeg_module, "MAX_PIXELS", 40 * 24 - 1)
    assert decode.MAX_PIXELS > 40 * 24
    assert plain_size(jpeg()) is None
