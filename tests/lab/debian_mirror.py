# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the Debian mirror of this machine in the same way as tests/lab/image/build."""

from __future__ import annotations

import os
import subprocess


def debian_mirror() -> str:
    """Return the mirror's address from LAB_MIRROR or from apt's sources.

    The result is empty if apt has no mirror. Raises CalledProcessError if apt fails.
    """
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"]
    named = os.environ.get("LAB_MIRROR")
    return named or subprocess.run(asked, check=True, capture_output=True, text=True).stdout.partition("\n")[0]
