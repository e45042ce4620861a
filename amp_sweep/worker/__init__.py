"""One rank of one cell: build in a fixed order, train, evaluate, write."""

from amp_sweep.messages import Preparation, RankJob
from amp_sweep.worker.build import Invalid
from amp_sweep.worker.prepare import prepare
from amp_sweep.worker.process import run_rank

__all__ = ["Invalid", "Preparation", "RankJob", "prepare", "run_rank"]
