"""The house's shape: who may import whom, and who never brings torch."""

import ast
import graphlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from amp_sweep import forkserver

REPOSITORY = Path(__file__).parents[2]

# DESIGN section 3.
LEVEL_OF = {
    **dict.fromkeys(
        (
            "config",
            "ctrl_c",
            "forkserver",
            "frozen",
            "host_memory",
            "labels",
            "legality",
            "lock",
            "messages",
            "paths",
            "record",
            "slurm",
            "source",
            "streams",
            "uncollected",
        ),
        0,
    ),
    **dict.fromkeys(
        (
            "models",
            "data",
            "precision",
            "parallel",
            "optim",
            "memory",
            "measure",
            "energy",
            "ceilings",
            "hardware",
            "checkpoint",
            "fast",
            "generators",
            "graph",
            "speedups",
        ),
        1,
    ),
    **dict.fromkeys(("engine", "track", "diagnose", "probes"), 2),
    "worker": 3,
    **dict.fromkeys(("launch", "screen"), 4),
    **dict.fromkeys(
        (
            *("cells", "local", "sweep", "submit", "follow", "job"),
            *("train", "evaluate", "status", "explain", "console"),
        ),
        5,
    ),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path
    for top in ("amp_sweep", "analysis", "hydra_plugins")
    for path in sorted((REPOSITORY / top).rglob("*.py"))
}


def imports(text: str, own_name: str, is_package: bool = False) -> set[str]:
    """Everything that a module's text imports anywhere in it, as absolute dotted names.

    `from a import b` counts as `a.b`, whatever b is.
    """
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = own_name.split(".")
                package = package[: len(package) - node.level + (1 if is_package else 0)]
                base = ".".join([*package, *([base] if base else [])])
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def ours(names: set[str]) -> set[str]:
    """The modules of this repository among imported names."""
    found = set()
    for name in names:
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        if name:
            found.add(name)
    return found


def raw_imports(module: str) -> set[str]:
    path = MODULES[module]
    return imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")


def imported_modules(module: str) -> set[str]:
    return ours(raw_imports(module)) - {module}


def unit_of(module: str) -> str | None:
    """`amp_sweep.data.store` is part of `data`; None for the package itself (its version)."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


IN_PACKAGE = [name for name in MODULES if name.startswith("amp_sweep.")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch.nn as nn", {"torch.nn"}),
        ("from amp_sweep import record, config", {"amp_sweep.record", "amp_sweep.config"}),
        ("def f():\n    from torch import nn", {"torch.nn"}),
        ("if TYPE_CHECKING:\n    import torch", {"torch"}),
        ("from . import store", {"amp_sweep.data.store"}),
        ("from .store import Images", {"amp_sweep.data.store.Images"}),
        ("from ..record import read", {"amp_sweep.record.read"}),
    ],
)
def test_the_reader_of_imports_sees_every_form(text: str, expected: set[str]) -> None:
    assert imports(text, "amp_sweep.data.cache") == expected


def test_the_reader_of_imports_resolves_a_packages_own_dots() -> None:
    assert imports("from . import store", "amp_sweep.data", is_package=True) == {
        "amp_sweep.data.store"
    }


def test_names_are_traced_to_the_module_that_holds_them() -> None:
    names = {"amp_sweep.data.store.Images", "amp_sweep.record", "torch.nn", "amp_sweep.__version__"}
    assert ours(names) == {"amp_sweep.data.store", "amp_sweep.record", "amp_sweep"}


def test_every_module_has_a_level_and_every_expected_module_is_there() -> None:
    units = {unit_of(name) for name in IN_PACKAGE}
    assert units - set(LEVEL_OF) == set()
    assert set(LEVEL_OF) == units - {None}


@pytest.mark.parametrize("module", IN_PACKAGE)
def test_a_module_imports_only_from_its_own_and_lower_levels(module: str) -> None:
    own = LEVEL_OF[str(unit_of(module))]
    units = {unit_of(name) for name in imported_modules(module)} - {None}
    above = {unit: LEVEL_OF[str(unit)] for unit in units if LEVEL_OF[str(unit)] > own}
    assert above == {}


@pytest.mark.parametrize("module", [m for m in IN_PACKAGE if LEVEL_OF[str(unit_of(m))] == 1])
def test_a_mechanism_imports_no_other_mechanism(module: str) -> None:
    units = {str(unit_of(name)) for name in imported_modules(module)}
    others = {unit for unit in units if LEVEL_OF.get(unit) == 1} - {unit_of(module)}
    assert others == set()


def test_no_modules_import_one_another_in_a_circle() -> None:
    graph = {name: imported_modules(name) for name in MODULES}
    assert sum(len(targets) for targets in graph.values()) > 50
    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("amp_sweep.record") < order.index("amp_sweep.config")


def test_nothing_in_the_package_imports_the_analysis_or_the_plug_ins() -> None:
    for module in IN_PACKAGE:
        tops = {name.split(".")[0] for name in imported_modules(module)}
        assert tops <= {"amp_sweep"}, module


def test_the_analysis_knows_only_the_record() -> None:
    modules = [name for name in MODULES if name.split(".")[0] == "analysis"]
    assert len(modules) > 5
    for module in modules:
        names = raw_imports(module)
        product = {name for name in ours(names) if name.split(".")[0] != "analysis"}
        assert product <= {"amp_sweep.record"}, module
        assert not {name for name in names if name.split(".")[0].startswith("torch")}, module


@pytest.mark.parametrize("module", [m for m in IN_PACKAGE if LEVEL_OF[str(unit_of(m))] == 0])
def test_a_module_of_level_0_never_imports_torch(module: str) -> None:
    assert not {name for name in raw_imports(module) if name.split(".")[0].startswith("torch")}


def loaded_after_importing(modules: list[str], wanted: set[str]) -> list[str]:
    """Which of the packages `wanted` a fresh process holds after importing `modules`."""
    text = f"import sys, {', '.join(modules)}; print(*sorted({wanted} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "modules",
    [
        [name for name in IN_PACKAGE if LEVEL_OF[str(unit_of(name))] == 0],
        [name for name in MODULES if name.startswith("analysis.")],
        ["amp_sweep.data", "amp_sweep.data.store"],
        # What Hydra imports at every start, tab completion included.
        ["amp_sweep.train", "hydra_plugins.amp_sweep.sweeper"],
        ["amp_sweep.status"],
        ["amp_sweep.explain.command", "amp_sweep.diagnose", "amp_sweep.console"],
        # All that a command does itself: ranks and what looks at the machine are other processes.
        [name for name in IN_PACKAGE if unit_of(name) in ("launch", "sweep", "submit", "job")],
    ],
    ids=["level 0", "analysis", "data", "train and plug-ins", "status", "explain", "launcher"],
)
def test_torch_is_not_brought_by(modules: list[str]) -> None:
    # The package itself is asked for too, to see that the question is answered.
    assert loaded_after_importing(modules, {"torch", "torchvision", "amp_sweep"}) == ["amp_sweep"]


@pytest.mark.parametrize("name", [*forkserver._preload(["resnet18"])])
def test_what_the_forkserver_preloads_is_there(name: str) -> None:
    # The server itself passes over what it cannot import without a word.
    assert importlib.util.find_spec(name) is not None
