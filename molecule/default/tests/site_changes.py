# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of site.yml on hosts where only the layout or pynvml differs."""

from __future__ import annotations

from fleet import Change
from lab_fixtures import HOSTS

_PLAY, _ROLE = "Apply (in waves, a canary first)", "openfleet.gpu.gpu_layout"
#: Of these hosts the drift has pynvml too: another text, and a mode with which anyone may write it.
PYNVML_DRIFTED = ("h100", "l40s")
DRIFT_CHANGES = {
    *(Change(name, _PLAY, f"{_ROLE} : Apply the layout") for name in HOSTS),
    *(Change(name, _PLAY, f"{_ROLE} : Copy pynvml from the controller") for name in PYNVML_DRIFTED),
}
