# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import control_plane
import pytest


@pytest.fixture(scope="session")
def api_server(tmp_path_factory):
    """An API server without nodes and controllers (control_plane.ControlPlane): it starts in seconds."""
    with control_plane.running(tmp_path_factory.mktemp("api-server")) as plane:
        yield plane
