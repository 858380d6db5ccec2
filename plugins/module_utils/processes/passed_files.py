# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse open files that clients send over a socket (unix(7), SCM_RIGHTS).

The process that drops the last reference to a file must close it, even if it never received the file. A sender can pass
a file whose close() takes forever, such as a lingering TCP connection, or a file on a file system that never answers.
"""

from __future__ import annotations

import re
import socket

from .proc_files import read

#: SO_PASSRIGHTS from linux/include/uapi/asm-generic/socket.h, since Linux 6.16. Python's socket module has no constant
#: for it.
_SO_PASSRIGHTS = 83


def refuse(made: socket.socket) -> bool:
    """Make the kernel refuse files on a socket and on connections that it accepts.

    Returns False before Linux 6.16, which cannot refuse files.
    """
    try:
        made.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
    except OSError:
        return False
    return True


def waits(made: socket.socket) -> bool:
    """Return whether a connection has files that were sent but not yet received."""
    return bool(re.search(r"^scm_fds:\s*[1-9]", read("/proc/self/fdinfo/%d" % made.fileno()), re.MULTILINE))
