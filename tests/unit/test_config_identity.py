"""What makes a run what it is: normalisation, fingerprint, directory, and the file in between."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from amp_sweep import config, record
from amp_sweep.config import RunConfig

Make = Callable[..., RunConfig]

# Of the bare cell. When this changes, every finished run loses its directory: a new field
# belongs into record.ADDED_LATER, and only a change of meaning may change the number.
GOLDEN = "3814ac730d5e9a08f217d89cb20c8ee200d595c5957b4541f993b0b7501b4658"

# DESIGN section 5: "nothing that does not change the result (log settings, name, launcher)".
NO_PART = {
    *("name", "experiment", "outputs", "force", "plan", "track.name", "track.every_steps"),
    *("checkpoint.every_steps", "checkpoint.every_epoch", "checkpoint.min_interval_s"),
    *("launch.on_error", "launch.stall_timeout_s", "launch.wait", "launch.snapshot"),
}
# DESIGN section 5: "a field added in a later version stays out of the hash while it has its
# default".
LATER = {
    "data.decode": "host",
    "parallel.find_unused_parameters": False,
    "memory.compile": "off",
    "memory.cuda_graph": False,
    "memory.space_to_depth": False,
    "memory.master_weights": False,
    "memory.keep_threads": False,
}

FIELDS = list(record.flatten(config.to_dict(RunConfig())))


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return "other" if isinstance(value, str) else 7


def with_value(cell: RunConfig, name: str, value: Any) -> RunConfig:
    values = config.to_dict(cell)
    section, _, field = name.rpartition(".")
    (values[section] if section else values)[field] = value
    return config.normalise(config.from_dict(values))


def test_the_bare_cell_has_the_fingerprint_it_always_had(make: Make) -> None:
    assert config.fingerprint(make()) == GOLDEN
    assert config.cell_dir(make()) == f"none-fp32-s0-{GOLDEN[:8]}"


def test_the_fingerprint_is_the_hash_of_the_sorted_identity(make: Make) -> None:
    flat = {
        f"{section}.{name}" if section else name: value
        for section, part in [("", config.to_dict(make()))]
        for name, value in part.items()
        if not isinstance(value, dict)
    }
    for section, part in config.to_dict(make()).items():
        if isinstance(part, dict):
            flat |= {f"{section}.{name}": value for name, value in part.items()}
    kept = {
        k: v
        for k, v in flat.items()
        if k not in NO_PART and k != "data.root" and not k.startswith("measure.")
    }
    kept = {k: v for k, v in kept.items() if not (k in LATER and v == LATER[k])}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    assert config.fingerprint(make()) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("name", FIELDS)
def test_the_fingerprint_covers_exactly_what_changes_the_result(make: Make, name: str) -> None:
    # ddp, where the number of devices means something, and a folder, whose path does.
    cell = make(
        parallel__name="ddp",
        precision__autocast=True,
        data__name="imagefolder",
        data__root="/images",
    )
    value = record.flatten(config.to_dict(cell))[name]
    changed = with_value(cell, name, other(value))
    assert config.to_dict(changed) != config.to_dict(cell)
    same = config.fingerprint(changed) == config.fingerprint(cell)
    assert same == (name in NO_PART or name.startswith("measure."))


@pytest.mark.parametrize(
    ("data", "covered"),
    [
        ("digits", False),
        ("cifar10", False),
        ("synthetic", False),
        ("imagefolder", True),
        ("my.package:images", True),
    ],
)
def test_the_folder_counts_where_it_defines_the_content(
    make: Make, data: str, covered: bool
) -> None:
    one = config.fingerprint(make(data__name=data, data__root="/one"))
    two = config.fingerprint(make(data__name=data, data__root="/two"))
    assert (one != two) == covered


def test_a_setting_that_a_parallelism_does_not_have_is_no_part_of_it(make: Make) -> None:
    def same(name: str, **changes: Any) -> bool:
        asked = make(parallel__name=name, **changes)
        return config.fingerprint(asked) == config.fingerprint(make(parallel__name=name))

    # none is one device, whatever stands beside the axis of parallelisms.
    settings = ({"parallel__devices": 2}, {"parallel__backend": "gloo"},
                {"parallel__sync_batch_norm": True},
                {"parallel__find_unused_parameters": True})  # fmt: skip
    assert [same("none", **changes) for changes in settings] == [True, True, True, True]
    assert [same("dp", **changes) for changes in settings] == [False, True, True, True]
    assert [same("ddp", **changes) for changes in settings] == [False, False, False, False]


def test_auto_stays_auto_and_is_not_the_value_it_stands_for(make: Make) -> None:
    assert config.fingerprint(make(model__outputs=10)) != config.fingerprint(make())
    assert config.fingerprint(make(device="cpu")) != config.fingerprint(make())


def test_every_cell_of_the_matrix_and_every_seed_has_its_own_directory(make: Make) -> None:
    cells = [
        make(parallel__name=parallel, precision__name=precision, precision__autocast=auto, seed=s)
        for parallel in ("none", "dp", "ddp")
        for precision, auto in (("fp32", False), ("autocast", True))
        for s in range(3)
    ]
    assert len({config.cell_dir(cell) for cell in cells}) == len(cells) == 18


def test_a_field_added_later_stays_out_while_it_has_its_default(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(field: str) -> str:
        flat = record.identity(record.flatten(config.to_dict(make())))
        del flat[field]
        text = json.dumps(flat, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    before_the_field = without("data.shuffle")
    assert config.fingerprint(make()) != before_the_field
    monkeypatch.setitem(record.ADDED_LATER, "data.shuffle", True)
    assert config.fingerprint(make()) == before_the_field
    assert config.fingerprint(make(data__shuffle=False)) != before_the_field


def test_a_default_that_was_added_later_names_a_field_that_exists() -> None:
    assert set(record.ADDED_LATER) <= set(FIELDS)


def test_an_older_runs_file_without_a_newer_field_is_the_same_run(make: Make) -> None:
    values = config.to_dict(make())
    del values["data"]["shuffle"], values["measure"]
    assert config.from_dict(values) == make()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"model__width": None}, {"model__width": 1.0}),
        ({"model__name": "resnet18", "model__width": 0.5}, {"model__name": "resnet18"}),
        ({"data__root": "/a/b"}, {"data__root": "/a/b/"}),
    ],
)
def test_one_meaning_has_one_spelling(make: Make, one: Any, two: Any) -> None:
    assert make(**one) == make(**two)


def test_a_folder_is_absolute_and_knows_home(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert make(data__root="images").data.root == str(tmp_path / "images")
    assert make(data__root="~/images").data.root == "/home/someone/images"
    assert make().data.root is None


def test_normalising_twice_changes_nothing(make: Make) -> None:
    for changes in ({}, {"model__name": "resnet18"}, {"parallel__name": "ddp", "data__root": "x"}):
        cell = make(**changes)
        assert config.normalise(cell) == cell


def test_a_run_directory_is_absolute_under_outputs_and_name(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    cell = make(name="night")
    assert config.run_dir(cell) == tmp_path / "outputs" / "night" / config.cell_dir(cell)
    assert config.run_dir(make(outputs="/big/disk", name="x")).parent == Path("/big/disk/x")


def test_the_directory_name_is_made_of_harmless_characters(make: Make) -> None:
    cell = make(precision__name="my, own/[precision] ../x", seed=12)
    assert re.fullmatch(r"none-[A-Za-z0-9_]+-s12-[0-9a-f]{8}", config.cell_dir(cell))


def test_a_saved_config_is_read_back_equal(make: Make, tmp_path: Path) -> None:
    cells = [
        make(),
        make(optimizer__lr=1e-05, optimizer__clip_norm=0.1 + 0.2, guard__min_scale=2.0**-40),
        make(parallel__name="ddp", parallel__devices=3, data__root="/ä ö/[x], y: #z"),
        make(name="null", data__root="true", model__outputs=1000, launch__wait=False),
    ]
    for cell in cells:
        config.save(cell, tmp_path / "config.yaml")
        again = config.load(tmp_path / "config.yaml")
        assert again == cell
        assert config.fingerprint(again) == config.fingerprint(cell)
        assert yaml.safe_load((tmp_path / "config.yaml").read_text("utf-8"))["epochs"] == 10


def test_nested_plain_values_are_a_config_again(make: Make) -> None:
    cell = make(parallel__name="ddp", checkpoint__every_steps=5)
    assert config.from_dict(json.loads(json.dumps(config.to_dict(cell)))) == cell


@pytest.mark.parametrize(
    ("text", "words"),
    [("colour: red", "colour"), ("data: {batchsize: 3}", "batchsize"), ("data: nonsense", "Data")],
)
def test_an_unknown_key_in_a_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=words):
        config.load(tmp_path / "config.yaml")


@pytest.mark.parametrize("text", ["", "3", "[1, 2]", "just words", "data: 3", "{broken", "\x00"])
def test_a_file_that_is_no_config_is_refused_as_the_docstring_says(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises((OSError, yaml.YAMLError, ValueError)):
        config.load(tmp_path / "config.yaml")


def test_a_resolved_config_cannot_be_changed(make: Make) -> None:
    for cell in (make(), make().data, make().optimizer):
        with pytest.raises(dataclasses.FrozenInstanceError):
            cell.name = "other"


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("package.module:callable", True),
        ("module:Holder.make", True),
        ("resnet18", False),
        ("package.module", False),
        (":x", False),
        ("x:", False),
        ("a:b:c", False),
        ("a b:c", False),
        ("", False),
    ],
)
def test_an_own_callable_is_recognised_by_its_colon(name: str, own: bool) -> None:
    assert config.is_own_callable(name) == own


def test_a_working_directory_that_was_deleted_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(SystemExit, match="error: the working directory was deleted"):
        config.find_own_code()
