# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reach a lab host with one command per module: the podman connection with pipelining.

containers.podman.podman switches pipelining off, because `sudo` in a container may be missing or may ask for a terminal. Lab
hosts are entered as root. Without pipelining each module takes five commands on the host, which cost as much as the module.
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
    # ansible-core by itself, on a checkout whose lab is not set up: it loads every plugin that it finds, and warns of one
    # that it cannot load.
    Podman = ConnectionBase
    DOCUMENTATION = (
        "{name: lab, short_description: Reach a lab host, description: [Needs containers.podman.], author: none}"
    )

#: A host that sshd would not serve yet, or no more, is none that Ansible reaches: its start empties /tmp, and its end kills all
#: that runs (lab-up.service of tests/lab/image). The words are this plugin's own, so that no command's status is taken for them.
NOT_UP = "lab: the host is starting or going down"
#: PYTHONPATH spares modules to load ansible-core (tests/lab/ansible_code), where the release that is mounted there is this one.
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
        # Only files need the mount point of the host, for which podman has to be asked.
        ConnectionBase._connect(self)
        self._connected = True

    def exec_command(self, cmd, in_data=None, sudoable=False):
        """Run a command on the host with `in_data` (bytes) as its standard input; return (status, stdout, stderr).

        Raises AnsibleConnectionFailure where the host does not run.
        """
        ConnectionBase.exec_command(self, cmd, in_data=in_data, sudoable=sudoable)
        user = ["--user", self.user] if self.user else []
        words = ["sh", "-c", ONCE_UP, "sh", *shlex.split(to_native(cmd))]
        status, out, err = self._podman(["exec", "--interactive", *user], words, in_data)
        # Podman's and runc's own words where nothing was run: the host is stopped, paused or gone.
        unreached = err.startswith((b"Error:", NOT_UP.encode())) or b"exec failed: " in err
        if status in (125, 255) and unreached:
            raise AnsibleConnectionFailure(f"{self._container_id} does not run: {to_native(err).strip()}")
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
        """End the connection, of which nothing stays."""
        self._connected = False

    def _mount(self):
        if not self._mount_point:
            super()._connect()
