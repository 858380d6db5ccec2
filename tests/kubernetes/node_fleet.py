# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate a GPU host that is a node of a cluster with a real API server."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import yaml

from tests.integration import cgroups
from tests.integration.patience import wait_until
from tests.integration.simulated_fleet import Fleet


class NodeFleet(Fleet):
    """A fleet of one host.

    Its modules see a private folder as /var/lib/kubelet.
    """

    def __init__(self, folder, library):
        super().__init__(folder, library, ["one"])
        self.host = self.hosts["one"]
        self.kubelet = folder / "var-lib" / "kubelet"
        (self.kubelet / "device-plugins").mkdir(parents=True)
        #: True if tests can kill runs. Such runs take longer.
        self.killable = False
        self._running = None
        #: Processes of `with_nodes`, by the UID of their pod.
        self.watching: dict[str, subprocess.Popen] = {}
        # The command prefix that enters the host's mounts.
        self._inside: list[str] = []

    def execute(self, command, environment, folder):
        if not self.killable:
            return super().execute(command, environment, folder)
        # If a test kills the controller, the controller's processes end with its PID namespace. The namespace keeps the
        # test's /proc, because with another one the simulated GPUs would report a reboot.
        alone = ["unshare", "--pid", "--fork", "--kill-child", *command]
        # Run the controller as a new process, not as a fork of a loaded one.
        environment = {**environment, "PYTHONUNBUFFERED": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(alone, env=environment, cwd=folder, **pipes) as self._running:
            output, errors = self._running.communicate()
        return subprocess.CompletedProcess(command, self._running.returncode, output, errors)

    def kill(self):
        """Kill the running ansible-playbook and its children."""
        os.kill(self._running.pid, signal.SIGKILL)

    @contextlib.contextmanager
    def with_nodes(self):
        """Show modules a /dev with the first GPU's device file.

        Yield a function that starts a process in the pod with a given UID. Like the real plugin, the process keeps the
        file open. The process ends with the pod.
        """
        devices = self.folder / "devices"
        devices.mkdir()
        program = self.folder / "nvidia-device-plugin"
        shutil.copy(shutil.which("sleep"), program)
        mounts = """mount --bind "$0" /var/lib
            mount -t tmpfs tmpfs "$1"
            mknod -m 666 "$1/null" c 1 3
            mknod -m 666 "$1/urandom" c 1 9
            touch "$1/nvidia0"
            mount --bind "$1" /dev
            echo ready
            exec sleep infinity"""
        command = ["unshare", "--mount", "sh", "-ec", mounts, str(self.kubelet.parent), str(devices)]
        with contextlib.ExitStack() as ending:
            keeper = ending.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            ending.callback(keeper.kill)
            assert keeper.stdout.readline() == "ready\n"
            self._inside = ["nsenter", "--mount=/proc/%d/ns/mnt" % keeper.pid]

            def watch(uid):
                group = ending.enter_context(cgroups.made("kubepods", "pod%s" % uid, "a" * 64))
                script = 'echo $$ >"$0/cgroup.procs"; exec "$1" infinity 3</dev/nvidia0'
                entered = [*self._inside, "sh", "-ec", script, str(group), str(program)]
                ending.callback(self.pod_ended, uid)
                self.watching[uid] = subprocess.Popen(entered)
                held = Path("/proc/%d/comm" % self.watching[uid].pid)
                wait_until(lambda: held.read_text() == program.name[:15] + "\n", "the plugin's process")

            yield watch

    def interpreter(self, name):
        names = ("PATH", "LD_LIBRARY_PATH", "GPUSIM_STATE", "GPUSIM_LIBRARY", "PYTHONPATH")
        exports = "".join("export %s=%s\n" % (key, shlex.quote(self.host.environment[key])) for key in names)
        mounts = 'mount --bind "$0" /var/lib && exec "$@"'
        within = self._inside or ["unshare", "--mount", "sh", "-c", mounts, str(self.kubelet.parent)]
        words = [*within, sys.executable]
        wrapper = self.host.bin / "python3"
        wrapper.write_text('#!/bin/sh\n%sexec %s "$@"\n' % (exports, " ".join(map(shlex.quote, words))))
        wrapper.chmod(0o755)
        return wrapper

    def share(self, layout):
        """Share the GPUs as the layout says, without a playbook."""
        done = self.host.module("layout", layout=layout, state_directory=str(self.folder / "one" / "state.d"))
        assert not done.get("failed"), done

    def devices(self):
        """Return MIG devices' UUIDs by profile."""
        found = {}
        for instance in self.host.module("gpu_info")["gpus"][0]["mig"]["instances"]:
            uuid = instance["compute_instances"][0]["mig_uuid"]
            found.setdefault(instance["profile"], []).append(uuid)
        return found

    def give(self, devices):
        """Write the kubelet's checkpoint from a mapping of pod UIDs to device UUIDs."""
        entries = []
        for uid, uuid in devices.items():
            (self.kubelet / "pods" / uid).mkdir(parents=True)
            resource = {
                "PodUID": uid,
                "ContainerName": "c",
                "ResourceName": "nvidia.com/mig",
                "DeviceIDs": {"-1": [uuid]},
            }
            entries.append(resource)
        checkpoint = self.kubelet / "device-plugins" / "kubelet_internal_checkpoint"
        checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": entries}}))

    def pod_ended(self, uid):
        if uid in self.watching:
            process = self.watching.pop(uid)
            process.kill()
            process.wait()
        shutil.rmtree(self.kubelet / "pods" / uid, ignore_errors=True)

    def run_roles(self, layout, *roles, **more):
        """Run entry points of roles on the host in one play.

        Each entry is `role` or `role/entry`.
        """
        tasks = []
        for name in roles:
            role, _, entry = name.partition("/")
            include = {"name": "openfleet.gpu.%s" % role, "tasks_from": entry or "main"}
            tasks.append({"name": "Run %s" % name, "ansible.builtin.include_role": include})
        playbook = self.folder / "play.yml"
        play = {"hosts": "gpu_hosts", "gather_facts": False, "vars": more, "tasks": tasks}
        playbook.write_text(yaml.safe_dump([play]))
        return self.play({"one": layout}, playbook=playbook)


def said(run):
    """Return a run's output with single spaces."""
    return " ".join((run.stdout + run.stderr).split())
