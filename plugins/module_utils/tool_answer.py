# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a tool of the host, and say why there is no answer."""

from __future__ import annotations

import subprocess
from typing import Any, Sequence

from .command import Run
from .printable import printable


def ask(run: Run, command: Sequence[str], **options: Any) -> tuple[str | None, str]:
    """(output, "") of a tool, or (None, why there is none). Raises FileNotFoundError where it is not installed."""
    try:
        done = run(command, **options)
    except (subprocess.TimeoutExpired, PermissionError) as error:
        return None, "%s failed: %s" % (" ".join(command), error)
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        return None, "%s failed with exit status %d: %s" % (" ".join(command), done.returncode, printable(said[:200]))
    return done.stdout, ""
