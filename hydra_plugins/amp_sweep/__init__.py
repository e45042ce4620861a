"""Adapters through which Hydra hands a multirun over to amp_sweep."""
