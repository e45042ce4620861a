"""One contender a process: `python -m benchmarks.contenders NAME JSON` prints its images/s as JSON.

JSON gives the fields of `Work` that are not the default.
"""

import json
import sys
import warnings
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.work import Absent, Work


def main() -> None:
    """Run one contender and print what it reached, as JSON."""
    name, work = sys.argv[1], Work(**json.loads(sys.argv[2]))
    warnings.simplefilter("ignore")  # the peers' own
    try:
        found: dict[str, Any] = {"images_per_s": CONTENDERS[name](work)}
    except Absent as error:
        found = {"absent": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
