# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change the MIG mode on Ampere, which resets the GPU.

No process may use the GPU, not even monitoring.
"""

from __future__ import annotations

import pytest
from gpu_hosts import LAYOUT, USER

from tests.lab.lab_fixtures import boot_time

SHARED = [{"gpus": [2], "sharing": "shared"}]
MIG = [{"gpus": [2], "sharing": "mig", "mig": [{"profile": "2g.20gb", "count": 3}]}]


def modes(host) -> list[tuple[str, str]]:
    """Return the (current, pending) MIG mode of each GPU."""
    return [(gpu.mig_mode, gpu.mig_mode_pending) for gpu in host.gpus()]


def test_idle_gpus_change_mode_and_others_stay(apply, ampere):
    beside = ampere.instance(1, 0)
    with ampere.gpu_job(1, start=0) as job, ampere.gpu_job(3) as whole:
        for layout, mode in ((MIG, "Enabled"), (SHARED, "Disabled")):
            apply(ampere, layout).succeeded()
            assert modes(ampere) == [("Enabled",) * 2, ("Enabled",) * 2, (mode,) * 2, ("Disabled",) * 2]
            found = sorted(i.profile for i in ampere.gpus()[2].instances.values())
            assert found == ["2g.20gb"] * (3 if layout is MIG else 0)
        assert ampere.instance(1, 0) == beside
        assert ampere.runs(job) and ampere.runs(whole)


@pytest.mark.parametrize("by", ["job", "handle", "watcher"])
def test_busy_gpu_blocks_the_change(apply, ampere, by):
    holders = {
        "job": lambda: ampere.gpu_job(3),
        "handle": lambda: ampere.handle("/dev/nvidia3"),
        "watcher": lambda: ampere.handle("/dev/nvidia3", program="nvidia-persistenced"),
    }
    before = ampere.gpus()
    with holders[by]() as job:
        said = apply(ampere, "second").failed()
        assert (
            "whose MIG mode would change, is in use by" in said
            and "gpu 3 (GPU-" in said
            and f"pid {job.pid} " in said
            and f"user {USER}" in said
        )
        assert ("only watches" in said) == (by == "watcher")
        assert ampere.runs(job)
    # The idle GPUs 0 to 2 have not changed either, because a change applies to all GPUs or none.
    assert ampere.gpus() == before


def test_reset_does_not_end_a_job_that_starts_during_the_change(apply, ampere):
    before = ampere.gpus()
    ampere.stop_at("nvmlDeviceSetMigMode", 4)
    run = apply(ampere, "second")
    pid = ampere.until_stopped(run)
    # This is the last of four GPUs, so three have already changed. If a process uses a GPU, the driver keeps its new
    # mode pending.
    assert ampere.gpus() != before
    with ampere.gpu_job(3) as job:
        ampere.go_on(pid)
        said = run.failed()
        assert ampere.runs(job)
    assert "the previous layout was restored" in said
    assert ampere.not_as("first") == []
    assert modes(ampere) == [("Enabled",) * 2, ("Enabled",) * 2, ("Disabled",) * 2, ("Disabled",) * 2]
    assert not ampere.cut_off


@pytest.fixture
def stuck(ampere):
    """Make the reset of GPU 2 fail, as for a passed-through GPU or one in a fabric."""
    ampere.ask("gpusim set 2 passthrough on && gpusim set 2 reset_refused on")
    yield ampere
    ampere.ask("gpusim set 2 passthrough off && gpusim set 2 reset_refused off")


def test_refused_reset_without_permission_to_reboot_changes_nothing(apply, stuck):
    started = boot_time(stuck.host)
    said = apply(stuck, "second").failed()
    assert "reboot needed" in said and "gpu_layout_reboot: true" in said
    # GPUs 0 and 1 had already changed. The run restored the old layout, and no mode is pending for a later reboot.
    assert stuck.not_as("first") == []
    assert boot_time(stuck.host) == started


def test_host_reboots_with_permission_and_gets_its_layout(site, apply, stuck):
    started = boot_time(stuck.host)
    site("ampere", layout_stage="second", gpu_layout_reboot=True).succeeded()
    assert boot_time(stuck.host) != started
    assert stuck.not_as("second") == []
    # The run requests no second reboot.
    before = stuck.gpus()
    assert "nothing changed" in apply(stuck, "second").succeeded().told
    assert stuck.gpus() == before


def test_refused_reboot_keeps_the_current_layout_for_boot(site, stuck):
    restored, started = stuck.ask(f"cat {LAYOUT}"), boot_time(stuck.host)
    with stuck.gpu_job(1, start=0) as job:
        said = site("ampere", gpu_layout=MIG, gpu_layout_reboot=True).failed("ampere")
        assert "whose host would reboot" in said and f"pid {job.pid} " in said
        assert stuck.runs(job)
    assert stuck.not_as("first") == []
    assert (stuck.ask(f"cat {LAYOUT}"), boot_time(stuck.host)) == (restored, started)
    assert not stuck.host.file(f"{LAYOUT}.former").exists
