# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import yaml

from tests.integration.simulated_host import SimulatedHost
from tests.kubernetes import cluster as clusters
from tests.kubernetes import control_plane
from tests.kubernetes.go_programs import GoModule
from tests.kubernetes.node_stand_in import install_plugin, role_account


@pytest.fixture(scope="session")
def api_server(tmp_path_factory):
    """Start an API server without nodes or controllers, which takes seconds."""
    with control_plane.running(tmp_path_factory.mktemp("api-server")) as plane:
        yield plane


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Start a cluster of two lab hosts with four simulated GPUs each."""
    with clusters.running(tmp_path_factory.mktemp("cluster") / "plane") as found:
        yield found


@pytest.fixture(scope="session")
def plugin(cluster):
    """Install NVIDIA's device plugin from device-plugin.yml on all nodes."""
    cluster.apply(*yaml.safe_load_all(Path(__file__).with_name("device-plugin.yml").read_text()))


@pytest.fixture(scope="session")
def helm():
    """Build the program `helm`, and return its folder."""
    return GoModule("helm").build("helm.sh/helm/v3/cmd/helm")


@pytest.fixture(scope="session")
def library():
    with tempfile.TemporaryDirectory(prefix="openfleet-") as folder:
        Path(folder).chmod(0o755)
        yield SimulatedHost.build(Path(folder)).library


@pytest.fixture(scope="session")
def kubeconfig(api_server):
    """Create rbac.yml's account, and return a kubeconfig with its token."""
    return role_account(api_server)


@pytest.fixture
def config_map(api_server, kubeconfig):
    """Create an installed plugin's ConfigMap, and remove it after the test."""
    path = install_plugin(api_server)
    yield path
    api_server.call("DELETE", path)
