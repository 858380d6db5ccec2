# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kill DNF in a transaction, so that packages have two versions.

The next run of a role repairs them.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[3]
NAMES = {
    "libnvidia-container1",
    "libnvidia-container-tools",
    "nvidia-container-toolkit-base",
    "nvidia-container-toolkit",
}
# rpmbuild needs most of this time. It takes seconds, and longer on a busy machine.
PATIENCE_SECONDS = 600


@pytest.mark.parametrize("role", ["driver", "toolkit"])
@pytest.mark.parametrize("place", ["any", "libnvidia-container-tools-1.18.2"], ids=["first", "later"])
def test_next_run_repairs_a_killed_transaction(role, place):
    """Run one script in a container.

    The container uses the lab hosts' image, which has rpm, rpmbuild and DNF. It does not need systemd.
    """
    image = (REPOSITORY / ".lab/images/bookworm-rpm").read_text(encoding="utf-8").strip()
    script = "bash /stories/kill_dnf.sh %s && PYTHONPATH=/collections python3 /stories/repair_dnf.py %s" % (place, role)
    done = subprocess.run(
        [
            *(str(REPOSITORY / ".lab/bin/podman"), "run", "--rm", "--network=none"),
            *("--volume", "%s:/stories:ro" % HERE),
            *("--volume", "%s:/collections/ansible_collections/openfleet/gpu:ro" % REPOSITORY),
            *(image, "bash", "-ec", script),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *killed, result = done.stdout.splitlines()
    rows = [line.split()[1:] for line in killed if line.startswith("killed ")]
    in_two_versions = {name for name, _version in rows if sum(name == other for other, _ in rows) == 2}
    assert in_two_versions, "DNF was killed in the middle of the transaction"
    found = json.loads(result)
    assert set(found["broken"]) == in_two_versions
    assert found["repair"] == "" and found["still_broken"] == []
    # Packages that were already upgraded keep the new version.
    expected = {name: ["1.18.2"] if name in in_two_versions else ["1.17.8"] for name in NAMES}
    assert found["repaired"] == expected
    assert found["install"] == "" and found["installed"] == {name: ["1.18.2"] for name in NAMES}
    assert found["removed"] == []
    assert found["downgrade"] == "" and found["downgraded"] == {name: ["1.17.8"] for name in NAMES}
    assert found["check"] == ""
