"""The code that runs: what it hashes to, and a copy of it as it was. No torch here."""

import hashlib
import importlib.util
import shutil
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
# Never part of a copy.
NOT_CODE = shutil.ignore_patterns("__pycache__", ".*")


def _own_module(name: str) -> Path | None:
    """The file, or the package's folder, of the module in `package.module:callable`."""
    top = name.partition(":")[0].split(".")[0]
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if found is None or found.origin is None:
        return None
    path = Path(found.origin)
    return path.parent if path.name == "__init__.py" else path


def _files(names: Iterable[str]) -> dict[str, Path]:
    roots = [PACKAGE, *filter(None, (_own_module(name) for name in names))]
    files = {}
    for root in roots:
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            files[str(path)] = path
    return files


def hashes(own: Iterable[str]) -> dict[str, str]:
    """SHA-256 by path of our files, and of those that the callables `own` are defined in."""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in _files(own).items()
    }


def changed(before: dict[str, str]) -> list[str]:
    """The files whose content is not what it was in `before`, those that are gone among them."""
    names = []
    for name, digest in before.items():
        try:
            now = hashlib.sha256(Path(name).read_bytes()).hexdigest()
        except OSError:
            now = None
        if now != digest:
            names.append(name)
    return names


def snapshot(own: Iterable[str], folder: Path) -> Path:
    """Copy the code into `folder` under its hash, once; the folder to put on the path."""
    names = list(own)
    digest = hashlib.sha256()
    for name, value in sorted(hashes(names).items()):
        digest.update(f"{name} {value}\n".encode())
    target = folder / digest.hexdigest()[:12]
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{target.name}.tmp"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(PACKAGE, partial / PACKAGE.name, ignore=NOT_CODE)
    for name in names:
        path = _own_module(name)
        if path is None or PACKAGE in path.parents or "site-packages" in path.parts:
            continue
        if path.is_dir():
            shutil.copytree(path, partial / path.name, ignore=NOT_CODE, dirs_exist_ok=True)
        else:
            shutil.copy2(path, partial / path.name)
    partial.rename(target)
    return target
