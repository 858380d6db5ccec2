# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure leases on eight GPUs against the best fixed MIG layout.

PODS=FILE has requests in the format of Alibaba's cluster-trace-gpu-v2023 (CSV, may be gzipped). Without a file, the
benchmark generates requests. SIZE is the number of requests (1,000). SEED selects the sample.

The rule: a sample of the pods with a part of one GPU, in the order of their arrival. A quota is gpu_milli, rounded up
to a percent. An instance has the smallest profile with this part of the compute slices. Gaps between arrivals are
scaled so that the requests would keep all GPUs busy (LOAD). Durations are scaled to a mean of MEAN_HOURS, with at least
a minute and at most LIMIT_HOURS. Each request declares its duration in the file, rounded up to whole hours, as users of
batch jobs do with --for. lease_half_declared_* repeats the run with requests of which half declare no duration. For
these, LIMIT_HOURS counts as the end.

The fixed layout has the same requests. A request gets the smallest free instance that is large enough. The layout is
the best that a search over the layouts of each GPU finds for this trace. Leases are compared with the better one of two
runs of the fixed layout: with the queue of leases, and with requests that may pass each other without limits. Allocated
is the sum of gpu_milli over time until the last arrival.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import heapq
import itertools
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from ansible_collections.openfleet.gpu.plugins.module_utils.layout.leases import Leases
from ansible_collections.openfleet.gpu.plugins.module_utils.leases import schedule as leases
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import LeaseError, Offer, Request, Shape, Use
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.schedule import Schedule
from ansible_collections.openfleet.gpu.plugins.module_utils.model import GpuInstance, Placement
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.files import LIBRARY
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.fit import Bin
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.lease_card import QuotaCard
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import SEATS
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.fit import Capacity
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.lease_card import MigCard
from tests.apart import COMMAND
from tests.benchmark.amounts import amount
from tests.integration.simulated_host import SimulatedHost

FIGURES = (
    "lease_allocated_ratio",
    "lease_allocated_over_optimum",
    "lease_half_declared_allocated_ratio",
    "lease_half_declared_allocated_over_optimum",
    "lease_mig_allocated_ratio",
    "lease_mig_allocated_over_optimum",
    "lease_disturbed",
    "lease_leaked",
    "lease_seconds_p95",
    "lease_vgpu_seconds_p95",
)
#: Number of leases of each kind that a simulated host takes and gives back.
TIMED = 40
#: A GPU's gpu_milli.
WHOLE = 1000
#: Number of searches for fixed layouts.
LAYOUTS = 3
MODEL, GPUS, REQUESTS = "A100-40GB", 8, 1000
#: The profile of each number of compute slices.
PROFILES = {1: "1g.5gb", 2: "2g.10gb", 3: "3g.20gb", 4: "4g.20gb", 7: "7g.40gb"}
SLICES = 7
LOAD, MEAN_HOURS, LIMIT_HOURS, HOUR = 1.0, 4.0, 24, 3600.0


class Pod(NamedTuple):
    """A request: arrival, real and declared duration in seconds, and gpu_milli."""

    arrival: float
    seconds: float
    declared: float
    milli: int

    @property
    def slices(self):
        """Return the smallest profile's compute slices."""
        return next(n for n in PROFILES if n * WHOLE >= self.milli * SLICES or n == SLICES)


def figures(options):
    """Yield (name, value, unit)."""
    seed, size = int(options.get("SEED") or 1), amount(options, REQUESTS, 40, "SIZE")
    pods = scaled(read_pods(options.get("PODS"), random.Random(seed)), size, random.Random(seed))
    horizon = pods[-1].arrival
    half = half_declared(pods, random.Random(seed))
    layouts = best_layouts(pods, horizon)
    hosts: dict[str, Host] = {}
    for part, requests, leased in (
        ("", pods, (("lease_allocated", QuotaHost), ("lease_mig_allocated", MigHost))),
        ("half declared: ", half, (("lease_half_declared_allocated", QuotaHost),)),
    ):
        fixed = max(best_fixed(requests, layout, horizon, part) for layout in layouts)
        for name, kind in leased:
            hosts[name] = host = kind(requests)
            host.run()
            print("bench: %s: %d requests were refused" % (name, host.refused), file=sys.stderr)
            got = delivered(requests, host.starts, horizon)
            yield name + "_ratio", got / fixed, "times the best fixed layout"
            yield name + "_over_optimum", 100 * got / optimum(requests, horizon), "percent of an upper bound"
    yield "lease_disturbed", sum(host.disturbed for host in hosts.values()), "leases"
    yield "lease_leaked", sum(host.leaked() for host in hosts.values()), "leases and instances"
    yield from times(amount(options, TIMED, 4))


def times(count):
    """Yield the seconds in which a host takes a lease and gives it back."""
    names = {"mig": "lease_seconds_p95", "vgpu": "lease_vgpu_seconds_p95"}
    if os.geteuid() != 0:
        yield from ((name, None, "partitioning needs root, also on the simulator") for name in names.values())
        return
    groups = {"by": "host", "groups": ["root"]}
    layout = [
        {"gpus": [0], "sharing": "mig", "mig": [], "leases": {**groups, "profiles": ["3g.40gb", "7g.80gb"]}},
        {"gpus": [1], "sharing": "vgpu", "vgpu": {"policy": "fixed", "provider": "preload"}, "leases": groups},
    ]
    with tempfile.TemporaryDirectory(prefix="openfleet-") as folder:
        root = Path(folder) / "root"
        (root / LIBRARY).parent.mkdir(parents=True)
        (root / LIBRARY).touch()
        host = SimulatedHost.build(Path(folder)).create([{"model": "H100-80GB", "count": 2}])
        (Path(folder) / "layout.json").write_text(json.dumps(layout))
        script = [sys.executable, str(Path(__file__).with_name("time_leases.py")), folder, str(count)]
        # Containers of this machine must not count as holders of the simulated GPUs.
        done = host.run([*COMMAND, "env", "OPENFLEET_VGPU_ROOT=%s" % root, *script])
    for kind, seconds in json.loads(done.stdout).items():
        yield names[kind], sorted(seconds)[int(0.95 * (len(seconds) - 1))], "s"


# -- Input --


def read_pods(path, choose):
    """Yield (arrival, seconds, gpu_milli) of each pod with a part of a GPU."""
    rows = []
    if path:
        file = Path(path)
        with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
            rows = [
                row for row in csv.DictReader(lines) if int(row["num_gpu"]) == 1 and 0 < int(row["gpu_milli"]) < WHOLE
            ]
    if not rows or "deletion_time" not in rows[0]:
        # The shares, and the spread of durations, are as in clusters for development and inference.
        milli = [int(row["gpu_milli"]) for row in rows] or [100, 140, 140, 280, 280, 320, 460, 460, 470, 810]
        at = 0.0
        for _number in range(4 * REQUESTS):
            at += choose.expovariate(1.0)
            yield at, choose.lognormvariate(0.0, 1.5), choose.choice(milli)
        return
    for row in sorted(rows, key=lambda row: int(row["creation_time"])):
        seconds = int(row["deletion_time"]) - int(row["creation_time"])
        yield int(row["creation_time"]), max(seconds, 1), int(row["gpu_milli"])


def half_declared(pods, choose):
    """Return the requests, half of them without a declared duration."""
    return [pod if choose.random() < 0.5 else pod._replace(declared=LIMIT_HOURS * HOUR) for pod in pods]


def scaled(rows, size, choose):
    """Return a sample of the requests.

    This file's docstring has the rule.
    """
    rows = list(rows)
    rows = [rows[number] for number in sorted(choose.sample(range(len(rows)), min(size, len(rows))))]
    mean = sum(seconds for _at, seconds, _milli in rows) / len(rows)
    pods = []
    for at, seconds, milli in rows:
        seconds = min(max(seconds / mean * MEAN_HOURS * HOUR, 60.0), LIMIT_HOURS * HOUR)
        pods.append(Pod(at, seconds, rounded_up(seconds), min(milli, WHOLE)))
    work = sum(pod.seconds * pod.milli for pod in pods)
    first, last = pods[0].arrival, pods[-1].arrival
    scale = work / (LOAD * GPUS * WHOLE) / max(last - first, 1.0)
    return [pod._replace(arrival=(pod.arrival - first) * scale) for pod in pods]


def rounded_up(seconds):
    """Return a declared duration.

    The duration is in whole hours, within the limit.
    """
    return min(-(-seconds // HOUR), LIMIT_HOURS) * HOUR


def delivered(pods, starts, horizon):
    """Return the allocated gpu_milli seconds until the horizon."""
    return sum(
        pod.milli * max(min(starts[number] + pod.seconds, horizon) - starts[number], 0.0)
        for number, pod in enumerate(pods)
        if number in starts
    )


# -- Leases --


class Host:
    """Eight GPUs over time, with the real schedule."""

    def __init__(self, pods):
        self._pods = pods
        self._gpus = assumed_gpus([MODEL] * GPUS)
        self._schedule = Schedule((self._offer(),))
        self.starts, self.refused, self.disturbed = {}, 0, 0

    @staticmethod
    def _offered(cards):
        return Offer("gpu_layout[0]", Leases("host", ("ml",), hours=LIMIT_HOURS, count=64), tuple(cards))

    def run(self):
        """Run all requests until the last lease has ended."""
        events = [(pod.arrival, 1, number) for number, pod in enumerate(self._pods)]
        heapq.heapify(events)
        planned = set()
        while events:
            now, kind, number = heapq.heappop(events)
            before = {each.request.number: each for each in self._schedule.started}
            if kind == 1:
                self._request(number, now)
            elif kind == 0:
                self._release(number)
                self._schedule = leases.ended(self._schedule, number, now)
                before.pop(number)
            else:
                self._schedule = leases.advance(self._schedule, now)
            self._compare(before)
            for booking in self._schedule.started:
                started = booking.request.number
                if started not in self.starts:
                    self.starts[started] = now
                    self._create(booking)
                    heapq.heappush(events, (now + self._pods[started].seconds, 0, started))
            for begins in {each.begins for each in self._schedule.waiting if each.begins > now} - planned:
                planned.add(begins)
                heapq.heappush(events, (begins, 2, -1))

    def _request(self, number, now):
        pod = self._pods[number]
        request = Request(number, "user%d" % number, self._shape(pod), pod.declared)
        try:
            self._schedule = leases.book(self._schedule, request, self._schedule.offers, now)
        except LeaseError:
            self.refused += 1

    def _compare(self, before):
        after = {each.request.number: each for each in self._schedule.started}
        self.disturbed += sum(after.get(number) != booking for number, booking in before.items())

    def _create(self, booking):
        """Create a lease's parts."""

    def _release(self, number):
        """Give back a lease's parts."""

    def leaked(self):
        """Return the number of bookings without a holder."""
        return len(self._schedule.bookings)


class QuotaHost(Host):
    """A host that leases quotas."""

    def _offer(self):
        return self._offered(
            QuotaCard(Bin(gpu.uuid, gpu.memory_total_bytes, 100, SEATS), gpu.label, "gpu %d" % gpu.index)
            for gpu in self._gpus
        )

    def _shape(self, pod):
        return Shape(self._gpus[0].memory_total_bytes * pod.milli // WHOLE, -(-pod.milli // 10))


class MigHost(Host):
    """A host that leases instances, which it creates and removes."""

    def __init__(self, pods):
        #: The existing instances: {(gpu UUID, start): (profile, lease number or None)}.
        self._instances = {}
        super().__init__(pods)

    def _offer(self):
        cards = []
        for gpu in self._gpus:
            idle = [
                GpuInstance(start, profile, Placement(start, self._size(gpu, profile, start)))
                for (uuid, start), (profile, lease) in self._instances.items()
                if uuid == gpu.uuid and lease is None
            ]
            cards.append(MigCard.of(gpu, PROFILES.values(), (), idle))
        return self._offered(cards)

    def _shape(self, pod):
        return Shape(profile=PROFILES[pod.slices])

    @staticmethod
    def _size(gpu, profile, start):
        placements = next(each.placements for each in gpu.mig.profiles if each.name == profile)
        return next(each.size for each in placements if each.start == start)

    def _create(self, booking):
        place = booking.places[0]
        card = next(each for each in self._schedule.offers[0].cards if each.uuid == place.gpu_uuid)
        for instance in card.removed(Use(booking.request.shape, place.start)):
            del self._instances[place.gpu_uuid, instance.start]
        profile = booking.request.shape.profile
        units = set(range(place.start, place.start + self._size(card.gpu, profile, place.start)))
        for (uuid, start), (name, lease) in list(self._instances.items()):
            same = (uuid, start, name) == (place.gpu_uuid, place.start, profile) and lease is None
            overlap = units.intersection(range(start, start + self._size(card.gpu, name, start)))
            self.disturbed += uuid == place.gpu_uuid and bool(overlap) and not same
        self._instances[place.gpu_uuid, place.start] = (profile, booking.request.number)
        self._renew()

    def _release(self, number):
        for place, (profile, lease) in self._instances.items():
            if lease == number:
                self._instances[place] = (profile, None)
        self._renew()

    def _renew(self):
        self._schedule = dataclasses.replace(self._schedule, offers=(self._offer(),))

    def leaked(self):
        """Return the number of bookings and used instances without a holder."""
        return super().leaked() + sum(lease is not None for _name, lease in self._instances.values())


# -- Fixed layouts --


def configurations():
    """Return all sets of instances that leave no room.

    Each instance is its number of compute slices.
    """
    capacity = Capacity(assumed_gpus([MODEL])[0].mig.profiles)
    sets = {
        chosen
        for count in range(1, SLICES + 1)
        for chosen in itertools.combinations_with_replacement(PROFILES, count)
        if sum(chosen) <= SLICES and capacity.fits([PROFILES[each] for each in chosen])
    }
    larger = {tuple(sorted((*chosen, more))) for chosen in sets for more in PROFILES}
    return sorted(each for each in sets if not any(tuple(sorted((*each, more))) in sets & larger for more in PROFILES))


@dataclasses.dataclass(frozen=True)
class FixedCard:
    """A GPU with fixed instances. `leases.model.Card` documents the members."""

    uuid: str
    #: Each instance's compute slices.
    sizes: tuple

    def supports(self, shape):
        """Return why the GPU never has room for the shape, or None if it has."""
        return None if max(self.sizes) >= shape.sm_percent else "%d slices are too many" % shape.sm_percent

    def find(self, shape, uses, start=None):
        """Return the smallest free instance that is large enough, as (cost, number)."""
        taken = {use.start for at_once in uses for use in at_once}
        found = [
            ((size,), number)
            for number, size in enumerate(self.sizes)
            if number not in taken and size >= shape.sm_percent and start in (None, number)
        ]
        return min(found, default=None)

    def free(self, uses):
        """Return `""`, because this benchmark shows no messages."""
        return ""


class FixedHost(Host):
    """A host with a fixed layout, and the same queue."""

    def __init__(self, pods, layout):
        self._layout = layout
        super().__init__(pods)

    def _offer(self):
        return self._offered(FixedCard("gpu-%d" % number, sizes) for number, sizes in enumerate(self._layout))

    def _shape(self, pod):
        return Shape(sm_percent=pod.slices)


def best_fixed(pods, layout, horizon, part):
    """Return a fixed layout's allocated gpu_milli seconds.

    The better one of its two runs counts.
    """
    host = FixedHost(pods, layout)
    host.run()
    queued, free = (delivered(pods, starts, horizon) for starts in (host.starts, fixed_starts(pods, layout)))
    text = "bench: %s%d requests over %.0f hours; fixed layout %s: %.1f percent of an upper bound, %.1f without a queue"
    shown = "; ".join("+".join(map(str, each)) for each in layout)
    percents = [100 * got / optimum(pods, horizon) for got in (queued, free)]
    print(text % (part, len(pods), horizon / HOUR, shown, *percents), file=sys.stderr)
    return max(queued, free)


def best_layouts(pods, horizon):
    """Search for the best layouts, changing one GPU at a time."""
    options = configurations()
    seen = {}

    def value(layout):
        key = tuple(sorted(layout))
        if key not in seen:
            seen[key] = delivered(pods, fixed_starts(pods, key), horizon)
        return seen[key]

    found = set()
    for start in sorted(((option,) * GPUS for option in options), key=value, reverse=True)[:LAYOUTS]:
        layout, improved = start, True
        while improved:
            near = [
                tuple(sorted((*layout[:place], option, *layout[place + 1 :])))
                for place in {layout.index(each) for each in layout}
                for option in options
            ]
            top = max(near, key=value)
            improved = value(top) > value(layout)
            layout = top if improved else layout
        found.add(layout)
    return sorted(found, key=value, reverse=True)


def fixed_starts(pods, layout):
    """Return each request's start on fixed instances."""
    free = {slices: sum(each.count(slices) for each in layout) for slices in PROFILES}
    queues = {slices: [] for slices in PROFILES}
    starts, running, number = {}, [], 0
    while number < len(pods) or running:
        arrives = pods[number].arrival if number < len(pods) else float("inf")
        if running and running[0][0] <= arrives:
            now, slices = heapq.heappop(running)
            free[slices] += 1
        else:
            now = arrives
            queues[pods[number].slices].append(number)
            number += 1
        while True:
            ready = [
                (queue[0], wanted)
                for wanted, queue in queues.items()
                if queue and any(slices >= wanted and count for slices, count in free.items())
            ]
            if not ready:
                break
            first, wanted = min(ready)
            queues[wanted].pop(0)
            slices = min(slices for slices, count in free.items() if slices >= wanted and count)
            free[slices] -= 1
            starts[first] = now
            heapq.heappush(running, (now + pods[first].seconds, slices))
    return starts


def optimum(pods, horizon):
    """Return an upper bound of the gpu_milli seconds of any schedule.

    At each arrival, the bound is the work of the requests so far, plus all GPUs in full use until the horizon.
    """
    bounds = []
    for instant in [pod.arrival for pod in pods]:
        early = sum(pod.milli * min(pod.seconds, horizon - pod.arrival) for pod in pods if pod.arrival <= instant)
        bounds.append(early + GPUS * WHOLE * (horizon - instant))
    return min(bounds)
