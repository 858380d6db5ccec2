# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rebuild the initramfs with the host's tool: initramfs-tools or dracut."""

from __future__ import annotations

from ..processes.command import Run, program, run_to_end

#: Use the first installed tool. If both are installed, dracut is only a dependency of another package. Rebuild the
#: initramfs of every kernel, because any of them may boot next and must not load nouveau.
_TOOLS = (("update-initramfs", "-u", "-k", "all"), ("dracut", "--force", "--regenerate-all"))


def rebuild(call: Run = run_to_end) -> str:
    """Rebuild the initramfs. Return "" or the error.

    A host with neither tool has no initramfs, or uses another tool for it.
    """
    for command in _TOOLS:
        if program(command[0]):
            done = call(list(command))
            return "" if done.returncode == 0 else "%s: %s" % (command[0], done.stderr.strip() or "it gave no reason")
    return ""
