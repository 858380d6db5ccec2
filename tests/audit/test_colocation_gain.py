# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Audit a GPU with online and offline tenants with a real Prometheus."""

from __future__ import annotations

import time

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import write
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order, make
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Access
from tests.audit.fleet_history import CLEAR, NOBODY, Device, prometheus

HOURS = 30


def tenant(name, latency, ratio, **labels):
    """Return the series of a tenant with this share of the GPU's time."""
    own = {"tenant": name, "latency": latency, "gpu_uuid": "u9", **labels}
    return "gpu:tenant_gpu_seconds_total", own, lambda hour: 3600 * hour * ratio


#: Two exporters report the online tenant. One offline tenant has a GPU without online tenants.
TENANTS = (
    *(tenant("serve", "online", 0.2, job=job) for job in ("a", "b")),
    tenant("train", "offline", 0.3),
    tenant("more", "offline", 0.1),
    tenant("alone", "offline", 0.9, gpu_uuid="u8"),
)
FLEET = [Device("h1", 9, series=NOBODY, labelled=CLEAR, of_host=TENANTS)]


def test_audit_shows_the_gain(tmp_path):
    hours = HOURS - 1
    (tmp_path / "history").mkdir()
    with prometheus(FLEET, HOURS, tmp_path / "history") as url:
        audit = make(Order(3600.0 * hours, Access(url)), time.time())
    assert audit.colocation.gpus == 1
    assert audit.colocation.online_gpu_hours == pytest.approx(0.2 * hours, rel=0.05)
    assert audit.colocation.offline_gpu_hours == pytest.approx(0.4 * hours, rel=0.05)
    write.all_of(audit, tmp_path)
    page = (tmp_path / "audit.html").read_text()
    assert "Colocation: 1 GPU did %.1f GPU hours of offline work" % audit.colocation.offline_gpu_hours in page
