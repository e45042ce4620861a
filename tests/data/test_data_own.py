"""A person's own data set, given as package.module:callable."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from amp_sweep.config import DataConfig
from amp_sweep.data import DataError, prepare
from amp_sweep.data.prepared import images_path, labels_path

Write = Callable[[str], None]

GOOD = """
import numpy as np
from PIL import Image

CALLS = []

class Things:
    classes = ["zero", "one"]
    def __init__(self, root, train):
        CALLS.append((root, train))
        self.count = 300 if train else 5
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        image = np.full((6, 7, 3), index % 256, np.uint8)
        return (Image.fromarray(image) if index % 2 else image), np.int64(index % 2)

def grey(root, train):
    return [(np.full((4, 4), 10 * i, np.uint8), i) for i in range(3)]

def varied(root, train):
    return [(Image.new("L", (5 + i, 9), 100 + i), i) for i in range(3)]

not_callable = 3
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write the module `own_things`, which can be imported."""
    import sys

    monkeypatch.syspath_prepend(str(tmp_path))

    def write_module(text: str) -> None:
        (tmp_path / "own_things.py").write_text(text)
        monkeypatch.delitem(sys.modules, "own_things", raising=False)

    return write_module


def own(attribute: str, **values: Any) -> DataConfig:
    return DataConfig(name=f"own_things:{attribute}", image_size=8, **values)


def test_an_own_data_set_is_called_for_each_part_and_stored(write: Write) -> None:
    write(GOOD)
    prepared = prepare(own("Things", root="/some/where"))
    import own_things

    assert own_things.CALLS == [("/some/where", True), ("/some/where", False)]
    assert (prepared.train_count, prepared.test_count) == (300, 5)
    assert prepared.classes == ("zero", "one")
    stored = np.load(images_path(prepared.folder, "train"))
    assert stored.shape == (300, 6, 7, 3)
    assert stored[:, 0, 0, 0].tolist() == [index % 256 for index in range(300)]
    assert np.load(labels_path(prepared.folder, "test")).tolist() == [0, 1, 0, 1, 0]


def test_its_content_names_its_folder(write: Write, cache: Path) -> None:
    write(GOOD)
    first = prepare(own("Things"))
    assert prepare(own("Things")) == first
    assert prepare(own("Things", root="/elsewhere")) == first
    write(GOOD.replace("index % 256", "255 - index % 256"))
    assert prepare(own("Things")).folder != first.folder
    assert len([path for path in (cache / "data").iterdir() if path.is_dir()]) == 2


def test_only_the_items_of_a_subset_are_asked_for(write: Write) -> None:
    write(GOOD)
    prepared = prepare(own("Things", train_images=10))
    assert prepared.train_count == 10
    with pytest.raises(DataError, match=r"data\.train_images=301: .* has 300 train"):
        prepare(own("Things", train_images=301))


def test_grey_arrays_stay_grey_and_classes_come_from_the_labels(write: Write) -> None:
    write(GOOD)
    prepared = prepare(own("grey"))
    assert (prepared.height, prepared.width, prepared.channels) == (4, 4, 1)
    assert prepared.classes == ("0", "1", "2")


def test_images_of_different_sizes_become_squares(write: Write) -> None:
    write(GOOD)
    prepared = prepare(own("varied"))
    stored = np.load(images_path(prepared.folder, "train"))
    assert stored.shape == (3, 8, 8, 3)
    assert stored[:, 0, 0, 0].tolist() == [100, 101, 102]
    assert prepared.resized_to == 8


def test_the_current_folder_may_hold_a_dotted_callable(write: Write) -> None:
    write(GOOD + "\nclass Outer:\n    inner = staticmethod(grey)\n")
    assert prepare(own("Outer.inner")).train_count == 3


def items(first: str, more: str = "") -> str:
    return (
        "import numpy as np\nfrom PIL import Image\n"
        f"def data(root, train):\n    {more or 'pass'}\n    return [{first}]\n"
    )


RIGHT = "(np.zeros((4, 4, 3), np.uint8), 0)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_module_anywhere", "cannot import 'own_things': No module named 'no_such"),
        ("1 / 0", "cannot import 'own_things': ZeroDivisionError: division by zero"),
        ("", "'own_things' has no 'data'"),
        ("data = 3", r"expected callable\(root=..., train=True or False\), got int"),
        ("def data(folder): ...", "expected callable.*: missing a required argument|unexpected"),
        ("def data(root, train): ...", r"with len\(\) and \[index\], got NoneType"),
        ("def data(root, train): return []", "the train data set is empty"),
        (items("3"), "train item 0: expected .PIL image or numpy uint8.* got int"),
        (items("(1, 2, 3)"), "got a tuple of 3"),
        (items("(np.zeros((4, 4, 3)), 0)"), r"got a float64 array of shape \[4, 4, 3\]"),
        (items("(np.zeros((4, 4, 4), np.uint8), 0)"), r"got a uint8 array of shape \[4, 4, 4\]"),
        (items("(Image.new('F', (4, 4)), 0)"), "got a PIL image of mode F"),
        (items("(np.zeros((4, 4), np.uint8), 'cat')"), "got label 'cat'"),
        (items("(np.zeros((4, 4), np.uint8), 1.5)"), "got label 1.5"),
        (items("(np.zeros((4, 4), np.uint8), 10**30)"), "expected class numbers from 0 on"),
        (items("(np.zeros((4, 4), np.uint8), -1)"), "train image 0 has label -1, expected 0 to"),
        (
            items("(np.zeros((4, 4), np.uint8), 0 if train else 1)"),
            "test image 0 has label 1, expected 0 to 0",
        ),
        (items(f"{RIGHT}, (np.zeros((4, 4), np.uint8), 0)"), "images with 1 and with 3 channels"),
        (
            items("(np.zeros((4, 4, 3 if train else 1), np.uint8), 0)"),
            "images have 3 and 1 channels",
        ),
    ],
)
def test_what_is_not_as_expected_is_refused_in_words(write: Write, text: str, message: str) -> None:
    write(text)
    with pytest.raises(DataError, match=message) as caught:
        prepare(own("data"))
    assert "own_things:data" in str(caught.value)


def test_labels_beyond_the_named_classes_are_refused(write: Write) -> None:
    write(GOOD.replace("np.int64(index % 2)", "index % 3"))
    with pytest.raises(DataError, match="train image 2 has label 2, expected 0 to 1"):
        prepare(own("Things"))


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        (
            "def data(root, train):\n    raise RuntimeError('my own\\nfault')",
            "the train data set: RuntimeError: my own fault (",
            2,
        ),
        (
            "class data:\n def __init__(self, root, train): pass\n"
            " def __getitem__(self, index): 0\n def __len__(self): return 1 // 0",
            "len() of the train data set: ZeroDivisionError: integer division",
            4,
        ),
        (
            "class data:\n def __init__(self, root, train): pass\n"
            " def __getitem__(self, index): assert False\n def __len__(self): return 3",
            "train item 0: AssertionError (",
            3,
        ),
    ],
)
def test_an_error_of_their_own_code_is_one_line_with_its_place(
    write: Write, text: str, words: str, line: int
) -> None:
    write(text)
    with pytest.raises(DataError) as caught:
        prepare(own("data"))
    message = str(caught.value)
    assert words in message and "\n" not in message
    assert message.endswith(f"own_things.py, line {line})")


def test_a_missing_module_is_refused() -> None:
    with pytest.raises(DataError, match="cannot import 'no_such_module_at_all'"):
        prepare(DataConfig(name="no_such_module_at_all:data"))


def test_pil_items_become_rgb_whatever_their_mode(write: Write) -> None:
    write(items("(Image.new('CMYK', (4, 4)), 0), (Image.new('P', (4, 4)), 0)"))
    prepared = prepare(own("data"))
    stored = np.load(images_path(prepared.folder, "train"))
    np.testing.assert_array_equal(stored[0], np.asarray(Image.new("CMYK", (4, 4)).convert("RGB")))
