"""The figures that show what a record says about a run, from real sweeps, as one page."""
