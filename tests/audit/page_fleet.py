# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Audit a made-up fleet with every verdict, which the real rules decide.

Functions return HTML for the cases of test_page.py.
"""

from __future__ import annotations

import dataclasses
import math

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import report_html
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.compare import findings
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.ledger import booked
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import (
    Audit,
    Day,
    Holder,
    Holding,
    Quiet,
    Sources,
    Stat,
    Subject,
    Window,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.owners import owners
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.owning import Known, owned
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.verdict import judge

GIB = float(1 << 30)
NOW = 1700000000.0
SECONDS = 14 * 86400.0


def stat(p50, p95, p99, most):
    """Return statistics of values.

    The values are equal up to the median, and grow linearly above it.
    """
    mean = 0.5 * p50 + 0.45 * (p50 + p95) / 2 + 0.04 * (p95 + p99) / 2 + 0.01 * (p99 + most) / 2
    return Stat(SECONDS, 1.0, p50, p95, p99, most, mean)


def well(subject, **more):
    base = Holding(
        subject,
        holders=(
            Holder(
                "process",
                "pid 4711 (python3 train.py, user alice, train.service)",
                NOW - 2 * SECONDS,
                user="alice",
                unit="train.service",
            ),
        ),
        memory=stat(50 * GIB, 60 * GIB, 62 * GIB, 64 * GIB),
        memory_total_bytes=80 * GIB,
        busy=stat(0.7, 0.8, 0.85, 0.9),
        compute=stat(0.55, 0.7, 0.8, 0.85),
        bandwidth=stat(0.4, 0.5, 0.5, 0.6),
        tensor=stat(0.3, 0.4, 0.4, 0.5),
        processes_now=1.0,
        price_per_hour=2.4,
        gpu_ratio=1.0,
    )
    return dataclasses.replace(base, **more)


EMPTY = {"memory": stat(0, 0, 0, 0), "tensor": stat(0, 0, 0, 0), "bandwidth": stat(0, 0, 0, 0)}
REST = {"busy": stat(0, 0, 0, 0), "compute": stat(0, 0, 0, 0), "quiet": Quiet(SECONDS, True), "held_seconds": SECONDS}
SERVER = (
    Holder("process", "pid 12 (vllm serve)", NOW - SECONDS, listens=True, clients=0, unit="llm.service", user="llm"),
)
JOB = (
    Holder(
        "container", "jupyter-bob (docker, user bob)", NOW - SECONDS, user="bob", unit="docker container jupyter-bob"
    ),
    Holder("device_handle", "pid 9 (jupyter-lab)"),
)
OWNERS = [
    {"team": "vision", "contact": "vision@example.org", "accounts": ["alice"]},
    {"team": "notebooks", "contact": "#notebooks", "units": ["jupyter-*", "notebooks"]},
]


def gpus(host):
    """Return GPUs with one problem each.

    The seventh GPU has instances, and the eighth one has a tenant.
    """

    def gpu(index, **more):
        return well(Subject("gpu", host, "GPU-%s-%d" % (host, index), str(index), "NVIDIA H100 80GB HBM3"), **more)

    def part(index, instance, profile, gib, **more):
        whole = gpu(index).subject
        named = dataclasses.replace(whole, kind="mig_instance", mig_profile=profile, mig_instance=str(instance))
        return well(named, memory_total_bytes=gib * GIB, price_per_hour=2.4 * gib / 80, gpu_ratio=gib / 80, **more)

    yield gpu(0)
    yield gpu(1, **REST, holders=JOB, processes_now=0.0)
    yield gpu(2, **REST)
    yield gpu(3, **{**REST, **EMPTY, "held_seconds": None}, holders=(), processes_now=0.0)
    yield gpu(4, memory=stat(8 * GIB, 9 * GIB, 9 * GIB, 10 * GIB), compute=stat(0.1, 0.2, 0.2, 0.3))
    yield gpu(5, compute=stat(0.9, 0.97, 1.0, 1.0))
    yield part(6, 1, "3g.40gb", 40, memory=stat(30 * GIB, 33 * GIB, 34 * GIB, 35 * GIB),
               unreported_work_seconds=7200.0)  # fmt: skip
    yield part(
        6, 2, "2g.20gb", 20, memory=stat(9 * GIB, 15 * GIB, 15 * GIB, 15 * GIB), compute=stat(0.1, 0.2, 0.3, 0.4)
    )
    yield part(6, 3, "1g.10gb", 10, memory=None, busy=None, compute=None, holders=None, processes_now=None,
               missing=("holders are unknown: the host was not asked or did not answer",))  # fmt: skip
    yield part(6, 4, "1g.10gb", 10, **REST, memory=stat(8 * GIB, 8 * GIB, 8 * GIB, 8 * GIB), holders=SERVER)
    yield part(6, 5, "1g.10gb", 10, stalled_seconds=86400.0, computed_seconds_ago=90_000.0)
    yield gpu(7, lost=True)
    tenant = dataclasses.replace(gpu(7).subject, kind="tenant", name="notebooks")
    yield well(
        tenant,
        memory=stat(3 * GIB, 4 * GIB, 4 * GIB, 4 * GIB),
        memory_total_bytes=16 * GIB,
        price_per_hour=None,
        gpu_ratio=None,
    )


def gpus_of_a_host():
    """Return a host's number of GPUs."""
    return len({holding.subject.gpu_index for holding in gpus("")})


def devices_of_a_host():
    """Return a host's number of devices.

    Devices are instances, and GPUs without instances.
    """
    return sum(holding.subject.kind != "tenant" for holding in gpus(""))


def audit(hosts, *, name="gpu-%04d.example.org", further=()):
    """Return an audit of `hosts` hosts, and of the holdings in `further`."""
    holdings = [holding for number in range(hosts) for holding in gpus(name % number)] + list(further)
    judged = [(holding, judge(holding, seconds=SECONDS)) for holding in holdings]
    found, book = booked(findings(judged, {}, NOW), SECONDS)
    book, totals, _notes = owned(book, found, Known(Window(NOW - SECONDS, NOW), True, owners(OWNERS)), None)
    idle = [one for one in found if one.verdict.word == "idle"]
    gone = tuple(dataclasses.replace(one, state="gone") for one in idle[:3])
    unseen = tuple(dataclasses.replace(one, state="unseen", first_found_seconds=NOW - 30 * 86400) for one in idle[3:5])
    days = tuple(
        Day(NOW - (14 - day) * 86400, 8.0 * hosts, 0.8 + 0.1 * math.sin(day), 0.5 + 0.2 * math.sin(day / 2), 0.4)
        for day in range(14)
    )
    return Audit(
        made_at_seconds=NOW,
        ledger=book,
        owners=totals,
        window=Window(NOW - SECONDS, NOW),
        sources=Sources(
            "https://prometheus.example.org",
            tuple(name % number for number in range(hosts)),
            tuple(name % number for number in range(1, hosts)),
            ("1 of %d hosts did not answer (%s): the holders of their GPUs are known only from metrics." % (hosts, name % 0),),
        ),
        findings=tuple(
            dataclasses.replace(one, state="still", first_found_seconds=NOW - 9 * 86400) if number % 3 else one
            for number, one in enumerate(found)
        ),
        gone=gone,
        unseen=unseen,
        history=days,
        currency="EUR",
    )  # fmt: skip


def usual():
    return report_html.to_text(audit(3))


def stretched(long):
    """Return an audit with very long words in the first host's row."""
    name = "%04d-" + long
    holder = (Holder("process", "pid 1 (" + "python3-with-a-long-name-and-no-space" * 5 + ")"),)
    subject = Subject("tenant", name % 0, "GPU-" + "0" * 36, "0", "NVIDIA " + "X" * 60, name="t" * 63)
    further = [well(subject, holders=holder, missing=("who" * 40,), price_per_hour=None)]
    return report_html.to_text(audit(3, name=name, further=further))


def hostile(texts):
    further = []
    for number, text in enumerate(texts):
        subject = Subject("gpu", text, text, text, text, text)
        holders = (Holder(text, text),)
        further.append(well(subject, **REST, holders=holders, missing=(text,)))
        tenant = dataclasses.replace(subject, kind="tenant", name=text)
        further.append(well(tenant, price_per_hour=None))
        instance = dataclasses.replace(
            subject, kind="mig_instance", mig_instance=text, mig_profile=text, host=str(number)
        )
        further.append(well(instance))
    made = audit(1, further=further)
    sources = dataclasses.replace(made.sources, prometheus=texts[1], missing=texts)
    return report_html.to_text(dataclasses.replace(made, sources=sources, currency=texts[0]))


def large():
    """Return a page about a thousand hosts."""
    return report_html.to_text(audit(1000))


def empty():
    return report_html.to_text(dataclasses.replace(audit(0), findings=(), history=()))
