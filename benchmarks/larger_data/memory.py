"""Memory of a row's processes while it runs."""

import threading

import psutil

SAMPLE_S = 0.5


class Memory:
    """Samples of the memory of a process and of all below it, in MiB."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._samples: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            main = _rss_mib(self._process)
            try:
                below = self._process.children(recursive=True)
            except psutil.Error:
                return
            self._samples.append((main, main + sum(map(_rss_mib, below))))

    def end(self) -> dict[str, float]:
        """The peaks of the first half of the time and of the second: memory is bounded where
        they are alike.
        """
        self._over.set()
        self._thread.join()
        half = len(self._samples) // 2
        if not half:
            return {}
        halves = (("half", self._samples[:half]), ("end", self._samples[half:]))
        return {
            f"{what}_mib_{when}": max(sample[place] for sample in samples)
            for when, samples in halves
            for place, what in enumerate(("main", "all"))
        }


def _rss_mib(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 2**20
    except psutil.Error:  # it has just ended
        return 0.0
