"""From the records of sweeps to tables: `load -> compare -> report`."""
