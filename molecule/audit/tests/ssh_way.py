# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Set up SSH from a control host to a GPU host as in docs/audit.md.

Both hosts share a loopback interface.
"""

from __future__ import annotations

from typing import Any

HOME = "/var/lib/gpu-audit"
#: The account exists on the control host and on the GPU host.
ACCOUNT = "gpu-audit"
#: The only command that the key can run, whatever the client requests. OpenSSH's option `restrict` disables its other
#: features.
ASK = "sudo -n /usr/local/bin/gpu-layout holders --json"
BOUND = f'no-port-forwarding,no-agent-forwarding,no-X11-forwarding,no-pty,command="{ASK}"'
SERVER_KEY = "/etc/dropbear/dropbear_ed25519_host_key"


def make(control: Any, host: Any, address: str) -> None:
    """Allow the service's user to log in and read who holds the GPUs.

    Also adds the GPU host to the user's known hosts.
    """
    control.check_output(
        f"runuser -u gpu-audit -- sh -c 'umask 077 && mkdir -p {HOME}/.ssh && rm -f {HOME}/.ssh/* && "
        f'ssh-keygen -q -t ed25519 -N "" -f {HOME}/.ssh/id_ed25519\''
    )
    theirs = control.check_output(f"cat {HOME}/.ssh/id_ed25519.pub")
    host.run("systemctl stop dropbear")
    host.check_output(
        f"umask 077 && mkdir -p /etc/dropbear && rm -f {SERVER_KEY} && dropbearkey -t ed25519 -f {SERVER_KEY}"
    )
    # Root owns the folder, so that the account cannot change the command of its key.
    host.check_output(f"install -d /home/{ACCOUNT}/.ssh && chown root: /home/{ACCOUNT} /home/{ACCOUNT}/.ssh")
    host.check_output("echo %s >%s", f"{BOUND} {theirs}", f"/home/{ACCOUNT}/.ssh/authorized_keys")
    host.check_output(f"systemd-run --quiet --collect --unit=dropbear dropbear -F -E -p {address}:22")
    (key,) = [
        line
        for line in host.check_output(f"dropbearkey -y -f {SERVER_KEY}").splitlines()
        if line.startswith("ssh-ed25519 ")
    ]
    known = " ".join([address, *key.split()[:2]])
    control.check_output(
        "echo %s >%s && chown gpu-audit: %s", known, f"{HOME}/.ssh/known_hosts", f"{HOME}/.ssh/known_hosts"
    )
