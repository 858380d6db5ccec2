# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that every request to a cluster uses the inventory's kubeconfig.

The roles set module_defaults for the action group kubernetes.core.k8s. The group does not contain k8s_json_patch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.core

ROLES = Path(__file__).resolve().parents[3] / "roles"
MODULE = "kubernetes.core.k8s_json_patch"


def tasks(found):
    for task in found or ():
        yield task
        for section in ("block", "rescue", "always"):
            yield from tasks(task.get(section))


PATCHES = [
    pytest.param(task[MODULE], id="%s %s" % (path.parts[-3], task["name"]))
    for path in sorted(ROLES.glob("*/tasks/*.yml"))
    for task in tasks(yaml.safe_load(path.read_text()))
    if MODULE in task
]


def test_the_roles_have_such_requests():
    assert len(PATCHES) >= 4


@pytest.mark.parametrize("arguments", PATCHES)
def test_a_json_patch_names_its_cluster(arguments):
    assert {"kubeconfig", "context"} <= set(arguments)
