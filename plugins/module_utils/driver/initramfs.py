# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The initramfs, made again by the tool that this host has: initramfs-tools or dracut."""

from __future__ import annotations

from ..command import Run, program, run_to_end

#: The first one that is there: where both are, dracut came as a library of something else. For all kernels, so that
#: nouveau stays away whichever is booted next.
_TOOLS = (("update-initramfs", "-u", "-k", "all"), ("dracut", "--force", "--regenerate-all"))


def rebuild(call: Run = run_to_end) -> str:
    """Empty, or what went wrong. A host without either has no initramfs to rebuild, or its owner's own way."""
    for command in _TOOLS:
        if program(command[0]):
            done = call(list(command))
            return "" if done.returncode == 0 else "%s: %s" % (command[0], done.stderr.strip() or "it gave no reason")
    return ""
