"""A sweep of many cells takes no more memory on a terminal than a sweep of few."""

from typing import Any

import pytest
from rich.progress import Progress

from amp_sweep import record
from amp_sweep.record import Record
from amp_sweep.screen import Screen


def test_all_cells_share_one_bar_since_rich_keeps_something_of_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    added: list[str] = []
    add_task = Progress.add_task

    def counting(self: Progress, description: str, *arguments: Any, **named: Any) -> Any:
        added.append(description)
        return add_task(self, description, *arguments, **named)

    monkeypatch.setattr(Progress, "add_task", counting)
    result = Record("matrix", "f", record.FAILED, {}, [], {})
    with Screen(20) as shown:
        bars = shown._bars
        assert bars is not None
        for number in range(20):
            name, epochs = f"cell {number}", 3 + number
            shown.cell_starts(name, epochs)
            sweep, cell = bars.tasks
            assert (cell.description, cell.total, cell.completed) == (name, epochs, 0)
            assert (cell.visible, cell.fields["note"]) == (True, "starting")
            shown.cell_moves({"epoch": 2, "epochs": epochs, "step": 0, "steps": 9, "doing": "x"})
            assert cell.completed == 2
            shown.cell_ends(name, result)
            assert not cell.visible
            assert sweep.completed == number + 1
    assert added == ["sweep", "cell 0"]
    capsys.readouterr()
