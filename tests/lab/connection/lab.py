# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run each module on a lab host with a single command.

This is containers.podman.podman with pipelining. The original plugin disables pipelining, because `sudo` may be missing
in a container or may need a terminal. The plugin connects to lab hosts as root. Without pipelining, each module needs
five commands on the host, which take as much time as the module itself.
"""

from __future__ import annotations

import shlex

from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.common.text.converters import to_native
from ansible.plugins.connection import ConnectionBase
from ansible.release import __version__

try:
    from ansible_collections.containers.podman.plugins.connection import podman

    Podman = podman.Connection
    DOCUMENTATION = podman.DOCUMENTATION.replace("name: podman\n", "name: lab\n")
except ImportError:
    # Fall back to the base class in a checkout whose lab is not set up. ansible-core loads every plugin that it finds,
    # and warns about a plugin that it cannot load.
    Podman = ConnectionBase
    DOCUMENTATION = (
        "{name: lab, short_description: Reach a lab host, description: [Needs containers.podman.], author: none}"
    )

#: A host that is starting or shutting down counts as unreachable, as it would with sshd: the start empties /tmp, and
#: the shutdown kills all processes (lab-up.service of tests/lab/image). Only this plugin prints this text, so it cannot
#: be confused with the output of a command.
NOT_UP = "lab: the host is starting or going down"
#: If ansible-core in the mounted folder has the same release, PYTHONPATH makes modules use it instead of loading their
#: own copy (tests/lab/ansible_code).
ONCE_UP = """export PYTHONPATH=/opt/openfleet-lab OPENFLEET_LAB_CORE=%s
[ -e /run/up ] && exec "$@"
echo "%s" >&2
exit 255""" % (__version__, NOT_UP)


class Connection(Podman):
    """Connect to a running lab host by `podman exec`."""

    transport = "lab"
    has_pipelining = True

    def _connect(self):
        if Podman is ConnectionBase:
            raise AnsibleConnectionFailure(
                "lab hosts are reached by the collection containers.podman: run `make setup`"
            )
        # Do not query podman for the mount point here. Only file transfers need it.
        ConnectionBase._connect(self)
        self._connected = True

    def exec_command(self, cmd, in_data=None, sudoable=False):
        """Run a command on the host, and return (status, stdout, stderr).

        `in_data` (bytes) is the command's standard input. Raises AnsibleConnectionFailure if the host is not running.
        """
        ConnectionBase.exec_command(self, cmd, in_data=in_data, sudoable=sudoable)
        user = ["--user", self.user] if self.user else []
        words = ["sh", "-c", ONCE_UP, "sh", *shlex.split(to_native(cmd))]
        status, out, err = self._podman(["exec", "--interactive", *user], words, in_data)
        # Podman and runc print these texts if the host is stopped, paused or missing, so that no command ran.
        unreached = err.startswith((b"Error:", NOT_UP.encode())) or b"exec failed: " in err
        if status in (125, 255) and unreached:
            raise AnsibleConnectionFailure(f"{self._container_id} is not running: {to_native(err).strip()}")
        return status, out, err

    def put_file(self, in_path, out_path):
        """Copy a local file to the host."""
        self._mount()
        super().put_file(in_path, out_path)

    def fetch_file(self, in_path, out_path):
        """Copy a file of the host to a local path."""
        self._mount()
        super().fetch_file(in_path, out_path)

    def close(self):
        """Close the connection, which has no state."""
        self._connected = False

    def _mount(self):
        if not self._mount_point:
            super()._connect()
