"""What would lift refusals: flags, and edits of the model."""

from __future__ import annotations

import re
from collections.abc import Sequence

ALONE = "--min-group 1 makes a kernel of it"
ANCHORS = "--strategy anchors joins them"
BUDGET = "a larger --plan-budget"
TOLERANT = "--rtol R, to which the result is then held, makes a kernel of it"
_MOST_BETWEEN = 3  # nodes that a user can reasonably be asked to remove


def cut(between: Sequence[str], skipped: Sequence[re.Pattern[str]]) -> str:
    """The unlock of a group that nodes `between` its own prevent; `skipped` are the --skip-node patterns."""
    if not 0 < len(between) <= _MOST_BETWEEN:
        return ""
    if all(any(r.search(name) for r in skipped) for name in between):
        return f"leave out the --skip-node of {', '.join(between)}"
    return f"remove {', '.join(between)} from between them"
