# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What changes beside a host's GPUs, in its order: daemons go, the GPUs change, daemons come, tenants come, tenants go."""

from __future__ import annotations

from .errors import attempt_all
from .model import Host
from .mps_apply import DaemonsEntry, MpsChange
from .vgpu_apply import TenantsEntry, VgpuChange


class HostChange:
    """One change of MPS daemons and tenants; each may be None. Methods raise ApplyError where something does not go."""

    def __init__(self, daemons: MpsChange | None = None, tenants: VgpuChange | None = None) -> None:
        self._daemons, self._tenants = daemons, tenants

    @property
    def record(self) -> tuple[DaemonsEntry, TenantsEntry]:
        """What the journal has of this change."""
        daemons = DaemonsEntry() if self._daemons is None else self._daemons.record
        return daemons, TenantsEntry() if self._tenants is None else self._tenants.record

    def stop(self, done: list[str]) -> None:
        """Before the GPUs change. Whoever is in the way raises BusyError, or is ended."""
        if self._tenants is not None:
            self._tenants.stop(done)
        if self._daemons is not None:
            self._daemons.stop(done)

    def start(self, host: Host, done: list[str]) -> None:
        """On the GPUs as they are now."""
        if self._daemons is not None:
            self._daemons.start(host, done)
        if self._tenants is not None:
            self._tenants.start(done)

    def clear_away(self) -> None:
        """On the way back, before the GPUs: daemons that came go again."""
        if self._daemons is not None:
            self._daemons.clear_away()

    def bring_back(self, host: Host) -> None:
        """On the way back, after the GPUs: all of before, as much as can be had. Raises ApplyError with all that failed."""
        daemons, tenants = self._daemons, self._tenants
        attempt_all(
            (lambda: daemons.bring_back(host)) if daemons is not None else None,
            tenants.bring_back if tenants is not None else None,
        )

    def forget(self) -> None:
        """Once the new layout stands: nothing is left of daemons and tenants that it does not name."""
        if self._daemons is not None:
            self._daemons.forget()
        if self._tenants is not None:
            self._tenants.forget()
