"""From the records of sweeps to tables: `load -> compare -> report`.

As a library: `analysis.load`, `analysis.load_epochs`.
"""

from analysis.library import RecordWarning, load, load_epochs

__all__ = ["RecordWarning", "load", "load_epochs"]
