# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which files the role gpu_monitoring writes and removes.

The tests change the directories in the variables, and run no Prometheus.
"""

from __future__ import annotations

import json
import os

import pytest
import yaml

from tests.monitoring.role_site import NOBODY_ASKED, Site
from tests.monitoring.rule_files import RULES

DASHBOARDS = RULES[0].parents[1] / "dashboards"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    (place / "grafana" / "dashboards").mkdir(parents=True)
    return Site(place, "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def asked(site):
    """Return the variables of the first run, which provisions Grafana."""
    asked = {**NOBODY_ASKED, "gpu_monitoring_grafana_provisioning_directory": str(site.place / "provisioning")}
    site.run(**asked)
    return asked


@pytest.mark.thorough
def test_slashes_that_mean_nothing_in_directories_change_nothing(site, asked):
    """Ignore redundant slashes in the paths of directories.

    Otherwise the second run would not recognize the files of the first run, and would remove them.
    """
    provisioning = site.place / "provisioning"
    before = site.files()
    more = {
        **asked,
        "gpu_monitoring_directory": f"{site.directory}//",
        "gpu_monitoring_rules_directory": f"{site.directory}/./rules/",
        "gpu_monitoring_targets_directory": f"{site.directory}//targets/.",
        "gpu_monitoring_grafana_dashboards_directory": f"{site.place}//grafana/dashboards/",
        "gpu_monitoring_grafana_provisioning_directory": f"{provisioning}/",
    }
    _, changed = site.run(**more)
    assert changed == 0
    assert site.files() == before
    assert {path.name for path in provisioning.rglob("*.yml")} == {"openfleet-gpu.yml"}


@pytest.mark.thorough
def test_what_grafana_is_told_goes_with_the_file_that_tells_it(site, asked):
    """Remove a data source from Grafana together with its file.

    No other data source is removed. With the option `prune`, Grafana does not remove data sources that are missing from
    a file.
    """
    provisioning = site.place / "provisioning"
    source = provisioning / "datasources" / "openfleet-gpu.yml"
    written = yaml.safe_load(source.read_text())
    assert written["prune"] is True and [each["uid"] for each in written["datasources"]] == ["openfleet-gpu"]
    assert "deleteDatasources" not in written
    output, _ = site.run(**asked, gpu_monitoring_grafana_datasource=False)
    assert not source.exists()
    assert (provisioning / "dashboards" / "openfleet-gpu.yml").exists()
    assert "RUNNING HANDLER [openfleet.gpu.gpu_monitoring : Restart Grafana]" in output


@pytest.mark.thorough
def test_directories_of_earlier_runs_are_left_clean(site, asked):
    """Clean up directories of earlier runs.

    The variable first names another directory, and later none. Files of other owners stay in the old directory.
    """
    provisioning, moved = site.place / "provisioning", site.place / "grafana" / "moved"
    old = site.place / "grafana" / "dashboards"
    others = old / "own.json"
    others.write_text("{}\n")
    asked = {**asked, "gpu_monitoring_grafana_dashboards_directory": str(moved)}
    _, changed = site.run("--check", **asked)
    assert changed and list(old.glob("openfleet-gpu-*.json"))
    site.run(**asked)
    assert list(old.iterdir()) == [others]
    assert len(list(moved.iterdir())) == len(list(DASHBOARDS.glob("*.json")))

    asked.update(gpu_monitoring_grafana_dashboards_directory="", gpu_monitoring_grafana_provisioning_directory="")
    site.run(**asked)
    assert list(moved.iterdir()) == []
    assert not [path for path in provisioning.rglob("*") if path.is_file()]
    noted = sorted((site.directory / "written-directories").read_text().split())
    assert noted == sorted(str(site.directory / name) for name in ("", "rules", "targets"))
    _, changed = site.run(**asked)
    assert changed == 0
    others.unlink()


@pytest.mark.thorough
def test_a_directory_may_be_a_link(site, asked):
    """Follow a link to a directory.

    The role sees each file of the directory under two paths. It must not remove a needed file because of its other
    path.
    """
    real, link = site.place / "grafana" / "real", site.place / "grafana" / "link"
    real.mkdir()
    link.symlink_to(real)
    site.run(**NOBODY_ASKED, gpu_monitoring_grafana_dashboards_directory=str(link))
    before = site.files()
    assert len(list(real.iterdir())) == len(list(DASHBOARDS.glob("*.json")))
    former = real / "openfleet-gpu-9-former.json"
    former.write_text("{}\n")
    _, changed = site.run(**NOBODY_ASKED, gpu_monitoring_grafana_dashboards_directory=str(link))
    assert changed == 1 and not former.exists()
    assert site.files() == before

    # Use the directory's other name, and in a later run no directory. By then, the link no longer exists.
    site.run(**NOBODY_ASKED, gpu_monitoring_grafana_dashboards_directory=str(real))
    assert {path for path in before if path.parent == real} == set(real.iterdir())
    site.run(**NOBODY_ASKED)
    assert list(real.iterdir()) == []


def test_a_password_is_what_the_inventory_says_to_the_letter_and_the_plan_is_worked_out_once(site):
    """Write the password exactly as in the inventory, and build the plan only once.

    For a thousand hosts, building the plan takes seconds.
    """
    count = site.place / "count"
    more = site.place / "more.yml"
    password = "'{{ 7 * 7 }}' \"%d\" {# no #}"
    address = "{{ lookup('ansible.builtin.pipe', 'echo >>%s; echo gpu-3') }}" % count
    users = "dcgm_exporter_basic_auth_users: {prom: !unsafe %s}" % json.dumps(password)
    more.write_text("gpu_hosts: {hosts: {gpu-3: {gpu_monitoring_address: %s, %s}}}\n" % (json.dumps(address), users))
    variables = {**NOBODY_ASKED, "gpu_monitoring_group": os.getgid()}
    for options in (["--check"], []):
        output, _ = site.run("-i", str(more), "-vvv", "--diff", *options, **variables)
        assert count.read_text() == "\n"
        count.unlink()
        assert "7 * 7" not in output
    assert [path.read_text() for path in (site.directory / "secrets").iterdir()] == [password]
    site.run(**NOBODY_ASKED)
    assert list((site.directory / "secrets").iterdir()) == []
