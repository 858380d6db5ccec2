# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which of a node's former lines are restored."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.config import GRES, NODES, Request
from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.files import Files

OWN = "NodeName=gpu-a AutoDetect=off Name=gpu Type=%s %s"
WHOLE = [OWN % ("h100", "File=/dev/nvidia%d" % number) for number in range(4)]


@pytest.mark.parametrize(
    ("former", "restored"),
    [
        (OWN % ("h100", "File=/dev/nvidia[0-3]"), True),
        (OWN % ("h100", "File=/dev/nvidia0,/dev/nvidia[1-3]"), True),
        # If gres.conf names the file of a missing device, slurmd ends.
        (OWN % ("h100", "File=/dev/nvidia[0-7]"), False),
        (OWN % ("3g.40gb", "MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22]"), False),
    ],
)
def test_former_lines_of_existing_devices_are_restored(tmp_path, former, restored):
    for name, text in {
        "slurm.conf": f"GresTypes=gpu\nInclude {NODES}\n",
        "gres.conf": f"Include {GRES}\n",
        NODES: "NodeName=gpu-a CPUs=2 Gres=gpu:h100:4\n",
        GRES: former + "\n",
    }.items():
        (tmp_path / name).write_text(text)
    files = Files(str(tmp_path), "gpu-a", str(tmp_path / "state"))
    files.write(Request("gpu-a", "gpu:h100:4", ("gpu",), (), tuple(WHOLE)))
    assert (tmp_path / GRES).read_text().splitlines() == WHOLE
    files.restore(WHOLE)
    assert (tmp_path / GRES).read_text().splitlines() == ([former] if restored else [])
