"""Work of a second thread, a little ahead of the one that needs it. No torch here."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(make: Callable[[Item], Made], items: Iterable[Item], depth: int) -> Iterator[Made]:
    """`make(item)` for each item, in order, by one thread: up to `depth` ahead of the one in use.

    The items are asked for by the caller's thread. What `make` raises comes in its place.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        coming: deque[Future[Made]] = deque()
        for item in items:
            coming.append(thread.submit(make, item))
            # Asking for an item may take long: what is done is not kept waiting for it. One stays
            # in the making, for the thread to have work while the caller uses what it got.
            if len(coming) > depth or (len(coming) > 1 and coming[0].done()):
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
