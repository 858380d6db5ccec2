# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Use leases in a service and in a Jupyter kernel, as the README describes."""

from __future__ import annotations

import json

from lease_desk import MIG

SERVICE = f"""\
[Service]
User=alice
ExecStart=/usr/local/bin/gpu-layout lease {MIG} --wait -- sleep 3600
Restart=always
"""


def test_service_has_a_lease_as_long_as_it_runs(desk):
    file = "/run/systemd/system/inference.service"
    desk.ask(f"printf '%s' '{SERVICE}' >{file} && systemctl daemon-reload && systemctl start inference")
    try:
        (first,) = desk.wait_for(desk.numbers, "the lease of the service")
        main = "systemctl show --property=MainPID --value inference"
        desk.wait_for(lambda: "sleep" in desk.ask(f"cat /proc/$({main})/comm"), "the program")
        # Restart= starts the program again, with another lease.
        desk.ask(f"kill -KILL $({main})")
        desk.wait_for(lambda: desk.numbers() not in ([], [first]), "another lease")
        desk.ask("systemctl stop inference")
        desk.wait_for(lambda: not desk.rows(), "the end of the lease")
    finally:
        desk.host.run(f"systemctl stop inference; rm {file}; systemctl daemon-reload")


def test_kernel_of_jupyter_has_a_lease_until_it_is_shut_down(desk):
    """Start the kernel as Jupyter does, with a connection file."""
    words = [
        "gpu-layout",
        "lease",
        "--profile",
        "1g.10gb",
        "--for",
        "4h",
        "--",
        "python3",
        "-c",
        "import sys; print(sys.argv)",
    ]
    done = desk.run("alice", " ".join(f"'{word}'" for word in [*words, "-f", "/tmp/kernel.json"]))
    assert json.loads(done.stdout.replace("'", '"')) == ["-c", "-f", "/tmp/kernel.json"], done.stderr
    desk.wait_for(lambda: not desk.rows(), "the end of the lease")
