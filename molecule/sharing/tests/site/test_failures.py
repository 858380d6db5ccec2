# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that failed changes restore the old layout with its daemons.

The tests include interrupted changes, and impossible changes, which gpu-layout refuses at once.
"""

from __future__ import annotations

QUARTERS = {"clients": 4, "active_thread_percentage": 25}
BROKEN = "/etc/systemd/system/openfleet-mps@broken.service.d"


def shared(gpu):
    return {"gpus": [gpu], "sharing": "shared"}


def test_failed_start_restores_the_old_daemon(hopper):
    before = {name: (d.devices, d.percentage, d.limits) for name, d in hopper.daemons().items()}
    gpu = hopper.gpu(1)
    hopper.ask(f"mkdir -p {BROKEN} && printf '[Service]\\nExecStartPre=/bin/false\\n' >{BROKEN}/broken.conf")
    try:
        part = {"profile": "3g.40gb", "mps": dict(QUARTERS, name="broken")}
        failed = hopper.apply({"gpus": [1], "sharing": "mig", "mig": [part]})
        assert failed["error"]["outcome"] == "old", failed
        assert "broken" in failed["error"]["where"]
        assert "the previous layout was restored" in failed["error"]["problem"]
        assert any("enable MIG mode" in step for step in failed["error"]["steps_done"])
    finally:
        hopper.ask(f"rm -r {BROKEN} && systemctl daemon-reload")
    assert hopper.gpu(1) == gpu
    assert {name: (d.devices, d.percentage, d.limits) for name, d in hopper.daemons().items()} == before
    assert hopper.host.run("ls /etc/openfleet-gpu/mps/broken* /etc/cdi/openfleet-mps-broken*").rc != 0


def test_next_run_recovers_from_a_kill_after_stopping_a_daemon(hopper, inventory_layout):
    hopper.ask("gpusim fail nvmlDeviceSetComputeMode --nth 1 --code kill")
    killed = hopper.host.run('echo \'[{"gpus": [1], "sharing": "shared"}]\' | gpu-layout apply --layout -')
    assert killed.rc != 0
    assert set(hopper.daemons()) == {"small"}
    # If a run fails early, it restores the layout too.
    refused = hopper.apply({"gpus": [7], "sharing": "shared"})
    assert "has no GPU 7" in refused["error"]["problem"]
    assert set(hopper.daemons()) == {"small", "inference"}
    assert hopper.nothing_to_do(*inventory_layout("hopper"))


def test_stopped_daemon_is_started(hopper, inventory_layout):
    hopper.ask("systemctl stop openfleet-mps@inference")
    done = hopper.apply(*inventory_layout("hopper"))
    assert "mps inference: start (4 clients of 25 % and 18GiB) on gpu 1" in done["plan"]
    assert set(hopper.daemons()) == {"small", "inference"}


def test_too_much_memory_is_refused_before_any_change(hopper):
    gpu = hopper.gpu(1)
    failed = hopper.apply(
        {"gpus": [1], "sharing": "mps", "mps": dict(QUARTERS, name="big", pinned_memory_limit="40GiB")}
    )
    assert "4 clients of 40GiB each exceed its memory" in failed["error"]["problem"]
    assert hopper.gpu(1) == gpu
    assert set(hopper.daemons()) == {"small", "inference"}


def test_gpu_without_time_slices_is_refused_before_any_change(ada, inventory_layout):
    ada.ask("gpusim set 0 timeslicing off")
    planned = ada.plan(*inventory_layout("ada"))
    problem = planned["error"]["problem"]
    assert "its time slice cannot be set: Failed to get compute policies for GPU 0 : Not Supported" in problem
    ada.ask("gpusim set 0 timeslicing on && gpusim set 1 timeslicing off")
    failed = ada.apply(shared(0), {"gpus": [1], "sharing": "time_slicing", "time_slicing": {"slice": "long"}})
    assert failed["error"]["where"].startswith("gpu_layout[1] on gpu 1")
    assert "Not Supported" in failed["error"]["problem"]
    assert ada.time_slices() == ["Long", None], "the first GPU was not touched"
    # The requested time slice is the driver's default, which such a GPU has in any case.
    done = ada.apply({"gpus": [1], "sharing": "time_slicing", "time_slicing": {"slice": "default"}})
    assert "error" not in done, done
