"""The run record: written whole or not at all, read with distrust."""

import dataclasses
import json
import math
import os
import random
import re
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from amp_sweep import record
from amp_sweep.record import Record, RecordError


def full_record() -> Record:
    """Every field filled with something that a default is not."""
    return Record(
        name="matrix",
        fingerprint="ab" * 32,
        status=record.FAILED,
        cell={"parallel": "ddp", "precision": "scaler", "seed": 3},
        overrides=["parallel=ddp", "data.root=/ä/ü"],
        config={"epochs": 2, "data": {"batch_size": 64, "root": None}},
        effective={"world_size": 2, "device_names": ["x", "y"]},
        metrics={"test_accuracy": 0.1 + 0.2, "images_per_s": None, "peak_allocated_mib": [1.5, 2]},
        epochs=[{"epoch": 1, "train_loss": 1e-300}],
        environment={"torch": "2.14.1"},
        segments=[{"started_at": "2026-01-01", "ended_at": None}],
        notes=["energy_j: not measured"],
        error={"type": "ValueError", "message": "no", "traceback": "a\nb", "rank": 1},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "record.json"


def strict(text: str) -> Any:
    """JSON by the letter: no NaN, no Infinity."""

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def only_file(path: Path) -> bool:
    return [item.name for item in path.parent.iterdir()] == [path.name]


# ------------------------------------------------------------------ writing


def test_what_is_written_is_read_back_equal(path: Path) -> None:
    record.write(path, full_record())
    assert record.read(path) == full_record()
    assert only_file(path)


def test_the_file_is_strict_json_with_the_contracts_names_version_first(path: Path) -> None:
    record.write(path, full_record())
    values = strict(path.read_text("utf-8"))
    assert next(iter(values)) == "schema_version" and values["schema_version"] == 1
    assert set(values) == {
        *("schema_version", "name", "fingerprint", "status", "cell", "overrides", "config"),
        *("effective", "metrics", "epochs", "environment", "segments", "notes", "error"),
    }


def test_a_record_can_be_read_by_other_accounts(path: Path) -> None:
    record.write(path, full_record())
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_number_becomes_null_with_a_note(path: Path, bad: float) -> None:
    found = full_record()
    found.metrics["test_loss"] = bad
    found.metrics["peak_allocated_mib"] = [1.5, bad]
    found.epochs.append({"epoch": 2, "train_loss": bad})
    record.write(path, found)
    values = strict(path.read_text("utf-8"))
    assert values["metrics"]["test_loss"] is None
    assert values["metrics"]["peak_allocated_mib"] == [1.5, None]
    assert values["epochs"][1] == {"epoch": 2, "train_loss": None}
    for place in ("metrics.test_loss", "metrics.peak_allocated_mib[1]", "epochs[1].train_loss"):
        assert f"{place} was {bad}" in values["notes"]
    assert values["notes"][0] == "energy_j: not measured"
    # The object in memory keeps what was measured.
    assert found.notes == ["energy_j: not measured"] and not math.isfinite(
        found.metrics["test_loss"]
    )


def test_a_note_about_a_lost_figure_is_not_repeated_when_written_again(path: Path) -> None:
    found = full_record()
    found.metrics["test_loss"] = math.nan
    record.write(path, found)
    again = record.read(path)
    again.metrics["test_loss"] = math.nan
    record.write(path, again)
    assert record.read(path).notes.count("metrics.test_loss was nan") == 1


def test_a_remark_is_noted_once() -> None:
    found = full_record()
    found.note("contended")
    found.note("contended")
    assert found.notes == ["energy_j: not measured", "contended"]


def test_a_failed_write_leaves_the_old_file_and_no_other(path: Path) -> None:
    record.write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        record.write_atomic(path, "new \ud800")
    assert path.read_text() == "old" and only_file(path)


def test_what_cannot_be_written_as_json_leaves_the_old_record(path: Path) -> None:
    record.write(path, full_record())
    broken = full_record()
    broken.metrics["x"] = object()
    with pytest.raises(TypeError):
        record.write(path, broken)
    assert record.read(path) == full_record() and only_file(path)


def test_a_name_that_is_taken_by_a_folder_fails_without_leftovers(path: Path) -> None:
    path.mkdir()
    with pytest.raises(OSError):
        record.write_atomic(path, "text")
    assert only_file(path)


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        record.write(tmp_path / "nowhere" / "record.json", full_record())


def test_a_reader_sees_the_old_or_the_new_file_and_never_a_part(path: Path) -> None:
    texts = ["a" * 100_000, "b" * 50_000]
    record.write_atomic(path, texts[0])
    done = threading.Event()

    def write() -> None:
        for turn in range(60):
            record.write_atomic(path, texts[turn % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(path.read_text())
    writer.join()
    assert seen <= set(texts)
    assert only_file(path)


# ------------------------------------------------------------------ reading


def minimal(**changes: Any) -> str:
    values: dict[str, Any] = {
        "schema_version": 1,
        "name": "matrix",
        "fingerprint": "00",
        "status": "completed",
        "cell": {},
        "overrides": [],
        "config": {},
    }
    return json.dumps({**values, **changes})


def refusal(path: Path) -> str:
    with pytest.raises(RecordError) as caught:
        record.read(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_the_minimal_record_is_accepted_with_defaults(path: Path) -> None:
    path.write_text(minimal())
    found = record.read(path)
    assert found.status == "completed" and found.metrics == {} and found.error is None


def test_fields_of_a_later_minor_version_are_ignored(path: Path) -> None:
    path.write_text(minimal(colour="red", metrics={"carbon_g": 1.0}))
    found = record.read(path)
    assert not hasattr(found, "colour")
    assert found.metrics == {"carbon_g": 1.0}  # the maps stay open


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a record"),
        (b"   \n", "not a record"),
        (b"garbage", "not a record"),
        (b"\xff\xfe\x00binary", "not a record"),
        (b"\xef\xbb\xbf{}", "not a record"),
        (b"[]", "no JSON object"),
        (b"3", "no JSON object"),
        (b"null", "no JSON object"),
        (b"{}", "schema_version"),
        (b'{"schema_version": "1"}', "schema_version"),
        (b'{"schema_version": true}', "schema_version"),
        (b'{"schema_version": null}', "schema_version"),
        (b"[" * 200_000, "not a record"),
        (b'{"a":' * 100_000, "not a record"),
        (b'{"schema_version": ' + b"9" * 10_000 + b"}", "not a record"),
        (minimal().replace("{}", '{"x": NaN}', 1).encode(), "NaN"),
        (minimal().replace("{}", '{"x": -Infinity}', 1).encode(), "Infinity"),
        (minimal(schema_version=2).encode(), "schema version 2, this program reads up to 1"),
        (minimal(status="finished").encode(), "unknown status 'finished'"),
        (minimal(epochs=[1, 2]).encode(), "'epochs' must hold objects"),
        (minimal(segments=[None]).encode(), "'segments' must hold objects"),
    ],
)
def test_what_is_no_record_is_refused_with_path_and_reason(
    path: Path, content: bytes, words: str
) -> None:
    path.write_bytes(content)
    assert words in refusal(path)


@pytest.mark.parametrize("field", ["name", "fingerprint", "status", "cell", "overrides", "config"])
def test_a_missing_field_is_named(path: Path, field: str) -> None:
    values = json.loads(minimal())
    del values[field]
    path.write_text(json.dumps(values))
    assert repr(field) in refusal(path)


WRONG = {str: [3, None, [], {}, True], dict: [3, None, [], "x", True], list: [3, None, {}, "x"]}
FIELD_KINDS = {
    **dict.fromkeys(("name", "fingerprint", "status"), str),
    **dict.fromkeys(("cell", "config", "effective", "metrics", "environment"), dict),
    **dict.fromkeys(("overrides", "epochs", "segments", "notes"), list),
}


@pytest.mark.parametrize("field", sorted(FIELD_KINDS))
def test_a_field_of_another_type_is_refused_by_name(path: Path, field: str) -> None:
    for value in WRONG[FIELD_KINDS[field]]:
        path.write_text(minimal(**{field: value}))
        assert repr(field) in refusal(path)


def test_an_error_is_an_object_or_null(path: Path) -> None:
    path.write_text(minimal(error=None))
    assert record.read(path).error is None
    path.write_text(minimal(error={"type": "X"}))
    assert record.read(path).error == {"type": "X"}
    for value in ("text", 3, [], False):
        path.write_text(minimal(error=value))
        assert "'error'" in refusal(path)


def test_a_number_too_large_for_a_float_does_not_become_infinity(path: Path) -> None:
    path.write_text(minimal(metrics={"images_per_s": 0}).replace(": 0}", ": 1e999}"))
    try:
        value = record.read(path).metrics["images_per_s"]
    except RecordError:
        return
    assert value is None or math.isfinite(value)


def test_what_is_nested_deeper_than_any_record_is_refused(path: Path) -> None:
    def nested(levels: int) -> dict[str, Any]:
        return {"x": nested(levels - 1)} if levels else {}

    many = [{"epoch": n} for n in range(record.MAX_DEPTH)]  # brackets are not depth
    path.write_text(minimal(epochs=many))
    assert len(record.read(path).epochs) == len(many)
    path.write_text(minimal(epochs=[{"x": [nested(record.MAX_DEPTH - 5)]}]))
    assert record.read(path).epochs
    path.write_text(minimal(epochs=[{"x": [nested(record.MAX_DEPTH)]}]))
    assert "nested more than 100 deep" in refusal(path)


def test_values_are_those_that_the_json_module_reads(path: Path) -> None:
    noise = random.Random(2)

    def value(levels: int) -> Any:
        kinds: list[Any] = [
            noise.uniform(-1, 1) * 10.0 ** noise.randrange(-300, 300),
            noise.randrange(-(2**63), 2**64),
            noise.choice([True, False, None, 0.0, -0.0, 5e-324, 1.7976931348623157e308]),
            "".join(chr(noise.choice([noise.randrange(0x300), 0xD800, 0x1F600])) for _ in "abc"),
        ]
        if levels:
            kinds.append([value(levels - 1) for _ in range(noise.randrange(4))])
            kinds.append({str(n): value(levels - 1) for n in range(noise.randrange(4))})
        return noise.choice(kinds)

    for n in range(500):
        text = json.dumps(value(4), ensure_ascii=n % 2 == 0)
        content = text.encode("utf-8", "surrogatepass")
        try:
            expected = strict(content.decode("utf-8"))
        except UnicodeDecodeError:
            with pytest.raises(UnicodeDecodeError):
                record.parse(content)
            continue
        assert repr(record.parse(content)) == repr(expected)


def test_a_missing_file_and_a_folder_in_its_place_are_named(path: Path) -> None:
    assert "No such file" in refusal(path)
    path.mkdir()
    assert "directory" in refusal(path)


def test_a_huge_file_is_refused_without_reading_it(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)  # sparse
    assert "larger than 64 MiB" in refusal(path)


def test_a_record_cut_anywhere_is_refused_and_nothing_else_is_raised(path: Path) -> None:
    record.write(path, full_record())
    content = path.read_bytes()
    for length in range(len(content.rstrip()) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(RecordError):
            record.read(path)


def test_a_record_with_any_byte_changed_is_read_or_refused(path: Path) -> None:
    record.write(path, full_record())
    content = path.read_bytes()
    outcomes = {"read": 0, "refused": 0}
    noise = random.Random(0)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= noise.randrange(1, 256)
        path.write_bytes(changed)
        try:
            assert isinstance(record.read(path), Record)
            outcomes["read"] += 1
        except RecordError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50


def test_reading_if_there_is_none_only_where_there_is_no_file(path: Path) -> None:
    assert record.read_if_there(path) is None
    path.write_text("")
    with pytest.raises(RecordError):
        record.read_if_there(path)
    record.write(path, full_record())
    assert record.read_if_there(path) == full_record()


# ------------------------------------------------------------------ the rest


def test_the_records_of_a_sweep_are_found_in_order_and_nothing_deeper(tmp_path: Path) -> None:
    for name in ("b-cell", "a-cell", "c-cell"):
        (tmp_path / name / "deeper").mkdir(parents=True)
        (tmp_path / name / "deeper" / "record.json").touch()
    (tmp_path / "b-cell" / "record.json").touch()
    (tmp_path / "a-cell" / "record.json").touch()
    (tmp_path / "tables").mkdir()
    found = record.find(tmp_path)
    assert found == [tmp_path / "a-cell" / "record.json", tmp_path / "b-cell" / "record.json"]


def test_a_single_run_directory_is_a_sweep_of_one(tmp_path: Path) -> None:
    (tmp_path / "record.json").touch()
    assert record.find(tmp_path) == [tmp_path / "record.json"]


def test_a_folder_without_runs_and_no_folder_have_none(tmp_path: Path) -> None:
    assert record.find(tmp_path) == []
    assert record.find(tmp_path / "nowhere") == []


def test_every_status_says_what_the_same_command_does_again() -> None:
    groups = [record.RESUMED_AGAIN, record.STARTED_AGAIN, record.KEPT]
    assert sorted(s for group in groups for s in group) == sorted(record.STATUSES)
    assert {"completed", "diverged"} == record.KEPT
    assert {"pending", "oom", "invalid"} == record.STARTED_AGAIN
    assert {"running", "interrupted", "timeout", "failed"} == record.RESUMED_AGAIN


def test_a_nested_config_is_flattened_by_dotted_names() -> None:
    nested = {"seed": 1, "data": {"name": "x", "deeper": {"y": [1, 2]}}, "empty": {}}
    assert record.flatten(nested) == {"seed": 1, "data.name": "x", "data.deeper.y": [1, 2]}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.00 s"),
        (0.424, "0.42 s"),
        (0.994, "0.99 s"),
        (0.996, "1.0 s"),
        (6.24, "6.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1 m 00 s"),
        (60, "1 m 00 s"),
        (65, "1 m 05 s"),
        (119.6, "2 m 00 s"),
        (1342, "22 m 22 s"),
        (3599.4, "59 m 59 s"),
        (3599.6, "1 h 00 m 00 s"),
        (7384, "2 h 03 m 04 s"),
        (360_000, "100 h 00 m 00 s"),
    ],
)
def test_a_duration_is_said_as_a_person_says_it(seconds: float, words: str) -> None:
    assert record.duration(seconds) == words


def test_a_duration_never_says_sixty_and_is_off_by_half_a_second_at_most() -> None:
    noise = random.Random(1)
    for _ in range(2000):
        seconds = 10 ** noise.uniform(-2, 5)
        words = record.duration(seconds)
        parts = {unit: float(number) for number, unit in re.findall(r"([\d.]+) ([hms])", words)}
        assert parts["s"] < 60 and parts.get("m", 0) < 60, words
        said = parts.get("h", 0) * 3600 + parts.get("m", 0) * 60 + parts["s"]
        allowed = 0.5 if "m" in parts else 0.051
        assert abs(said - seconds) <= allowed, (seconds, words)


def test_a_records_fields_are_those_of_the_design() -> None:
    assert {item.name for item in dataclasses.fields(Record)} == {
        *("name", "fingerprint", "status", "cell", "overrides", "config", "effective", "metrics"),
        *("epochs", "environment", "segments", "notes", "error", "schema_version"),
    }


@pytest.mark.parametrize("what", ["fifo", "device"])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path, what: str) -> None:
    path = tmp_path / "record.json"
    if what == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(record.RecordError, match="not a regular file"):
        record.read(path)


@pytest.mark.parametrize("what", ["fifo", "device", "folder", "too large", "nothing"])
def test_only_regular_files_are_read_and_nobody_waits(tmp_path: Path, what: str) -> None:
    path = tmp_path / "file"
    if what == "fifo":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "folder":
        path.mkdir()
    elif what == "too large":
        path.write_bytes(b"123456789")
    with pytest.raises(OSError) as caught:
        record.read_regular(path, max_bytes=8)
    assert caught.value.filename == str(path) or caught.value.filename == path
    assert record.read_object(path) is None


def test_a_regular_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345678")
    assert record.read_regular(path, max_bytes=8) == b"12345678"
    with path.open("wb") as file:
        file.truncate(record.MAX_BYTES + 1)
    assert len(record.read_regular(path, max_bytes=None)) == record.MAX_BYTES + 1
    with pytest.raises(OSError, match="larger than 64 MiB"):
        record.read_regular(path)


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", "\x00", "[" * 100_000])
def test_a_small_file_without_an_object_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    assert record.read_object(path) is None
    path.write_text('{"train_loss": NaN}')
    values = record.read_object(path)
    assert values is not None and math.isnan(values["train_loss"])


def test_a_record_that_cannot_be_looked_for_is_not_one_that_is_not_there(tmp_path: Path) -> None:
    assert record.read_if_there(tmp_path / "record.json") is None
    file = tmp_path / "file"
    file.touch()
    assert record.read_if_there(file / "record.json") is None
    with pytest.raises(record.RecordError, match="too long"):
        record.read_if_there(tmp_path / ("x" * 300) / "record.json")
