# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the kubelet's policies from files like those of a host."""

from __future__ import annotations

import json

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.kubernetes.kubelet_config import read_kubelet

# A file that kubeadm writes, shortened.
YAML = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static   # whole CPUs
cpuManagerPolicyOptions:
  topologyManagerPolicy: best-effort
topologyManagerPolicy: "single-numa-node"
#memoryManagerPolicy: Static
"""
FILE = "/var/lib/kubelet/config.yaml"
PLAIN = {
    "running": True,
    "config": "",
    "topology_policy": "none",
    "topology_scope": "container",
    "cpu_policy": "none",
    "memory_policy": "None",
}


@pytest.fixture
def host(tmp_path):
    """Return a function that adds a process, and optionally the kubelet's file."""

    def add(*words, pid=100, comm="kubelet", uid=0, text=None):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "comm").write_text(comm + "\n")
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
        (folder / "status").write_text("Name:\t%s\nUid:\t%d\t%d\t%d\t%d\n" % (comm, uid, uid, uid, uid))
        if text is not None:
            path = tmp_path / FILE.lstrip("/")
            path.parent.mkdir(parents=True)
            path.write_text(text)
        return tmp_path

    return add


def test_fields_of_the_file_are_read(host):
    found = read_kubelet(host("/usr/bin/kubelet", "--config=" + FILE, text=YAML))
    expected = {"config": FILE, "topology_policy": "single-numa-node", "cpu_policy": "static"}
    assert found == {**PLAIN, **expected}


def test_json_is_read(host):
    data = {"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod", "memoryManagerPolicy": "Static"}
    found = read_kubelet(host("kubelet", "--config", FILE, text=json.dumps(data)))
    expected = {"config": FILE, "topology_policy": "restricted", "topology_scope": "pod", "memory_policy": "Static"}
    assert found == {**PLAIN, **expected}


def test_an_option_takes_precedence_over_the_file(host):
    words = ("kubelet", "--config=" + FILE, "--topology-manager-policy", "best-effort", "--cpu-manager-policy=none")
    found = read_kubelet(host(*words, text=YAML))
    assert (found["topology_policy"], found["cpu_policy"]) == ("best-effort", "none")


def test_without_options_the_defaults_apply(host):
    assert read_kubelet(host("kubelet")) == PLAIN


@pytest.mark.parametrize("process", [{"uid": 1000}, {"comm": "kubectl"}])
def test_other_processes_are_not_the_kubelet(host, process):
    found = read_kubelet(host("kubelet", "--topology-manager-policy=restricted", **process))
    assert found == {**dict.fromkeys(PLAIN, ""), "running": False}


def test_a_process_of_a_user_with_the_same_name_does_not_hide_the_kubelet(host):
    host("kubelet", "--topology-manager-policy=restricted", pid=1, uid=1000)
    assert read_kubelet(host("kubelet", pid=2)) == PLAIN


@pytest.mark.parametrize("text", [None, "{"])
def test_an_unreadable_file_is_an_error_with_its_name(host, text):
    with pytest.raises(FleetError, match=r"^/var/lib/kubelet/config\.yaml: the kubelet's file "):
        read_kubelet(host("kubelet", "--config=" + FILE, text=text))


@pytest.mark.parametrize(
    "text", ["", "\0" * 100, "topologyManagerPolicy: {a: b}\n", "topologyManagerPolicy: %s\n" % ("x" * 99)]
)
def test_other_texts_have_no_policy(host, text):
    assert read_kubelet(host("kubelet", "--config=" + FILE, text=text)) == {**PLAIN, "config": FILE}
