# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the files of /proc that show a process's own memory: its arguments, its environment and its mappings.

A process may have these pages where nothing need ever answer, as in a file of the user's own file system. A look happens under
the host's lock, so a child process reads them (file_worker.py).
"""

from __future__ import annotations

import os

from .accounts import account_of
from .file_worker import NoAnswerError, ask, task
from .proc_files import read

#: An environment is read whole.
MOST_BYTES = 1 << 22


def memory_of(path: str, most: int = MOST_BYTES) -> str:
    """Read a file of /proc that shows a process's own memory; nothing where that takes too long, or too many others did."""
    try:
        return str(ask(account_of(os.path.dirname(path)), _read, path, most))  # noqa: PTH120
    except NoAnswerError:
        return ""


_read = task(read)
