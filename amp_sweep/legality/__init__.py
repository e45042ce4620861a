"""What needs what and what excludes what, as data with the reason in words. No torch here.

`check` is about the request alone and runs before a sweep starts; `impossible_here`
is about the request on one machine and makes a cell `invalid` there.

What one setting may be stands in `values`. A combination that is wrong on every machine is a
`Rule` in `rules`; one that some machines cannot do is a reason in `here`.
"""

from amp_sweep.legality.arguments import NOT_OUR_OVERRIDES, check_arguments
from amp_sweep.legality.here import FLOAT16_ON_CPU, impossible_here
from amp_sweep.legality.request import check
from amp_sweep.legality.rules import RULES, Rule
from amp_sweep.legality.values import (
    ABOVE,
    AT_LEAST,
    BELOW,
    CHOICES,
    DATA_NAMES,
    WORD_OR_FLAG,
    WORD_OR_NUMBER,
)

__all__ = [
    "ABOVE",
    "AT_LEAST",
    "BELOW",
    "CHOICES",
    "DATA_NAMES",
    "FLOAT16_ON_CPU",
    "NOT_OUR_OVERRIDES",
    "RULES",
    "WORD_OR_FLAG",
    "WORD_OR_NUMBER",
    "Rule",
    "check",
    "check_arguments",
    "impossible_here",
]
