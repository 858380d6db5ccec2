# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate a host in memory, with its quotas and units.

Tests of the lease service's decisions use this host.
"""

from __future__ import annotations

import grp
import json
import os

from ansible_collections.openfleet.gpu.plugins.module_utils.layout.leases import Leases
from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service.host import Recovered
from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service.service import Caller, LeaseService
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.grant import Grant
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import LeaseError, Offer, RetryLaterError
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.record import BookingRecord
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.fit import Bin
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.lease_card import QuotaCard
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuTenant

GIB = 1 << 30
#: The PID of the kubelet's plugin. No other process of the host has it.
PLUGIN_PID = 0
#: Every machine has these accounts, each with its own group.
DAEMON, BIN, SYS = 1, 2, 3
NAMES = {DAEMON: "daemon", BIN: "bin", SYS: "sys", 0: "root"}
GROUPS = tuple(name for name in ("daemon", "bin") if grp.getgrnam(name))


class World:
    """A stand-in for `LeaseHost`, systemd and the clients of the service."""

    def __init__(self, folder, gpus=2, **leases) -> None:
        self.now = 1.0e9
        self.directory = str(folder)
        self.leases = Leases("host", GROUPS, **leases)
        #: An entry of the layout whose leases are for pods.
        self.pod_leases = Leases("kubernetes", (), 30 * GIB, 50)
        #: An entry of the layout whose leases are for Slurm's jobs.
        self.job_leases = Leases("slurm", (), None, 50, unit_memory_bytes=4 * GIB, unit_percent=10)
        self.boot = "boot-1"
        self.fixed: tuple[VgpuTenant, ...] = ()
        self.gpus = gpus
        self.parts: dict[int, tuple] = {}
        self.units: dict[int, Caller] = {}
        self.events: list[str] = []
        #: Leases whose processes have left their unit, and units that ignore SIGTERM.
        self.escaped: set[int] = set()
        self.stubborn: set[int] = set()
        self.changing = False
        self.dead: set[int] = set()
        self.waiting: dict[int, Caller] = {}
        self.service = self.restarted()

    def restarted(self) -> LeaseService:
        """Start the service again, without its earlier connections."""
        self.waiting = {}
        record = BookingRecord(self.directory)
        self.service = LeaseService(self, record, self, lambda: self.now, self._end_holders, self)
        return self.service

    # -- Kernel

    def is_plugin(self, pid, _uid):
        return pid == PLUGIN_PID

    def is_prolog(self, _pid, uid):
        return uid == 0

    def boot_id(self):
        return self.boot

    # -- LeaseHost

    def offers(self, allocator="host"):
        if self.changing:
            raise RetryLaterError("this host", "a layout change runs", "Try again.")
        cards = [QuotaCard(Bin("GPU-%d" % n, 40 * GIB, 100, 8), "gpu %d" % n, "gpu %d" % n) for n in range(self.gpus)]
        every = (self.leases, self.pod_leases, self.job_leases)
        entries = (("gpu_layout[%d]" % number, leases) for number, leases in enumerate(every))
        return tuple(Offer(where, leases, tuple(cards)) for where, leases in entries if leases.by == allocator)

    def tenants(self):
        return self.fixed

    def take(self, booking):
        number = booking.request.number
        if number in self.parts:
            return self.grant(number)
        self.parts[number] = (booking.request.shape, booking.places)
        for uuid in {place.gpu_uuid for place in booking.places}:
            used = [shape for shape, places in self.parts.values() if uuid in {place.gpu_uuid for place in places}]
            assert sum(shape.memory_bytes for shape in used) <= 40 * GIB, "%s is overbooked" % uuid
        return self.grant(number)

    def grant(self, number):
        shape, places = self.parts[number]
        environment = (("OPENFLEET_QUOTA", str(shape)),)
        cdi = ("openfleet.io/vgpu=lease-%d" % number,)
        return Grant(number, tuple(each.gpu_uuid for each in places), (), "lease-%d" % number, environment, cdi=cdi)

    def resize(self, number, shape):
        self.parts[number] = (shape, self.parts[number][1])

    def give_back(self, number):
        if number in self.parts and number in self.escaped:
            raise RetryLaterError("lease %d" % number, "pid 7 uses it", "Wait.")
        if self.parts.pop(number, None):
            self.events.append("give back %d" % number)

    def recover(self, living):
        lost = [number for number in living if number not in self.parts]
        for number in sorted(set(self.parts) - set(living)):
            self.give_back(number)
        return tuple(Recovered(number, "lost", "lease %d is lost" % number) for number in lost)

    def _end_holders(self, grant, account):
        self.events.append("end processes of %s on %d" % (account, grant.number))
        self.escaped.discard(grant.number)

    # -- Units

    def start(self, pid, uid, grant, account):
        if pid in self.dead:
            raise LeaseError("lease %d" % grant.number, "the requesting process has ended", "")
        self.units[grant.number] = Caller(pid, uid)

    def stop(self, number):
        self.events.append("stop %d" % number)
        if number not in self.stubborn:
            self.units.pop(number, None)

    def living(self, numbers):
        return {number for number in numbers if number in self.units}

    def seems_alive(self, number):
        return number in self.units

    # -- Clients

    def ask(self, uid, **request):
        """Send a request and return its answer. A client that must wait stays connected."""
        result = self.service.work(self.waiting, json.dumps(request).encode(), Caller(os.getpid(), uid))
        self._settle(result)
        if "waiting" in result["answer"]:
            self.waiting[result["answer"]["waiting"]["number"]] = Caller(os.getpid(), uid)
        return result["answer"]

    def take_lease(self, uid, memory=10, sm=20, gpus=1, seconds=3600, wait=False, number=None):
        shape = {"memory_bytes": memory * GIB, "sm_percent": sm}
        return self.ask(uid, op="take", shape=shape, gpus=gpus, seconds=seconds, wait=wait, number=number)

    def ask_as_plugin(self, **request):
        """Send a request as the kubelet's plugin, and return the answer."""
        return self.service.work(self.waiting, json.dumps(request).encode(), Caller(PLUGIN_PID, 0))["answer"]

    def prepare(self, claim, *uuids, memory=10, sm=20, name="research/job-gpu-x2x4q", priority_class=""):
        request = {"shape": {"memory_bytes": memory * GIB, "sm_percent": sm}, "priority_class": priority_class}
        return self.ask_as_plugin(op="prepare", claim=claim, name=name, uuids=list(uuids), **request)

    def begin(self, job, units, user="alice", partition="batch"):
        """Take a lease, as the Prolog of a job does."""
        return self.ask(0, op="job_begin", job=job, user=user, units=units, partition=partition)

    def end(self, job):
        """Give a lease back, as the Epilog of a job does."""
        return self.ask(0, op="job_end", job=job)

    def tick(self, recover=False):
        """Do the work that is due, as the server does every second.

        Returns the answers to waiting clients.
        """
        if not recover and not self.service.due(list(self.waiting)):
            return {}
        return self._settle(self.service.work(self.waiting, recover=recover))

    def _settle(self, result):
        result = json.loads(json.dumps(result))
        for number in result["answers"]:
            self.waiting.pop(int(number), None)
        return {int(number): answer for number, answer in result["answers"].items()}

    def rows(self):
        return [(row["number"], row["account"], row["state"]) for row in self.ask(SYS, op="list")["leases"]]


def problem(answer):
    """Return the problem of a refused request."""
    return answer["error"]["problem"]
