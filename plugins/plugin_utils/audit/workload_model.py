# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dataclasses of workloads and their owners. An unknown value is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass

#: Kinds of workloads. `tenant` is a quota. `unknown` is a holder that only metrics show.
JOB, POD, LEASE, UNIT, CONTAINER, TENANT, PROCESS, UNKNOWN_HOLDER = KINDS = (
    "job",
    "pod",
    "lease",
    "unit",
    "container",
    "tenant",
    "process",
    "unknown",
)


@dataclass(frozen=True)
class Workload:
    """A holder of GPUs with its owner.

    `host` is empty for jobs and pods, which have unique names in the cluster. `user` is the Unix account or the Slurm
    user, and `account` the Slurm account. `team` and `contact` are from `gpu_owners`. Unknown texts are empty.
    """

    kind: str
    name: str
    host: str = ""
    user: str = ""
    account: str = ""
    namespace: str = ""
    team: str = ""
    contact: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Identity of the workload."""
        return (self.kind, self.host, self.namespace, self.name)

    @property
    def unit_names(self) -> tuple[str, ...]:
        """Return the names that `units` in `gpu_owners` can match."""
        if self.kind not in (UNIT, CONTAINER, TENANT):
            return ()
        return (self.name, self.name.removesuffix(".service"))

    @property
    def owner(self) -> str:
        """Return the user, or the namespace of a pod."""
        return self.user or ("namespace %s" % self.namespace if self.namespace else "")

    def __str__(self) -> str:
        name = "%s/%s" % (self.namespace, self.name) if self.namespace else self.name
        return "%s %s%s" % (self.kind, name, " on %s" % self.host if self.host else "")


@dataclass(frozen=True)
class Use:
    """A workload's use of parts of GPUs.

    `used_gpu_hours` is the active share of the SMs times the measured GPU hours, or None if nothing was measured.
    """

    measured_gpu_hours: float = 0.0
    used_gpu_hours: float | None = None
    memory_max_bytes: float | None = None


@dataclass(frozen=True)
class OwnerTotal:
    """GPUs and GPU hours of a workload, a user or a team.

    `gpus`, `unused_gpus` and `unused_per_month` describe the current state, GPU hours the window. "Unused" means
    reserved and unused. `rank` is 1 for the highest `unused_per_month`, then for the most `unused_gpus`, and None for
    totals without an owner.
    """

    name: str
    kind: str
    rank: int | None
    team: str = ""
    contact: str = ""
    user: str = ""
    gpus: float = 0.0
    held_gpu_hours: float = 0.0
    unused_gpus: float = 0.0
    unused_gpu_hours: float = 0.0
    unused_per_month: float | None = None
    measured_gpu_hours: float = 0.0
    used_gpu_hours: float | None = None
    efficiency_ratio: float | None = None
    memory_max_bytes: float | None = None


@dataclass(frozen=True)
class OwnerTotals:
    """Totals by team, by user and by workload. Each list adds up to the ledger."""

    teams: tuple[OwnerTotal, ...] = ()
    users: tuple[OwnerTotal, ...] = ()
    workloads: tuple[OwnerTotal, ...] = ()
