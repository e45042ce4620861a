"""The code that runs: what it hashes to, and a copy of it as it was. No torch here."""

import hashlib
import importlib.util
import shutil
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from amp_sweep import config
from amp_sweep.config import RunConfig

PACKAGE = Path(__file__).resolve().parent
# Never part of a copy.
NOT_CODE = shutil.ignore_patterns("__pycache__", ".*")


def own_callables(settings: RunConfig) -> list[str]:
    """Those of a run's network and data set that are a person's own: `package.module:callable`."""
    names = (settings.model.name, settings.data.name)
    return [name for name in names if config.is_own_callable(name)]


def _top(name: str) -> ModuleSpec | None:
    """Where the outermost package of `package.module:callable` is; nothing is imported."""
    try:
        return importlib.util.find_spec(name.partition(":")[0].split(".")[0])
    except (ImportError, ValueError):
        return None


def _place(found: ModuleSpec | None) -> Path | None:
    """The file of a module, the folder of a package; None without a file, as of Python's own."""
    if found is None or not found.has_location or found.origin is None:
        return None
    path = Path(found.origin)
    return path.parent if path.name == "__init__.py" else path


def _own_module(name: str) -> Path | None:
    """The file, or the package's folder, of the module in `package.module:callable`."""
    return _place(_top(name))


def _defined_in(name: str) -> Path | None:
    """As `_own_module`; where its outermost folders have no `__init__.py`, what is inside them."""
    found = _top(name)
    for part in name.partition(":")[0].split(".")[1:]:
        if found is None or found.origin is not None:
            break
        # By its last name alone: by the whole one it would have to be imported.
        found = PathFinder.find_spec(part, list(found.submodule_search_locations or ()))
    return _place(found)


def code_digest(own: Iterable[str]) -> str | None:
    """SHA-256, in hex, of the files that the callables `own` are defined in; nothing is imported.

    Of a package all of its modules count, of a single module its file and none that it imports.
    A copy in another folder has the same digest. None without callables, or where the file of one
    is not found.
    """
    roots = {name: _defined_in(name) for name in own}
    digests = set()
    try:
        for root in roots.values():
            if root is None:
                return None
            for path in root.rglob("*.py") if root.is_dir() else [root]:
                inside = path.relative_to(root.parent)
                if not any(part.startswith(".") for part in inside.parts):
                    content = hashlib.sha256(path.read_bytes()).hexdigest()
                    digests.add(f"{inside.as_posix()} {content}\n")
    except OSError:
        return None
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest() if roots else None


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
