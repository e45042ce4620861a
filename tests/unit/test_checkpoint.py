"""Training state on disk: what comes back, what is refused, and what a failure leaves."""

import collections
import os
import resource
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from amp_sweep import checkpoint
from amp_sweep.checkpoint import CheckpointError

OWN = "f" * 64


def state(value: float = 1.0) -> dict[str, Any]:
    """What a run saves, in small."""
    return {
        "fingerprint": OWN,
        "weights": {"a": torch.arange(6.0) * value, "b": torch.ones(2, dtype=torch.bfloat16)},
        "generators": [{"cpu": torch.get_rng_state()[:16].clone(), "cuda": []}],
        "progress": {"epoch": 3, "losses": [0.1 + 0.2, 1e-300], "best": None, "scale": 65536.0},
    }


def equal(one: Any, two: Any) -> bool:
    """Equality down to dtypes and bits."""
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return (
            isinstance(two, dict)
            and one.keys() == two.keys()
            and all(equal(one[key], two[key]) for key in one)
        )
    if isinstance(one, list):
        return (
            isinstance(two, list)
            and len(one) == len(two)
            and all(equal(a, b) for a, b in zip(one, two, strict=True))
        )
    return type(one) is type(two) and bool(one == two)


def without_version(loaded: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in loaded.items() if key != "format_version"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "last.pt"


def names(path: Path) -> set[str]:
    return {item.name for item in path.parent.iterdir()}


# ------------------------------------------------------------------ there and back


def test_what_is_saved_comes_back_bit_for_bit(path: Path) -> None:
    saved = state()
    checkpoint.save(path, saved)
    assert equal(without_version(checkpoint.load(path, OWN)), saved)
    assert names(path) == {"last.pt"}


def test_optimizer_scheduler_and_scaler_state_come_back(path: Path) -> None:
    network = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(network(torch.ones(1, 3)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step(1.5)
    parts = {"o": optimizer, "s": scheduler, "g": scaler}
    saved = {"fingerprint": OWN, **{name: part.state_dict() for name, part in parts.items()}}
    checkpoint.save(path, saved)
    assert equal(without_version(checkpoint.load(path, OWN)), saved)


def test_the_file_before_becomes_the_previous_one(path: Path) -> None:
    previous = path.with_name("previous.pt")
    for value in (1.0, 2.0, 3.0):
        checkpoint.save(path, state(value), previous)
    assert equal(without_version(checkpoint.load(path, OWN)), state(3.0))
    assert equal(without_version(checkpoint.load(previous, OWN)), state(2.0))
    assert names(path) == {"last.pt", "previous.pt"}


def test_a_file_is_replaced_where_no_previous_one_is_asked_for(path: Path) -> None:
    checkpoint.save(path, state(1.0))
    checkpoint.save(path, state(2.0))
    assert equal(without_version(checkpoint.load(path, OWN)), state(2.0))
    assert names(path) == {"last.pt"}


# ------------------------------------------------------------------ a save that fails


def kept_as_they_were(path: Path, previous: Path) -> None:
    assert equal(without_version(checkpoint.load(path, OWN)), state(2.0))
    assert equal(without_version(checkpoint.load(previous, OWN)), state(1.0))
    assert names(path) == {"last.pt", "previous.pt"}


@pytest.fixture
def two(path: Path) -> Path:
    """The previous checkpoint; the last one is at `path`."""
    previous = path.with_name("previous.pt")
    checkpoint.save(path, state(1.0), previous)
    checkpoint.save(path, state(2.0), previous)
    return previous


def test_what_cannot_be_saved_leaves_the_old_ones(path: Path, two: Path) -> None:
    with pytest.raises(Exception, match="pickle"):
        checkpoint.save(path, {**state(3.0), "bad": lambda: None}, two)
    kept_as_they_were(path, two)


def test_what_was_written_wrongly_leaves_the_old_ones(
    path: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = torch.save

    def cut(saved: Any, file: Any) -> None:
        whole(saved, file)
        file.truncate(file.tell() // 2)

    monkeypatch.setattr(torch, "save", cut)
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.save(path, state(3.0), two)
    monkeypatch.undo()
    kept_as_they_were(path, two)


def test_a_new_file_is_on_the_disk_before_it_takes_the_place_of_an_old_one(
    path: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, sizes = path.read_bytes(), []

    def fsync(file: int) -> None:
        assert path.read_bytes() == old
        sizes.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint.save(path, state(3.0), two)
    assert sizes == [path.stat().st_size]


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 100 kB: what a full disk looks like to a writer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_ones_and_is_called_by_its_name(
    path: Path, two: Path, small_files: None
) -> None:
    large = {**state(3.0), "large": torch.zeros(100_000)}
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoint.save(path, large, two)
    finally:
        kept_as_they_were(path, two)


# ------------------------------------------------------------------ damage


def test_every_changed_bit_is_noticed_or_harmless(path: Path, tmp_path: Path) -> None:
    """A bit flipped anywhere: the state comes back as it was, or CheckpointError is raised."""
    small = {"fingerprint": OWN, "weights": {"a": torch.arange(6.0)}}
    checkpoint.save(path, small)
    content = path.read_bytes()
    damaged = tmp_path / "damaged.pt"
    outcomes: collections.Counter[str] = collections.Counter()
    for position in range(len(content)):
        # 0x10 marks a folder where a part's attributes are, 0x01 an encrypted part.
        for mask in (0x01, 0x10, 0xFF):
            changed = bytearray(content)
            changed[position] ^= mask
            damaged.write_bytes(changed)
            try:
                back = without_version(checkpoint.load(damaged, OWN))
                outcomes["harmless" if equal(back, small) else "OTHER STATE"] += 1
            except CheckpointError as error:
                assert str(damaged) in str(error)
                outcomes["noticed"] += 1
            except Exception as error:
                outcomes[type(error).__name__] += 1
    assert outcomes["noticed"] > 100 and outcomes["harmless"] > 100  # padding, time stamps
    assert set(outcomes) == {"noticed", "harmless"}, outcomes


def test_a_byte_changed_in_the_middle_of_the_weights_is_noticed(path: Path) -> None:
    checkpoint.save(path, {"fingerprint": OWN, "weights": {"a": torch.zeros(10_000)}})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)
    # torch itself does not notice.
    assert torch.load(path, weights_only=True)["weights"]["a"].count_nonzero() == 1
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path, OWN)


def test_a_checkpoint_cut_anywhere_is_noticed(path: Path) -> None:
    checkpoint.save(path, {"fingerprint": OWN, "weights": {"a": torch.zeros(100)}})
    content = path.read_bytes()
    for length in [0, 1, 3, *range(10, len(content), 37), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"last\.pt"):
            checkpoint.load(path, OWN)


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 4096, b"PK\x03\x04", b"PK\x05\x06" + b"\0" * 18]
)
def test_what_is_no_checkpoint_is_refused(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"last\.pt"):
        checkpoint.load(path, OWN)


def test_other_peoples_files_are_refused(path: Path) -> None:
    path.parent.mkdir()
    for other in (
        [1, 2],
        {"fingerprint": OWN},  # no format version
        {"fingerprint": OWN, "format_version": 99},
        {"fingerprint": OWN, "format_version": "1"},
    ):
        torch.save(other, path)
        with pytest.raises(CheckpointError, match="not a checkpoint of this program"):
            checkpoint.load(path, OWN)
    torch.save({"format_version": 1}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError):
        checkpoint.load(path, OWN)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("holiday.txt", "sun")
    with pytest.raises(CheckpointError):
        checkpoint.load(path, OWN)


def test_a_missing_file_and_a_folder_are_refused(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"last\.pt"):
        checkpoint.load(path, OWN)
    path.mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"last\.pt"):
        checkpoint.load(path, OWN)


class Payload:
    """A pickle that runs a command when it is read carelessly."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_a_crafted_pickle_is_refused_and_not_run(path: Path, tmp_path: Path) -> None:
    trace = tmp_path / "was_run"
    path.parent.mkdir()
    crafted = {"format_version": 1, "fingerprint": OWN, "weights": Payload(trace)}
    torch.save(crafted, path)
    with pytest.raises(CheckpointError, match="refused"):
        checkpoint.load(path, OWN)
    assert checkpoint.load_newest([path], OWN)[0] is None
    assert not trace.exists()
    torch.load(path, weights_only=False)  # the payload is a live one
    assert trace.exists()


@pytest.mark.parametrize(
    ("version", "pickled"),
    [
        (b"x", b"\x80\x02}."),  # RuntimeError
        (b"3", b""),  # EOFError, without a word
        (b"3", b"\x80\x02cnocolon"),  # UnpicklingError, on many lines
        (b"3", b"\x80\x02X\x01\x00\x00\x00\xff."),  # UnicodeDecodeError
        (b"3", b"\x80\x02M\x00"),  # struct.error
        (b"3", b"\x80\x02."),  # IndexError
        (b"3", b"\x80\x02h\x05."),  # KeyError
        (b"3", b"\x80\x02ccollections\nOrderedDict\nK\x01\x85R."),  # TypeError
        (b"3", b"\x80\x02K\x01Q."),  # AssertionError
        (b"3", b"\x80\x02ctorch._utils\n_rebuild_parameter\n}\x89}\x87R."),  # AttributeError
    ],
)
def test_a_pickle_that_no_program_wrote_is_refused_in_a_line(
    path: Path, version: bytes, pickled: bytes
) -> None:
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:  # its checksums are right
        for name, content in {"data.pkl": pickled, "version": version + b"\n"}.items():
            archive.writestr(f"archive/{name}", content)
        for part in archive.infolist():
            part.external_attr = 0  # as torch has it
    with pytest.raises(CheckpointError, match=r"last\.pt: refused or unreadable \(.+\)\Z"):
        checkpoint.load(path, OWN)


def test_another_configurations_checkpoint_is_refused(path: Path) -> None:
    checkpoint.save(path, state())
    with pytest.raises(CheckpointError, match="another configuration"):
        checkpoint.load(path, "e" * 64)


# ------------------------------------------------------------------ the newest usable


def test_the_newest_is_taken_where_it_is_usable(path: Path, two: Path) -> None:
    found, problems = checkpoint.load_newest([path, two], OWN)
    assert found is not None and equal(without_version(found), state(2.0))
    assert problems == []


def with_bit(content: bytes, at: int, mask: int) -> bytes:
    return content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]


@pytest.mark.parametrize("damage", ["cut", "a weight", "a part's name", "empty", "foreign"])
def test_a_damaged_newest_is_named_and_the_one_before_is_taken(
    path: Path, two: Path, damage: str
) -> None:
    content = path.read_bytes()
    weights = (torch.arange(6.0) * 2.0).numpy().tobytes()
    if damage == "foreign":
        checkpoint.save(path, {**state(9.0), "fingerprint": "e" * 64})
    else:
        path.write_bytes(
            {
                "cut": content[: len(content) // 2],
                "a weight": with_bit(content, content.index(weights) + 9, 0x01),
                "a part's name": with_bit(content, content.rindex(b"data.pkl"), 0x80),
                "empty": b"",
            }[damage]
        )
    found, problems = checkpoint.load_newest([path, two], OWN)
    assert found is not None and equal(without_version(found), state(1.0))
    assert len(problems) == 1 and str(path) in problems[0]


def test_without_a_usable_one_every_problem_is_named(path: Path, two: Path) -> None:
    path.write_bytes(b"")
    two.write_bytes(b"x")
    found, problems = checkpoint.load_newest([path, two], OWN)
    assert found is None
    assert [str(path) in problems[0], str(two) in problems[1]] == [True, True]


def test_a_file_that_is_not_there_is_no_problem(path: Path, two: Path) -> None:
    path.unlink()  # as after a crash between the two renames
    found, problems = checkpoint.load_newest([path, two], OWN)
    assert found is not None and equal(without_version(found), state(1.0))
    assert problems == []
    two.unlink()
    assert checkpoint.load_newest([path, two], OWN) == (None, [])


# ------------------------------------------------------------------ under any wrapping


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone, without a network."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrapped(kind: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    if kind == "dp":
        return DataParallel(network)
    return DistributedDataParallel(network) if kind == "ddp" else network


@pytest.mark.parametrize("target", ["none", "dp", "ddp"])
@pytest.mark.parametrize("source", ["none", "dp", "ddp"])
def test_weights_load_under_any_parallelism(
    path: Path, group: None, source: str, target: str
) -> None:
    one, two = wrapped(source, 1), wrapped(target, 2)
    images = torch.rand(5, 3)

    def answers(module: nn.Module) -> torch.Tensor:
        return module.module(images) if hasattr(module, "module") else module(images)

    assert not torch.equal(answers(one.eval()), answers(two.eval()))
    weights = checkpoint.unwrap(one).state_dict()
    assert not any(name.startswith("module.") for name in weights)
    checkpoint.save(path, {"fingerprint": OWN, "weights": weights})
    checkpoint.unwrap(two).load_state_dict(checkpoint.load(path, OWN)["weights"])
    assert torch.equal(answers(one), answers(two))


def test_unwrapping_reaches_the_innermost_module() -> None:
    network = nn.Linear(1, 1)
    assert checkpoint.unwrap(network) is network
    assert checkpoint.unwrap(DataParallel(DataParallel(network))) is network
