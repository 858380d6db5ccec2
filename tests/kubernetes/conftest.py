# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import cluster as clusters
import control_plane
import pytest
import yaml


@pytest.fixture(scope="session")
def api_server(tmp_path_factory):
    """An API server without nodes and controllers (control_plane.ControlPlane): it starts in seconds."""
    with control_plane.running(tmp_path_factory.mktemp("api-server")) as plane:
        yield plane


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A cluster of two nodes with four simulated GPUs each (cluster.Cluster). The nodes are lab hosts."""
    with clusters.running(tmp_path_factory.mktemp("cluster") / "plane") as found:
        yield found


@pytest.fixture(scope="session")
def plugin(cluster):
    """NVIDIA's device plugin on all nodes, as device-plugin.yml has it."""
    cluster.apply(*yaml.safe_load_all(Path(__file__).with_name("device-plugin.yml").read_text()))
