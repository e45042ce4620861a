"""What the code of a person's own hashes to, and where that is said of cells that are done."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amp_sweep import cells, launch, record, source
from amp_sweep.cells import Cell
from amp_sweep.config import RunConfig
from amp_sweep.paths import RunPaths
from amp_sweep.screen import Screen

Make = Callable[..., RunConfig]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on Python's path, the working directory too."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "file", "beside"),
    [
        ("digest_one:Net", "digest_one.py", "digest_other.py"),
        ("digest_two:Net", "digest_two/__init__.py", "digest_two/notes.txt"),
        ("digest_three.net:Net", "digest_three/layers/a.py", "digest_three/.hidden/a.py"),
        ("digest_four.deep.net:Net", "digest_four/deep/net.py", "digest_four/deep/images.py"),
    ],
)
def test_a_digest_is_that_of_the_files_of_ones_own_module(
    folder: Path, name: str, file: str, beside: str
) -> None:
    for path in (file, beside):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("raise SystemExit('imported')\n")
    if name.startswith("digest_three"):
        (folder / "digest_three" / "__init__.py").touch()
    first = source.code_digest([name])
    assert first is not None and len(first) == 64
    (folder / beside).write_text("other")
    assert source.code_digest([name]) == first
    (folder / file).write_text("other")
    assert source.code_digest([name]) not in (first, None)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("net", "imports", "beside"),
    [
        ("net", "import digest_blocks", "digest_blocks.py"),
        ("net", "def late():\n    import digest_blocks as b, os", "digest_blocks.py"),
        ("net", "from digest_pack.inner import Block", "digest_pack/other.py"),
        ("net", "from digest_spread import blocks", "digest_spread/blocks.py"),
        ("net", "import digest_spread.deep.blocks", "digest_spread/deep/blocks.py"),
        ("net", "import digest_between", "digest_last.py"),
        ("digest_pack.net", "import digest_blocks", "digest_blocks.py"),
        ("digest_spread.net", "from . import blocks", "digest_spread/blocks.py"),
        ("digest_spread.deep.net", "from ..blocks import Block", "digest_spread/blocks.py"),
    ],
)
def test_what_ones_own_module_imports_from_beside_it_counts_too(
    folder: Path, net: str, imports: str, beside: str
) -> None:
    name = f"{net}:Net"
    write(folder, {"digest_pack/__init__.py": "", "digest_between.py": "import digest_last"})
    write(folder, {f"{net.replace('.', '/')}.py": imports, beside: "a = 1\n"})
    first = source.code_digest([name])
    copy = source.snapshot([name], folder / "copies")
    assert (copy / beside).read_text() == "a = 1\n"
    write(folder, {"digest_unused.py": "a = 1\n"})
    assert source.code_digest([name]) == first
    write(folder, {beside: "a = 2\n"})
    assert source.code_digest([name]) not in (first, None)
    assert source.snapshot([name], folder / "copies") != copy


def test_what_is_installed_and_what_is_ours_is_not_ones_own_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = folder / ".venv" / "site-packages"
    write(installed, {"digest_installed.py": "", "digest_too.py": ""})
    monkeypatch.syspath_prepend(installed)
    text = "import json, torch, digest_installed, amp_sweep.models\nfrom amp_sweep import fast\n"
    # An invalid escape is a warning, and code that cannot be parsed is no reason to fail here.
    write(folder, {"net.py": text + "'\\d'\nimport digest_broken\n", "digest_broken.py": "def"})
    ours = set(source.hashes([]))
    theirs = {folder / "net.py", folder / "digest_broken.py"}
    assert set(source.hashes(["net:Net"])) - ours == {str(path) for path in theirs}
    write(installed, {"digest_installed.py": "import digest_too"})
    named = set(source.hashes(["digest_installed:Net"])) - ours
    assert named == {str(installed / "digest_installed.py")}
    copy = source.snapshot(["digest_installed:Net"], folder / "copies")
    assert sorted(path.name for path in copy.iterdir()) == ["amp_sweep"]


def test_a_copy_of_the_code_elsewhere_has_the_same_digest(folder: Path) -> None:
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from amp_sweep import source
print(source.code_digest(["digest_copied.net:Net"]))
assert "digest_copied" not in sys.modules and "torch" not in sys.modules
"""
    digests = set()
    for place in ("one", "two"):
        package = folder / place / "digest_copied"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "net.py").write_text("a = 1\n")
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder / place)],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1 and digests != {"None"}


@pytest.mark.parametrize("names", [[], ["digest_of_nothing:Net"], ["builtins:dict"]])
def test_what_has_no_file_has_no_digest(names: list[str]) -> None:
    assert source.code_digest(names) is None


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [("a = 1\n", "a = 2\n", True), ("a = 1\n", "a = 1\n", False), (None, "a = 2\n", False)],
)
def test_a_cell_that_is_left_as_it_is_says_that_its_code_has_changed(
    folder: Path,
    make: Make,
    capsys: pytest.CaptureFixture[str],
    before: str | None,
    after: str,
    told: bool,
) -> None:
    (folder / "digest_skipped.py").write_text(before or "")
    cell = Cell(make(model__name="digest_skipped:Net", outputs="out"), ())
    done = launch.record_for(cell.config, [])
    done.status = record.COMPLETED
    if before is not None:
        own = source.own_callables(cell.config)
        done.effective["code_digest"] = source.code_digest(own)
    cell.root.mkdir(parents=True)
    record.write(RunPaths(cell.root).record, done)
    (folder / "digest_skipped.py").write_text(after)

    def said(show: Callable[..., Any], *values: Any) -> str:
        with Screen(1) as screen:
            show(*values, screen)
        return " ".join("".join(capsys.readouterr()).split())

    words = "the code of digest_skipped:Net has changed since"
    announced = said(cells.announce, [cell])
    assert "skipped, completed before" in announced
    assert (words in announced) == ("force=true trains it anew" in announced) == told
    assert (words in said(cells.print_plan, [cell], None)) == told
