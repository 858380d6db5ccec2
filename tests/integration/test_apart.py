# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run pytest manually next to a foreign container with a GPU.

The container must not count as a holder of a simulated GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Simulate a container with a GPU. A container engine creates a /dev with the GPU's node.
CONTAINER = "mount -t tmpfs none /dev && mknod /dev/null c 1 3 && mknod /dev/nvidia0 c 1 3 && echo up && exec sleep 600"
ONE_TEST = "tests/integration/modules/test_mig.py::test_pending_mode_gets_its_reset"


@pytest.mark.alone
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces")
def test_a_foreign_container_with_a_gpu_is_no_holder_of_simulated_ones():
    environment = {name: value for name, value in os.environ.items() if name != "OPENFLEET_APART"}
    container = subprocess.Popen(["unshare", "--mount", "sh", "-c", CONTAINER], stdout=subprocess.PIPE, text=True)
    try:
        assert container.stdout.readline() == "up\n"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", ONE_TEST],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    finally:
        container.kill()
        container.wait()
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
