# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find this machine's Debian mirror, like tests/lab/image/build."""

from __future__ import annotations

import os
import subprocess


def debian_mirror() -> str:
    """Return its address: LAB_MIRROR, else what apt uses; empty where apt has none.

    Raises CalledProcessError where apt fails.
    """
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"]
    named = os.environ.get("LAB_MIRROR")
    return named or subprocess.run(asked, check=True, capture_output=True, text=True).stdout.partition("\n")[0]
