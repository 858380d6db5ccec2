# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create hosts with three GPUs of a model for the clients of the matrix."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import Model
from tests.integration.simulated_host import SimulatedHost

if TYPE_CHECKING:
    from tests.clients.client_matrix import Client

INTEGRATION = Path(__file__).resolve().parents[1] / "integration"
GPUS = 3
#: The driver version for clients that do not belong to a driver.
DRIVER_VERSION = "580.105.08"


class ClientHost(SimulatedHost):
    """A simulated host for one client."""

    @property
    def client_environment(self) -> dict[str, str]:
        """Return a client's environment.

        In it, the client finds only its own modules.
        """
        return {key: value for key, value in self.environment.items() if key != "PYTHONPATH"}

    def state(self) -> dict:
        return json.loads(self.gpusim("show", "--json"))


def hosts_of(build: SimulatedHost, model: Model, client: Client) -> ClientHost:
    """Create a model's three GPUs under the driver that the client belongs to.

    The third GPU is in MIG mode if the model supports MIG.
    """
    host = ClientHost(build.folder, build.library)
    (host.folder / "state").unlink(missing_ok=True)
    of_driver = client.kind == "nvidia-smi"
    host.create([{"model": model.key, "count": GPUS}], host="clients",
                driver_version=client.version if of_driver else DRIVER_VERSION)  # fmt: skip
    if model.mig_capable and not of_driver:
        first = model.profiles[0]
        make = [sys.executable, str(INTEGRATION / "make_instance.py"), "2", first.name, str(first.placement_starts[-1])]
        host.run(make)
    return host
