# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare recorded series with gpusim's configuration and nvidia-smi."""

from __future__ import annotations

import pytest
from watched_fleet import eventually

from tests.lab.nvidia_smi import read_gpus

MIB, GIB = 2**20, 2**30
# The simulated use in percent, GiB and watts. With these values, rounding cannot hide a wrong series.
UTILIZATION, MEMORY, POWER = 40, 6, 250


@pytest.fixture(scope="module")
def gpus(hopper, ada):
    """Return the GPUs of each host in nvidia-smi."""

    def read(host):
        def run(command):
            done = host.run(command)
            return done.rc, done.stdout

        return read_gpus(run)

    return {"hopper": read(hopper), "ada": read(ada)}


def loaded(host, place):
    """Put a simulated load on a GPU or an instance of it."""
    load = f"--pattern constant --utilization {UTILIZATION} --memory {MEMORY}GiB --power {POWER}"
    host.check_output(f"gpusim load {place} {load}")


def values(monitor, expression):
    """Wait until an expression has values, and return them."""
    return lambda: sorted(sample.value for sample in monitor.prometheus.query(expression))


def test_every_gpu_and_instance_has_named_series(monitor, gpus):
    wanted = set()
    for name, there in gpus.items():
        for gpu in there:
            wanted.add((name, str(gpu.index), gpu.uuid, gpu.name, ""))
            wanted |= {(name, str(gpu.index), gpu.uuid, gpu.name, one.profile) for one in gpu.instances.values()}

    def seen():
        samples = [sample.labels for sample in monitor.prometheus.query("gpu:info")]
        keys = ("host", "gpu_index", "gpu_uuid", "model", "mig_profile")
        return {tuple(labels.get(key, "") for key in keys) for labels in samples}

    eventually(seen, lambda found: found == wanted, "gpu:info of every GPU and instance")


def test_no_series_has_an_empty_label(monitor):
    samples = monitor.prometheus.query('{__name__=~"gpu:.+",host!=""}')
    assert samples
    assert [sample.labels for sample in samples if "" in sample.labels.values()] == []


def test_load_of_a_gpu(monitor, ada, gpus):
    uuid = gpus["ada"][0].uuid
    loaded(ada, 0)
    try:
        of = f'{{gpu_uuid="{uuid}"}}'
        eventually(values(monitor, f"gpu:busy_ratio{of}"), lambda v: v == [UTILIZATION / 100], "busy")
        eventually(values(monitor, f"gpu:power_watts{of}"), lambda v: v == [POWER], "power")
        # The driver itself uses less than one GiB of memory.
        used = values(monitor, f"gpu:memory_used_bytes{of}")
        eventually(used, lambda v: len(v) == 1 and 0 <= v[0] - MEMORY * GIB < GIB, "memory")
        assert values(monitor, f"gpu:memory_total_bytes{of}")() == [gpus["ada"][0].memory * MIB]
    finally:
        ada.run("gpusim load 0 --clear")
    eventually(values(monitor, f"gpu:busy_ratio{of}"), lambda v: v == [0], "idle")


def test_load_of_an_instance_is_its_own(monitor, hopper, gpus):
    gpu = gpus["hopper"][0]
    instance = next(number for number, one in gpu.instances.items() if one.profile == "3g.40gb")
    loaded(hopper, f"0/{instance}")
    try:
        of = f'gpu_uuid="{gpu.uuid}",mig_instance'
        used = values(monitor, f'gpu:memory_used_bytes{{{of}="{instance}"}}')
        eventually(used, lambda v: len(v) == 1 and 0 <= v[0] - MEMORY * GIB < GIB, "memory of the instance")
        others = values(monitor, f'gpu:memory_used_bytes{{{of}!="{instance}",mig_profile="1g.10gb"}}')
        eventually(others, lambda v: len(v) == 2 and max(v) < GIB, "memory of the others")
    finally:
        hopper.run(f"gpusim load 0/{instance} --clear")


def test_process_counts_on_its_gpu_or_instance(monitor, hopper, gpus):
    of = f'gpu:processes{{gpu_uuid="{gpus["hopper"][1].uuid}"}}'
    eventually(values(monitor, of), lambda v: v == [0], "nobody")
    hopper.check_output("systemd-run --quiet --unit=somebody gpusim run --gpu 1 --memory 1GiB -- sleep infinity")
    try:
        eventually(values(monitor, of), lambda v: v == [1], "somebody")
    finally:
        hopper.run("systemctl stop somebody")
    eventually(values(monitor, of), lambda v: v == [0], "no process again")


def test_state_of_the_hosts_is_exported(monitor, gpus):
    """Check the files that gpu-layout writes, which the exporter provides too."""
    count = sum(len(there) for there in gpus.values())
    eventually(values(monitor, "gpu:layout_drift"), lambda v: v == [0] * count, "no drift")
    eventually(values(monitor, 'gpu:mps_daemon_up{host="hopper",daemon="inference"}'), lambda v: v == [1], "daemon")
    limit = values(monitor, 'gpu:tenant_memory_limit_bytes{host="ada",tenant="notebook"}')
    eventually(limit, lambda v: v == [16 * GIB], "quota")


def test_no_alert_fires(monitor):
    monitor.quiet()
    assert monitor.received() == []
