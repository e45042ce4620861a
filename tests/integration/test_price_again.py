"""A setting that changes no identity, given again for a cell that is done: it is told so."""

from tests.conftest import CommandLine

CELL = ("model.width=0.1", "epochs=1", "measure.probes=false")


def test_a_price_that_comes_too_late_is_told(command: CommandLine) -> None:
    assert command.train(*CELL, "measure.price_per_hour=2").code == 0
    again = command.train(*CELL, "measure.price_per_hour=3")
    assert again.code == 0
    assert "skipped, completed before: none x fp32, seed 0" in again.out
    assert again.err.count("measure.price_per_hour=3.0: not of what was trained before") == 1
    assert "force=true" in again.err and "measure.probes" not in again.err
    same = command.train(*CELL, "measure.price_per_hour=2")
    assert same.code == 0 and same.err == ""
