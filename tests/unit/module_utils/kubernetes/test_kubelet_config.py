# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the kubelet's policies from files like those on a host."""

from __future__ import annotations

import json

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.kubernetes.kubelet_config import read_kubelet

# A file as kubeadm writes it, shortened.
YAML = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static   # whole CPUs
cpuManagerPolicyOptions:
  topologyManagerPolicy: best-effort
topologyManagerPolicy: "single-numa-node"
#memoryManagerPolicy: Static
"""
FILE = "/var/lib/kubelet/config.yaml"
FOLDER = "/etc/kubernetes/kubelet.conf.d"
PLAIN = {
    "running": True,
    "config": "",
    "config_dir": "",
    "topology_policy": "none",
    "topology_scope": "container",
    "cpu_policy": "none",
    "memory_policy": "None",
}


@pytest.fixture
def host(tmp_path):
    """Return a function that adds a process, and the kubelet's file if given."""

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


def test_files_of_the_drop_in_folder_take_precedence_in_their_order(host):
    root = host("kubelet", "--config=" + FILE, "--config-dir=" + FOLDER, text=YAML)
    files = {
        "10-first.conf": "topologyManagerPolicy: restricted\ncpuManagerPolicy: none\n",
        # The kubelet reads a folder instead of the file with its name, and reads the folder before 30-last.conf.
        "20-folder/a.conf": json.dumps({"topologyManagerPolicy": "best-effort", "topologyManagerScope": "pod"}),
        "30-last.conf": "cpuManagerPolicy: null\n",
        "40-other.yaml": "topologyManagerPolicy: none\n",
        "readme.conf.bak": "topologyManagerPolicy: none\n",
    }
    for name, text in files.items():
        path = root / FOLDER.lstrip("/") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / FOLDER.lstrip("/") / "50-link").symlink_to(root / FOLDER.lstrip("/"))
    expected = {"config": FILE, "config_dir": FOLDER, "topology_policy": "best-effort", "topology_scope": "pod"}
    assert read_kubelet(root) == {**PLAIN, **expected}


def test_a_missing_drop_in_folder_is_an_error_with_its_name(host):
    with pytest.raises(FleetError, match=r"^/etc/kubernetes/kubelet\.conf\.d: the kubelet's folder cannot be read"):
        read_kubelet(host("kubelet", "--config-dir", FOLDER))


def test_a_folder_with_too_many_files_is_refused(host):
    root = host("kubelet", "--config-dir", FOLDER)
    folder = root / FOLDER.lstrip("/")
    folder.mkdir(parents=True)
    for number in range(101):
        (folder / ("%d.conf" % number)).touch()
    with pytest.raises(FleetError, match="more than 100 files"):
        read_kubelet(root)


def test_names_of_options_may_have_underscores(host):
    assert read_kubelet(host("kubelet", "--topology_manager_policy=restricted"))["topology_policy"] == "restricted"


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
