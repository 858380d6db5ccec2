# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run of site.yml changes on hosts of which only the layout is not as asked."""

from __future__ import annotations

from fleet import Change

#: The hosts whose layout is worked on by hand: all but the one that monitors them.
DRIFTED = ["a100", "h100", "l40s", "pro6000"]
LAYOUT_CHANGES = {
    Change(name, "Apply (in waves, a canary first)", "openfleet.gpu.gpu_layout : Apply the layout") for name in DRIFTED
}
