# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a cluster's schedulers and controllers beside its control plane."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from tests.kubernetes.control_plane import ControlPlane

# Many lab hosts use up root's inotify instances, and some programs end without one.
OTHER_USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


class Beside:
    """A folder that other users can read.

    `kubeconfig` belongs to the cluster's administrator.
    """

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.kubeconfig = self.add("kubeconfig", plane.kubeconfig.read_text())

    def add(self, name: str, text: str) -> Path:
        """Write a file that other users can read."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o644)
        return path

    def copy(self, program: Path) -> Path:
        """Copy a program into the folder."""
        return Path(shutil.copy(program, self.folder))

    @contextlib.contextmanager
    def runs(self, name: str, command: Sequence[str], more: Mapping[str, str]) -> Iterator[subprocess.Popen]:
        """Run a program until the block ends.

        Its output is in the control plane's NAME.log.
        """
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "GOGC": "200", **more}
        with (self.plane.folder / ("%s.log" % name)).open("a") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def beside(plane: ControlPlane) -> Iterator[Beside]:
    """Create the folder, and remove it when the block ends."""
    with tempfile.TemporaryDirectory(prefix="openfleet-") as folder:
        Path(folder).chmod(0o755)
        yield Beside(plane, Path(folder))


def install_kinds(plane: ControlPlane, folder: Path) -> None:
    """Create a folder's kinds, and wait until the API serves them."""
    plane.kubectl("apply", "--server-side", "--filename=%s" % folder)

    def served() -> bool:
        items = plane.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
        conditions = [item.get("status", {}).get("conditions") or [] for item in items]
        return all(any((each["type"], each["status"]) == ("Established", "True") for each in row) for row in conditions)

    plane.wait(served, "the API serves the kinds of %s" % folder)


def free_port(address: str) -> int:
    """Return a port on which no program listens."""
    with socket.socket() as listening:
        listening.bind((address, 0))
        return int(listening.getsockname()[1])
