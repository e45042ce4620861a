"""The cache of a large sweep: faster, and never believed over the files."""

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from amp_sweep import record
from analysis import cache, gather
from analysis.frame import load

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def caching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sweeps have a cache too, and records that were just written count as settled."""
    monkeypatch.setattr(cache, "MIN_RUNS", 1)
    monkeypatch.setattr(cache, "SETTLED_NS", 0)


def cache_of(sweep: Path) -> Path:
    return sweep / cache.CACHE_NAME


def edit(path: Path, **metrics: Any) -> None:
    values = json.loads(path.read_text())
    values["metrics"] |= metrics
    path.write_text(json.dumps(values))


def reads_of(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The records that are really read from now on."""
    seen: list[Path] = []
    read = record.read

    def watched(path: Path) -> record.Record:
        seen.append(path)
        return read(path)

    monkeypatch.setattr(record, "read", watched)
    return seen


ODD = {
    "a_flag": True,
    "a_one": 1,
    "a_float": 1.0,
    "large": 2**70,
    "larger": 10**400,
    "text": "\ud800 \x1b[31m",
    "deep": [{"x": [None, {"y": 1}]}],
    "none": None,
}


def test_a_second_call_reads_no_record_and_gives_the_same_frame(
    make_matrix: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = {"status": "failed", "error": {"type": "E", "message": "no", "rank": 1}}
    sweep = make_matrix(metrics=ODD, but={("dp", "fp32"): failed, ("ddp", "fp32"): None})
    bad = sweep / "zz" / "record.json"
    bad.parent.mkdir()
    bad.write_text("{")
    first, problems = load(sweep)
    assert cache_of(sweep).is_file()
    reads = reads_of(monkeypatch)
    second, again = load(sweep)
    assert reads == [bad]
    pd.testing.assert_frame_equal(first, second)
    assert problems == again and len(problems) > 2


def test_values_that_are_equal_but_of_another_type_stay_apart(make_run: Make) -> None:
    texts = {"true": True, "1": 1, "1.0": 1.0, '"1"': "1", "null": None, "[1]": [1]}
    for seed, value in enumerate(texts.values()):
        sweep = make_run(seed=seed, effective={"extra": {"x": value}}).parent
    for _ in ("cold", "warm"):
        told = load(sweep)[0].sort_values("seed")["extra"].tolist()
        assert told == [f'{{"x": {text}}}' for text in texts]


def test_a_record_that_changed_is_read_again_and_only_that_one(
    make_matrix: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_matrix()
    load(sweep)
    changed = record.find(sweep)[4]
    edit(changed, test_accuracy=0.125)
    reads = reads_of(monkeypatch)
    frame, _ = load(sweep)
    assert reads == [changed]
    assert frame["test_accuracy"].tolist().count(0.125) == 1


def test_a_change_that_keeps_size_inode_and_time_of_writing_is_noticed(make_run: Make) -> None:
    path = make_run(metrics={"test_accuracy": 0.25}) / "record.json"
    load(path.parent.parent)
    before = path.stat()
    time.sleep(0.02)  # beyond a tick, so that the time of change tells
    content = path.read_bytes().replace(b"0.25", b"0.75")
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    for name in ("st_size", "st_ino", "st_mtime_ns"):
        assert getattr(before, name) == getattr(after, name)
    assert load(path.parent.parent)[0]["test_accuracy"].tolist() == [0.75]


def test_a_record_that_was_just_written_is_not_stored(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SETTLED_NS", 3 * 10**9)
    path = make_run(metrics={"test_accuracy": 0.25}) / "record.json"
    contents = [path.read_bytes().replace(b"0.25", b"0.%d" % n) for n in range(10, 99)]
    for n, content in enumerate(contents, start=10):  # many within one tick
        with path.open("r+b") as file:
            file.write(content)
        assert load(path.parent.parent)[0]["test_accuracy"].tolist() == [n / 100]
    assert not cache_of(path.parent.parent).exists()


@pytest.mark.parametrize(
    ("modified_s", "changed_s", "settled"),
    [
        (-4, -4, True),
        (-4, -1, False),
        (-1, -4, False),
        (1, -4, False),  # written by a clock that is ahead
    ],
)
def test_an_entry_is_settled_when_every_later_change_shows(
    modified_s: int, changed_s: int, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SETTLED_NS", 3 * 10**9)
    now = 10**18
    stamp = (now + modified_s * 10**9, now + changed_s * 10**9, 1, 1)
    assert cache.is_settled(stamp, now) == settled


def test_a_run_that_is_gone_or_came_or_changed_places_is_so_in_the_frame(make_matrix: Make) -> None:
    sweep = make_matrix()
    load(sweep)
    a, b, c, *_ = (path.parent for path in record.find(sweep))
    accuracy = record.read(b / "record.json").metrics["train_time_s"]
    shutil.rmtree(a)
    b.rename(sweep / "elsewhere")
    c.rename(b)
    frame, problems = load(sweep)
    assert problems == []
    assert len(frame) == 8
    assert str(a) not in set(frame["run_dir"])
    moved = frame[frame["run_dir"] == str(sweep / "elsewhere")]
    assert moved["train_time_s"].tolist() == [accuracy]


def damage(content: bytes) -> list[bytes]:
    head, _, body = content.partition(b"\n")
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    return [
        b"",
        b"\n",
        b"\xff\xfe",
        content[: len(content) // 2],
        head + b"\n",
        head + b"\n{}",
        bytes(flipped),
        content.replace(b"amp_sweep ", b"amp_sweep 0", 1),
        body,
    ]


def test_a_damaged_cache_is_as_good_as_none(make_matrix: Make) -> None:
    sweep = make_matrix()
    expected, _ = load(sweep)
    content = cache_of(sweep).read_bytes()
    for wrong in damage(content):
        cache_of(sweep).write_bytes(wrong)
        assert cache.read(sweep) is None
        found, problems = load(sweep)
        pd.testing.assert_frame_equal(found, expected)
        assert problems == []
        assert cache_of(sweep).read_bytes() == content  # whole again


@pytest.mark.parametrize("rows", [[["x", [1, 2, 3, 4], [99], []]], [["x", 1]], {}, None, 3])
def test_a_cache_that_only_looks_whole_is_not_used(tmp_path: Path, rows: Any) -> None:
    body = json.dumps({"pool": [], "rows": rows}).encode()
    cache_of(tmp_path).write_bytes(cache._head(body).encode() + b"\n" + body)
    assert cache.read(tmp_path) is None or cache.read(tmp_path) == cache.Stored([], [])


def replaced(place: list[Any], value: Any) -> Callable[[Any], None]:
    """Puts `value` at one place of a cache's content."""

    def change(values: Any) -> None:
        for name in place[:-1]:
            values = values[name]
        values[place[-1]] = value

    return change


def cut(place: list[Any]) -> Callable[[Any], None]:
    """Takes the last item off a list in a cache's content."""

    def change(values: Any) -> None:
        for name in place:
            values = values[name]
        values.pop()

    return change


SHAPE, CELL, NOTES = 0, 1, 5  # places in the pool, and in the numbers of the first row


@pytest.mark.parametrize(
    "change",
    [
        cut(["rows", 0, 3]),
        cut(["rows", 0, 2]),
        replaced(["rows", 0, 2], []),
        replaced(["rows", 0, 3], []),
        replaced(["rows", 0, 2, 1], -1),
        replaced(["rows", 0, 2, 1], 1.0),
        replaced(["rows", 0, 2, 1], True),
        replaced(["rows", 0, 0], 5),
        replaced(["rows", 0, 1], [1, 2]),
        replaced(["rows", 0, 1, 0], "x"),
        replaced(["rows", 0, 3, 0], None),
        replaced(["rows", 0, 3, 1], "unheard of"),
        replaced(["rows", 0, 3, 4], "x"),
        replaced(["pool", SHAPE], 3),
        replaced(["pool", SHAPE], [["cell"], []]),
        replaced(["pool", SHAPE, 0, 0], "other"),
        replaced(["pool", SHAPE, 1, 0], 7),
        cut(["pool", SHAPE, 1]),
        cut(["pool", SHAPE]),
        replaced(["pool", CELL], []),
        replaced(["pool", NOTES], "x"),
        replaced(["pool"], {}),
        replaced(["rows"], 3),
    ],
)
def test_a_cache_that_is_whole_and_does_not_fit_is_made_again(
    make_matrix: Make, change: Callable[[Any], None]
) -> None:
    sweep = make_matrix()
    expected, _ = load(sweep)
    content = cache_of(sweep).read_bytes()
    values = json.loads(content.partition(b"\n")[2])
    assert [values["rows"][0][2][place] for place in (SHAPE, CELL, NOTES)] == [SHAPE, CELL, NOTES]
    change(values)
    body = json.dumps(values).encode()
    cache_of(sweep).write_bytes(cache._head(body).encode() + b"\n" + body)
    found, problems = load(sweep)
    pd.testing.assert_frame_equal(found, expected)
    assert problems == []
    assert cache_of(sweep).read_bytes() == content


def test_a_fifo_in_the_place_of_the_cache_is_replaced(make_matrix: Make) -> None:
    sweep = make_matrix()
    os.mkfifo(cache_of(sweep))
    assert len(load(sweep)[0]) == 9
    assert cache_of(sweep).is_file()


def test_the_cache_of_another_version_of_the_code_is_not_used(
    make_matrix: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_matrix()
    load(sweep)
    monkeypatch.setattr(cache, "_version", lambda: "another")
    assert cache.read(sweep) is None
    reads = reads_of(monkeypatch)
    load(sweep)
    assert len(reads) == 9


def test_a_sweep_that_cannot_be_written_is_read_without_a_cache(
    make_matrix: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(cache.tempfile, "TemporaryFile", refuse)
    sweep = make_matrix()
    for _ in range(2):
        frame, problems = load(sweep)
        assert len(frame) == 9 and problems == []
    assert not cache_of(sweep).exists()


def test_a_folder_in_the_place_of_the_cache_disturbs_nothing(make_matrix: Make) -> None:
    sweep = make_matrix()
    cache_of(sweep).mkdir()
    for _ in range(2):
        assert len(load(sweep)[0]) == 9
    assert [path.name for path in sweep.iterdir() if path.name.startswith(cache.CACHE_NAME)] == [
        cache.CACHE_NAME
    ]


def test_calls_at_the_same_time_see_whole_caches_and_leave_nothing_behind(
    make_matrix: Make,
) -> None:
    sweep = make_matrix()
    expected, _ = load(sweep)
    frames: list[pd.DataFrame] = []

    def again() -> None:
        for _ in range(5):
            cache_of(sweep).unlink(missing_ok=True)
            frames.append(load(sweep)[0])

    threads = [threading.Thread(target=again) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(frames) == 20
    for frame in frames:
        pd.testing.assert_frame_equal(frame, expected)
    files = [path.name for path in sweep.iterdir() if path.is_file()]
    assert set(files) <= {cache.CACHE_NAME}


def test_what_no_run_refers_to_any_more_leaves_the_cache(make_matrix: Make) -> None:
    sweep = make_matrix()
    load(sweep)
    before = cache.read(sweep)
    for path in record.find(sweep)[1:]:
        edit(path, **{f"figure{path.parent.name[:5]}": 1.0})
    load(sweep)
    for path in record.find(sweep)[1:]:
        shutil.rmtree(path.parent)
    edit(record.find(sweep)[0], other=1)
    load(sweep)
    after = cache.read(sweep)
    assert before is not None and after is not None
    assert len(after.rows) == 1
    used = {number for _, _, numbers, _ in after.rows for number in numbers}
    assert used == set(range(len(after.pool)))
    assert len(after.pool) < len(before.pool)


def test_two_sweeps_with_caches_stand_together(make_matrix: Make) -> None:
    one, two = make_matrix(sweep="one"), make_matrix(sweep="two", settings={"optimizer.lr": 0.5})
    first, _ = load(one, two)
    for order in ((one, two), (two, one)):
        frame, problems = load(*order)
        assert problems == []
        pd.testing.assert_frame_equal(
            frame.sort_values("run_dir", ignore_index=True),
            first.sort_values("run_dir", ignore_index=True),
        )


def test_a_small_sweep_has_no_cache(make_matrix: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MIN_RUNS", 10)
    sweep = make_matrix()
    load(sweep)
    assert not cache_of(sweep).exists()


def test_equal_values_are_kept_once_and_unequal_ones_apart() -> None:
    pool = gather.Pool()
    values = [1, 1.0, True, "1", None, 0.0, -0.0, [1], [1.0], {"a": 1}, {"a": True}, "é", "\ud800"]
    assert pool.numbers(values) == list(range(len(values)))
    assert pool.numbers(json.loads(json.dumps(values))) == list(range(len(values)))
    assert [(type(value), repr(value)) for value in pool.values] == [
        (type(value), repr(value)) for value in values
    ]
