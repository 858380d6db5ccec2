# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the service of `gpu-layout lease` on a simulated host without systemd."""

from __future__ import annotations

import json
from pathlib import Path

from tests.adversary.keep_host import KeepHost

LAYOUT = [
    {
        "gpus": [0, 1],
        "sharing": "mig",
        "mig": [],
        "leases": {"by": "host", "groups": ["daemon"], "profiles": ["1g.10gb"]},
    }
]


class LeaseHost(KeepHost):
    """The service as root, and its socket. Units of leases cannot start here."""

    def words(self, folder: Path) -> list[str]:
        layout = folder / "layout.json"
        layout.write_text(json.dumps(LAYOUT))
        return ["lease-serve", "--layout", str(layout), "--state-directory", str(self.state)]

    def bookings(self) -> list[dict]:
        """Return the leases and waiting requests in the record."""
        path = self.state / "leases.json"
        return json.loads(path.read_text())["bookings"] if path.exists() else []
