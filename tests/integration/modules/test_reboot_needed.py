# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test a refused reset, and a GPU that a kernel module uses.

The run keeps the old layout, and its message says why. If the run may reboot the host, mode changes stay pending until
the reboot.
"""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

NEW = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]},
    {"gpus": [1], "sharing": "exclusive"},
]


@pytest.fixture
def stuck(host):
    """Create two Ampere GPUs that refuse resets.

    The second GPU has foreign processes and needs no reset.
    """
    host.create([{"model": "A100-80GB", "count": 2}])
    for gpu in "01":
        host.gpusim("set", gpu, "passthrough", "on")
        host.gpusim("set", gpu, "reset_refused", "on")
    return host


def modes(host) -> list[tuple[bool, bool]]:
    gpus = host.module("gpu_info")["gpus"]
    return [(gpu["mig"]["enabled"], gpu["mig"]["pending"]) for gpu in gpus]


def test_without_permission_the_old_layout_stays_with_a_message(stuck):
    failed = stuck.module("mig", layout=NEW)
    assert failed["failed"]
    assert failed["outcome"] == "old"
    assert failed["reboot_required"]
    assert "reboot needed: gpusim reset" in failed["msg"]
    assert "gpu_layout_reboot: true" in failed["msg"]
    # The error names the GPU by index and UUID, because only the UUID always stays the same.
    assert "gpu 0 (%s)" % stuck.module("gpu_info")["gpus"][0]["uuid"] in failed["msg"], failed["msg"]
    assert modes(stuck) == [(False, False), (False, False)]
    assert [gpu["compute_mode"] for gpu in stuck.module("gpu_info")["gpus"]] == ["default", "default"]


def test_with_permission_the_mode_is_pending_until_the_reboot(stuck):
    waits = stuck.module("mig", layout=NEW, leave_pending=True)
    assert not waits.get("failed"), waits
    assert waits["changed"]
    assert waits["reboot_required"]
    assert modes(stuck) == [(False, True), (False, False)]
    stuck.gpusim("reboot")
    done = stuck.module("mig", layout=NEW, leave_pending=True)
    assert done["changed"]
    assert not done["reboot_required"]
    assert stuck.seen() == {0: [("7g.80gb", 0)], 1: []}
    assert not stuck.module("mig", layout=NEW)["changed"]


def test_reboot_disables_mig(stuck):
    stuck.module("mig", layout=NEW, leave_pending=True)
    stuck.gpusim("reboot")
    stuck.module("mig", layout=NEW)
    off = [{"gpus": "all", "sharing": "shared"}]
    failed = stuck.module("mig", layout=off)
    assert failed["reboot_required"]
    assert stuck.seen()[0] == [("7g.80gb", 0)], "the instance is back"
    assert stuck.module("mig", layout=off, leave_pending=True)["reboot_required"]
    stuck.gpusim("reboot")
    assert not stuck.module("mig", layout=off, leave_pending=True)["reboot_required"]
    assert modes(stuck) == [(False, False), (False, False)]


def test_process_on_an_unchanged_gpu_blocks_the_reboot(stuck):
    layout = NEW[:1]
    job = stuck.popen([str(stuck.bin / "gpusim"), "run", "--gpu", "1", "--memory", "1MiB", "--", "sleep", "300"])
    try:
        while not json.loads(stuck.gpusim("show", "--json"))["processes"]:
            assert job.poll() is None
        failed = stuck.module("mig", layout=layout, leave_pending=True)
        assert failed["failed"]
        assert re.search(
            r"gpu 1 \(GPU-[0-9a-f]{8}\), whose host would reboot, is in use by pid %d\b" % job.pid, failed["msg"]
        )
        assert modes(stuck) == [(False, False), (False, False)]
        forced = stuck.module("mig", layout=layout, leave_pending=True, on_busy="force")
        assert forced["reboot_required"]
        assert job.poll() is None, "the reboot ends it, in its order"
    finally:
        job.kill()
        job.wait()


def test_restored_instances_without_an_entry_do_not_block_the_reboot(stuck):
    options = {"state_directory": str(stuck.folder / "state.d")}
    kept = [{"gpus": [1], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]}]
    stuck.module("layout", layout=kept, leave_pending=True, **options)
    stuck.gpusim("reboot")
    assert not stuck.module("layout", layout=kept, **options).get("failed")
    waits = stuck.module("layout", layout=NEW[:1], leave_pending=True, **options)
    assert waits.get("reboot_required"), waits
    stuck.gpusim("reboot")
    done = stuck.module("layout", layout=NEW[:1], **options)
    assert done["changed"] and [name for name, _start in stuck.seen()[1]] == ["3g.40gb"], done


@pytest.fixture
def displayed(host):
    """Create two Ampere GPUs.

    A kernel module uses the first GPU, but no process does.
    """
    host.create([{"model": "A100-80GB", "count": 2}])
    host.gpusim("set", "0", "held_by_kernel", "on")
    return host


def test_holder_in_the_kernel_is_named_and_needs_a_reboot(displayed):
    failed = displayed.module("mig", layout=NEW)
    assert failed["failed"] and failed["outcome"] == "old" and failed["reboot_required"], failed
    assert "gpu 0 (GPU-" in failed["msg"]
    assert "reboot needed: no process uses it" in failed["msg"] and "inside the kernel" in failed["msg"]
    assert "gpu_layout_reboot: true" in failed["msg"] and "modprobe -r nvidia_drm" in failed["msg"]
    assert modes(displayed) == [(False, False), (False, False)]


def test_reboot_removes_a_holder_in_the_kernel_and_changes_the_mode(displayed):
    waits = displayed.module("mig", layout=NEW, leave_pending=True)
    assert waits["reboot_required"] and modes(displayed) == [(False, True), (False, False)]
    displayed.gpusim("reboot")
    assert not displayed.module("mig", layout=NEW, leave_pending=True)["reboot_required"]
    assert displayed.seen() == {0: [("7g.80gb", 0)], 1: []}


def test_reboot_is_not_suggested_if_the_mode_does_not_survive_it(host):
    host.create([{"model": "H100-80GB", "count": 2}])
    host.gpusim("set", "0", "held_by_kernel", "on")
    failed = host.module("mig", layout=NEW)
    assert failed["outcome"] == "old" and not failed["reboot_required"]
    assert "inside the kernel" in failed["msg"] and "modprobe -r" in failed["msg"]
    assert "gpu_layout_reboot" not in failed["msg"]
    assert modes(host) == [(False, False), (False, False)]


FILES = """
set -e
mount -t tmpfs none /sys/bus/pci/devices
mount -t tmpfs none /sys/module
mkdir -p /sys/bus/pci/devices/%s/drm/card0 /sys/module/nvidia_drm/parameters
echo Y >/sys/module/nvidia_drm/parameters/modeset
echo 2 >/sys/module/nvidia_drm/refcnt
exec "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root covers files of /sys")
def test_dry_run_predicts_the_reboot(displayed):
    layout = displayed.folder / "layout.json"
    layout.write_text(json.dumps(NEW))
    address = displayed.module("gpu_info")["gpus"][0]["pci_address"]
    code = (
        "import sys; from ansible_collections.openfleet.gpu.plugins.module_utils.cli.main import main; sys.exit(main())"
    )
    told = [
        displayed.python,
        "-c",
        code,
        "plan",
        "--layout",
        str(layout),
        "--state-directory",
        str(displayed.folder / "records"),
    ]
    process = displayed.popen(
        ["unshare", "--mount", "sh", "-c", FILES % address, "sh", *told], stdout=subprocess.PIPE, text=True
    )
    shown = process.communicate(timeout=120)[0]
    assert process.returncode == 0, shown
    assert "gpu 0 (GPU-" in shown and "may need a reboot" in shown and "nvidia_drm (use count 2, card0)" in shown
    assert "gpu 1 (GPU-" not in shown
