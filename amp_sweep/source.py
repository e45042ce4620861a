"""The code that runs: what it hashes to, and a copy of it as it was. No torch here."""

import ast
import hashlib
import importlib.util
import shutil
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from amp_sweep import config
from amp_sweep.config import RunConfig

PACKAGE = Path(__file__).resolve().parent
# Never part of a copy.
NOT_CODE = shutil.ignore_patterns("__pycache__", ".*")
# Folders of what is installed: its versions say what it is, and what lies beside it is another's.
INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class _Code:
    """A module's file or a package's folder, and the folder on Python's path that it is found in.

    Where the outermost folders have no `__init__.py`, it is what is inside them.
    """

    place: Path
    base: Path

    def files(self) -> Iterator[Path]:
        """Python files, without those in hidden folders."""
        for path in self.place.rglob("*.py") if self.place.is_dir() else [self.place]:
            inside = path.relative_to(self.place.parent)
            if not any(part.startswith(".") for part in inside.parts):
                yield path

    @property
    def installed(self) -> bool:
        """Whether pip has put it there."""
        return not INSTALLED.isdisjoint(self.place.parts)


def own_callables(settings: RunConfig) -> list[str]:
    """Those of a run's network and data set that are a person's own: `package.module:callable`."""
    names = (settings.model.name, settings.data.name)
    return [name for name in names if config.is_own_callable(name)]


def _find(module: str) -> _Code | None:
    """The code of a module; nothing is imported. None without a file, as of Python's own."""
    first, *inner = module.split(".")
    try:
        found = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return None
    depth = 0
    for part in inner:
        if found is None or found.origin is not None:
            break
        # By its last name alone: by the whole one it would have to be imported.
        found = PathFinder.find_spec(part, list(found.submodule_search_locations or ()))
        depth += 1
    if found is None or not found.has_location or found.origin is None:
        return None
    path = Path(found.origin)
    place = path.parent if path.name == "__init__.py" else path
    return _Code(place, place.parents[depth])


def _find_callable(name: str) -> _Code | None:
    return _find(name.partition(":")[0])


def _imports(path: Path, base: Path) -> Iterator[str]:
    """Names of modules that a file imports by a statement, and some that are none."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # whoever imports it says so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = path.relative_to(base).parts[: -node.level] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _own_code(own: Iterable[str]) -> list[_Code]:
    """The code of the callables `own`, where it is found, and what that imports from the same
    folder of the path. Raises OSError.
    """
    todo = [_find_callable(name) for name in own]
    found: list[_Code] = []
    while todo:
        code = todo.pop()
        if code is None or code in found:
            continue
        found.append(code)
        if code.installed:
            continue
        names = {name for path in code.files() for name in _imports(path, code.base) if name}
        for other in map(_find, sorted(names)):
            if other and other.base == code.base and not other.installed and other.place != PACKAGE:
                todo.append(other)
    return found


def code_digest(own: Iterable[str]) -> str | None:
    """SHA-256, in hex, of the files that the callables `own` are defined in; nothing is imported.

    Of a package all of its modules count, and so do modules and packages beside it that it imports.
    A copy in another folder has the same digest. None without callables, or where the file of one
    is not found.
    """
    names = list(own)
    if None in map(_find_callable, names):
        return None
    digests = set()
    try:
        for code in _own_code(names):
            for path in code.files():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digests.add(f"{path.relative_to(code.place.parent).as_posix()} {content}\n")
    except OSError:
        return None
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest() if digests else None


def hashes(own: Iterable[str]) -> dict[str, str]:
    """SHA-256 by path of our files, and of those that `code_digest` counts."""
    code = [_Code(PACKAGE, PACKAGE.parent), *_own_code(own)]
    paths = sorted({path for each in code for path in each.files()})
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


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
    for code in _own_code(names):
        if code.installed or code.place == PACKAGE:
            continue
        copy = partial / code.place.relative_to(code.base)
        if code.place.is_dir():
            shutil.copytree(code.place, copy, ignore=NOT_CODE, dirs_exist_ok=True)
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(code.place, copy)
    partial.rename(target)
    return target
