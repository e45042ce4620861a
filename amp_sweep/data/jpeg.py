"""What a JPEG file says of itself: whether every decoder reads it alike. No torch here."""

import re

from amp_sweep.data.decode import MAX_PIXELS

_BASELINE, _SCAN = 0xC0, 0xDA
_JFIF, _ADOBE = 0xE0, 0xEE
_TABLES = (0xC4, 0xC8)  # among the numbers of the frames, and none
_NO_SEGMENT = (0x01, *range(0xD0, 0xDA))  # restarts, start and end of an image
_YCBCR = 1  # Adobe's number for it

# Luma factors under chroma of 1x1: 4:4:4, 4:2:2 and 4:2:0.
_LUMA = (0x11, 0x21, 0x22)

# In a scan an FF is followed by 00, or it is a restart; anything else ends the scan.
_END_OF_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7]")


def plain_size(data: bytes) -> tuple[int, int] | None:
    """Height and width of a plain JPEG file; None for anything else, and for what is cut off.

    Plain is what cameras and image libraries write by default: baseline, 8 bits, YCbCr at
    4:4:4, 4:2:2 or 4:2:0, one scan that ends with the image. Decoders differ in what they make
    of others (grey, CMYK, RGB, progressive), if they read them at all.
    """
    if data[:2] != b"\xff\xd8":
        return None
    frame: bytes | None = None
    known_colours = False
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        body = data[at + 4 : at + 2 + length]
        if marker in _NO_SEGMENT:
            return None
        at += 2 + length
        if marker == _SCAN:
            whole = frame is not None and _interleaved(body) and _ends_well(data, at)
            return _size(frame or b"", known_colours) if whole else None
        if marker == _BASELINE and frame is None:
            frame = body
        elif _BASELINE <= marker <= 0xCF and marker not in _TABLES:
            return None
        elif marker == _JFIF and body[:5] == b"JFIF\0":
            known_colours = True
        elif marker == _ADOBE and body[:5] == b"Adobe":
            if body[11:12] != bytes([_YCBCR]):
                return None
            known_colours = True
    return None


def _interleaved(scan: bytes) -> bool:
    """Whether the scan has all three components and all their coefficients."""
    return len(scan) == 10 and scan[0] == 3 and scan[7:9] == bytes([0, 63])


def _ends_well(data: bytes, at: int) -> bool:
    """Whether the scan that begins at `at` is followed by the end of the image."""
    end = _END_OF_SCAN.search(data, at)
    return end is not None and end.group() == b"\xff\xd9"


def _size(frame: bytes, known_colours: bool) -> tuple[int, int] | None:
    if len(frame) != 15 or frame[0] != 8 or frame[5] != 3:
        return None
    # Without a word on the colours, libjpeg goes by the components' names.
    if not known_colours and (frame[6], frame[9], frame[12]) != (1, 2, 3):
        return None
    if frame[7] not in _LUMA or frame[10] != 0x11 or frame[13] != 0x11:
        return None
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    return (height, width) if 0 < height * width <= MAX_PIXELS else None
