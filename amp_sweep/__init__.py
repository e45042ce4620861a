"""Train one model under every parallelism and precision, and say what each costs."""

__version__ = "0.1.0"
