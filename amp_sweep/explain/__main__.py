"""`python -m amp_sweep.explain RUN_DIR`."""

import sys

from amp_sweep import ctrl_c

ctrl_c.ends_this_process()  # before the imports, which take long

from amp_sweep.explain import main  # noqa: E402

sys.exit(main())
