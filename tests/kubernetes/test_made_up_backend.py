# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add a made-up backend to a copy of the collection, and run its roles.

The backend consists of a folder, a line in the registry, and its key in two lists of choices. The copy's roles and
site.yml run against a real API server.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.simulated_host import ROOT
from tests.kubernetes.node_fleet import NodeFleet, said
from tests.kubernetes.node_stand_in import STRATEGIC
from tests.thorough import THOROUGH

pytestmark = pytest.mark.root

MADE_UP = Path(__file__).with_name("made_up")
RESOURCE, LABEL = "beans.example.com/gpu", "beans.example.com/node"
BEFORE = "openfleet.gpu/labels-before"
WHOLE = [{"gpus": [0], "sharing": "exclusive"}]
MIG = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]}]
#: Edits that add the backend last: (file, pattern of the text before it, text to add).
LINES = (
    ("plugins/plugin_utils/schedulers/registry.py", r"\n_CLUSTER_CLASSES = \{\n[^}]*", '    "beans": "Beans",\n'),
    ("plugins/filter/kubernetes_mapping.py", r"choices: \[nvidia_device_plugin[^]]*", ", beans"),
    ("roles/gpu_kubernetes/meta/argument_specs.yml", r"choices: \[nvidia_device_plugin[^]]*", ", beans"),
)


class FleetOfCopy(NodeFleet):
    """A host on which the playbooks of a copy run."""

    def __init__(self, folder, library, copy):
        super().__init__(folder, library)
        self.copy = copy
        # A collection's folder that the test hides from the controller, or None.
        self.hidden = None

    def execute(self, command, environment, folder):
        collection = self.copy / "ansible_collections/openfleet/gpu"
        # Start a new process, because the process that the tests usually fork has loaded the checkout's collection.
        words = [str(collection / "site.yml") if word == str(ROOT / "site.yml") else word for word in command]
        words = ["ansible-playbook", *words[words.index("-i") :]]
        if self.hidden:
            hide = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
            words = ["unshare", "--mount", "sh", "-c", hide, str(self.hidden), *words]
        environment = {**environment, "ANSIBLE_COLLECTIONS_PATH": str(self.copy)}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, cwd=folder)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Copy the collection, add the backend, and return the folder."""
    folder = tmp_path_factory.mktemp("copy")
    collection = folder / "ansible_collections/openfleet/gpu"
    for name in ("plugins", "roles", "playbooks", "meta"):
        shutil.copytree(ROOT / name, collection / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
    for name in ("galaxy.yml", "site.yml"):
        shutil.copy(ROOT / name, collection / name)
    shutil.copytree(MADE_UP, collection / "plugins/plugin_utils/schedulers/beans")
    for name, pattern, added in LINES:
        content, number = re.subn(pattern, lambda match, added=added: match[0] + added, (collection / name).read_text())
        assert number == 1, name
        (collection / name).write_text(content)
    return folder


@pytest.fixture
def fleet(library, tmp_path, copy, kubeconfig):
    fleet = FleetOfCopy(tmp_path, library, copy)
    fleet.more["one"] = {
        "gpu_kubernetes_backend": "beans",
        "gpu_kubernetes_node": "beans-one",
        "gpu_kubernetes_kubeconfig": str(kubeconfig),
        "gpu_kubernetes_config_delay": 0,
        "gpu_kubernetes_poll": 1,
        "gpu_kubernetes_timeout": 100,
    }
    return fleet


class BeansNode:
    """A node, and a thread that offers one GPU while the node has the label."""

    def __init__(self, plane):
        self.plane, self.path, self._stopped = plane, "/api/v1/nodes/beans-one", threading.Event()
        plane.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "beans-one"}})
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def metadata(self):
        return self.plane.call("GET", self.path)["metadata"]

    def _work(self):
        while not self._stopped.wait(0.2):
            offered = {RESOURCE: "1" if LABEL in self.metadata().get("labels", {}) else "0"}
            status = {"capacity": offered, "allocatable": offered}
            self.plane.call("PATCH", "%s/status" % self.path, {"status": status}, STRATEGIC)

    def end(self):
        self._stopped.set()
        self._thread.join()
        self.plane.call("DELETE", self.path)


@pytest.fixture
def node(api_server):
    made = BeansNode(api_server)
    yield made
    made.end()


def test_the_backend_is_asked_for_refusals_by_itself_and_by_others(fleet, node):
    refused = fleet.run_roles(MIG, "gpu_kubernetes/plan")
    assert refused.returncode != 0
    able = r"nvidia_device_plugin or nvidia_dra\b.* can express it \(gpu_kubernetes_backend\)\."
    assert re.search(r"one: gpu_layout\[0\] \(gpu 0\): beans have no MIG instances\. %s" % able, said(refused))
    fleet.more["one"]["gpu_kubernetes_backend"] = "hami"
    tenants = {"tenants": [{"name": "a", "memory": "8GiB", "sm_percent": 30, "group": "ml"}]}
    refused = fleet.run_roles([{"gpus": [0], "sharing": "vgpu", "vgpu": tenants}], "gpu_kubernetes/plan")
    assert re.search(r"cannot use the Unix group of tenant a\. .*\bbeans can express it", said(refused))
    plugin = {"gpu_kubernetes_plugin_manifest": "/srv/plugin.yml", "gpu_kubernetes_plugin_sha256": "0" * 64}
    fleet.more["one"]["gpu_kubernetes_backend"] = "beans"
    refused = fleet.run_roles(WHOLE, "gpu_kubernetes/plan", **plugin)
    assert "one: the role installs no plugin for the backend beans. Remove gpu_kubernetes_plugin_manifest" in said(
        refused
    )
    assert "labels" not in node.metadata()


@pytest.mark.parametrize("state", ["present", "absent"] if THOROUGH else ["present"])
def test_a_controller_without_kubernetes_core_names_it(fleet, state):
    (namespace,) = find_spec("ansible_collections.kubernetes").submodule_search_locations
    fleet.hidden = namespace
    refused = fleet.run_roles(WHOLE, "gpu_kubernetes", gpu_kubernetes_state=state)
    assert refused.returncode != 0
    assert "one: the controller lacks the collection kubernetes.core. Install it" in said(refused)


def test_the_node_follows_the_layout_and_is_left_as_it_was(fleet, node):
    planned = fleet.play({"one": WHOLE}, "--check")
    assert planned.returncode == 0, said(planned)
    assert "node beans-one: %s 1" % RESOURCE in said(planned) and "Beans are counted." in said(planned)
    assert "node beans-one: label %s: true (new)" % LABEL in said(planned)
    assert "labels" not in node.metadata()

    done = fleet.play({"one": WHOLE})
    assert done.returncode == 0, said(done)
    metadata = node.metadata()
    assert metadata["labels"] == {LABEL: "true"}
    assert json.loads(metadata["annotations"][BEFORE]) == {LABEL: None}

    again = fleet.play({"one": WHOLE})
    assert again.returncode == 0 and again.stdout.count("changed=0") == 1, said(again)

    fleet.more["one"]["gpu_kubernetes_state"] = "absent"
    planned = fleet.play({"one": WHOLE}, "--check")
    assert planned.returncode == 0, said(planned)
    assert node.metadata()["labels"] == {LABEL: "true"}

    removed = fleet.run_roles(WHOLE, "gpu_kubernetes")
    assert removed.returncode == 0, said(removed)
    assert "labels" not in node.metadata() and BEFORE not in node.metadata().get("annotations", {})
