# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add a technique from a folder and one line in each table, and test all features.

The tests cover parsing, plans, check mode and diff, apply, kills at each step, recovery, saved plans, export, metrics,
reports and removal. On the controller, they cover hosts' results, the audit, right-sizing, packing and the schedulers.
The tests add the technique to a copy of the collection, and run this copy in place of the collection.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from tests.integration.simulated_host import ROOT, SimulatedHost, module_path

MADE_UP = Path(__file__).with_name("made_up")
FLEET_PROGRAM = Path(__file__).with_name("made_up_fleet_program.py")
PACKAGE = "ansible_collections.openfleet.gpu.plugins"
#: The files in plugins that contain a table, and pairs of an existing line and the line to add after it.
TABLES = (
    (
        "module_utils/techniques/registry.py",
        ("from .mps.technique import MpsTechnique\n", "from .lanes.technique import LanesTechnique\n"),
        ("    MpsTechnique(),\n", "    LanesTechnique(),\n"),
    ),
    (
        "module_utils/techniques/forms.py",
        ("from .mps.form import MpsForm\n", "from .lanes.form import LanesForm\n"),
        ("    MpsForm(),\n", "    LanesForm(),\n"),
    ),
    (
        "module_utils/techniques/service_views.py",
        ("from .mps import observe as mps_observe\n", "from .lanes import model as lanes\n"),
        (
            "    ServiceView(mps.KEY, mps.NAME, mps_observe.look, mps_observe.report),\n",
            "    ServiceView(lanes.KEY, lanes.NAME, lanes.look, lanes.report),\n",
        ),
    ),
    (
        "plugin_utils/techniques/registry.py",
        ("from .mps import FleetMps\n", "from .lanes import FleetLanes\n"),
        ("TECHNIQUES: tuple[FleetTechnique, ...] = (\n", "    FleetLanes(),\n"),
    ),
)
REMOVE = """
import json, sys
from %s.module_utils.change.layout_module import bring_about
from %s.module_utils.change.prepare import removal_of
parameters = dict(layout=[], on_busy="fail", busy_timeout=0, grace_period=1, lock_timeout=5, lost="fail")
print(json.dumps(bring_about(dict(parameters, state_directory=sys.argv[1]), False, [removal_of("lanes")])))
""" % (PACKAGE, PACKAGE)


class HostOfCopy(SimulatedHost):
    """A host that runs the copy's modules."""

    copy: Path
    documented: ClassVar[bool] = False
    #: Interpreters that have loaded the copy. They are separate from those that have loaded the collection.
    _interpreters: ClassVar[dict] = {}

    @property
    def environment(self):
        return dict(super().environment, PYTHONPATH="%s:%s" % (self.copy, module_path()))

    def program(self, *words, **options):
        return self.run([sys.executable, *words], check=False, **options)


@pytest.fixture(scope="module", name="copy")
def copy_with_made_up_technique(tmp_path_factory):
    """Return the folder of a copy of the collection that has the technique.

    The technique stores its files in the folder `lanes` next to the copy.
    """
    folder = tmp_path_factory.mktemp("copy")
    plugins = folder / "ansible_collections/openfleet/gpu/plugins"
    for name in ("module_utils", "modules", "plugin_utils"):
        shutil.copytree(ROOT / "plugins" / name, plugins / name, ignore=shutil.ignore_patterns("__pycache__"))
    techniques = plugins / "module_utils/techniques"
    shutil.copytree(MADE_UP, techniques / "lanes", ignore=shutil.ignore_patterns("__pycache__", "fleet.py"))
    shutil.copy(MADE_UP / "fleet.py", plugins / "plugin_utils/techniques/lanes.py")
    model = techniques / "lanes/model.py"
    model.write_text(model.read_text().replace("@FOLDER@", str(folder / "lanes")))
    for table, *lines in TABLES:
        text = (plugins / table).read_text()
        for before, line in lines:
            assert text.count(before) == 1, (table, before)
            text = text.replace(before, before + line)
        (plugins / table).write_text(text)
    return folder


@pytest.fixture(name="made_up")
def host_with_made_up_technique(host, copy):
    """Return a host with two GPUs and no lanes."""
    found = HostOfCopy(host.folder, host.library)
    found.copy, found.lanes = copy, copy / "lanes"
    shutil.rmtree(found.lanes, ignore_errors=True)
    found.lanes.mkdir()
    return found.create([{"model": "L40S-48GB", "count": 2}])


def lanes(count, gpus=(0,)):
    return {"gpus": list(gpus), "sharing": "lanes", "lanes": {"count": count}}


def counts(host):
    return sorted(int(path.read_text()) for path in host.lanes.glob("GPU-*"))


def run(host, layout, name="layout", **options):
    return host.module(name, layout=layout, state_directory=str(host.folder / "state.d"), **options)


def command(host, *words):
    program = "import sys; from %s.module_utils.cli.main import main; sys.exit(main())" % PACKAGE
    done = host.program("-c", program, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_technique_is_parsed_planned_applied_and_rolled_back(made_up):
    wrong = run(made_up, [{"gpus": [0], "sharing": "lanes", "lanes": {"count": 0, "lane": 1}}])
    assert "gpu_layout[0].lanes.count: 0 is out of range" in wrong["msg"] and "unknown key" in wrong["msg"]
    assert "no GPU has 9 lanes" in run(made_up, [lanes(9)])["msg"]

    planned = run(made_up, [lanes(2)], check=True)
    assert planned["changed"] and counts(made_up) == []
    assert len(planned["plan"]) == 2 and planned["plan"][1].startswith("lanes: 2 instead of 0 on GPU-")
    assert planned["diff"]["before"] == "gpu 0: MIG off, compute mode default\n"
    assert planned["diff"]["after"] == "gpu 0: MIG off, compute mode default, 2 lanes\n"

    done = run(made_up, [lanes(2)])
    assert done["changed"] and done["gpus"][0]["asked"] == "lanes" and done["gpus"][0]["changed"]
    assert counts(made_up) == [2]
    assert not run(made_up, [lanes(2)])["changed"]
    assert run(made_up, [{"gpus": [0], "sharing": "shared"}])["changed"]
    assert counts(made_up) == []


@pytest.mark.parametrize("point", ["stop", "before 0", "after 0", "before 3", "after 3", "start", "forget"])
def test_next_run_recovers_from_a_kill_at_a_step(made_up, point):
    run(made_up, [lanes(2)])
    (made_up.lanes / "kill").write_text(point)
    arguments = {"layout": [lanes(3)], "state_directory": str(made_up.folder / "state.d")}
    killed = made_up.program("-m", "%s.modules.layout" % PACKAGE, input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
    assert killed.returncode == -9, killed.stderr
    (made_up.lanes / "kill").unlink()
    # The next run has no lanes, but still recovers the interrupted run. The interrupted change counts as complete only
    # if its last step had ended.
    recovered = run(made_up, [], "mig").get("recovered")
    assert (recovered, counts(made_up)) == ((None, [3]) if point == "forget" else ("old", [2]))
    run(made_up, [lanes(3)])
    assert counts(made_up) == [3]


def test_failure_of_another_gpu_rolls_it_back(made_up):
    run(made_up, [lanes(2)])
    made_up.gpusim("fail", "nvmlDeviceSetComputeMode", "--code", "UNKNOWN")
    failed = run(made_up, [lanes(3), {"gpus": [1], "sharing": "exclusive"}])
    assert failed["failed"] and failed["outcome"] == "old"
    assert counts(made_up) == [2]


def test_saved_plan_is_applied_or_reports_changes(made_up):
    saved = run(made_up, [lanes(2)], check=True)["plan_data"]
    assert [step["count"] for step in saved["lanes"]["steps"]] == [2]
    assert "is to be exclusive" in run(made_up, [{"gpus": [0], "sharing": "exclusive"}], plan=saved)["msg"]
    refused = run(made_up, [lanes(4)], plan=saved)["msg"]
    assert "the steps have changed: lanes: 4 instead of 0" in refused and counts(made_up) == []
    assert run(made_up, [lanes(2)], plan=saved)["changed"]
    assert counts(made_up) == [2]


def test_technique_is_exported_reported_and_measured(made_up):
    run(made_up, [lanes(2)])
    exported = json.loads(command(made_up, "export", "--json"))["gpu_layout"]
    assert {"gpus": [0], "sharing": "lanes", "lanes": {"count": 2}} in exported
    told = made_up.module("gpu_info", telemetry=False, holders=False)
    assert told["lanes"] == [{"gpu": told["gpus"][0]["uuid"], "count": 2}]
    assert "2 lanes on GPU-" in command(made_up, "show")
    assert json.loads(command(made_up, "show", "--json"))["lanes"][0]["count"] == 2
    (made_up.folder / "layout.json").write_text(json.dumps([lanes(3)]))
    where = ("--layout", str(made_up.folder / "layout.json"), "--state-directory", str(made_up.folder / "state.d"))
    command(made_up, "metrics", "--textfile", str(made_up.folder), *where)
    metrics = (made_up.folder / "openfleet_gpu_layout.prom").read_text()
    assert re.search(r"openfleet_lanes{.*} 2\n", metrics)
    assert re.search(r"openfleet_layout_differences{.*} 1\n", metrics)


def test_technique_is_removed_and_the_rest_stays(made_up):
    run(made_up, [lanes(2, [0, 1])])
    done = made_up.program("-c", REMOVE, str(made_up.folder / "state.d"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["changed"] and counts(made_up) == []


def test_controller_audits_packs_and_offers_the_technique(made_up):
    run(made_up, [lanes(2)])
    told = made_up.module("gpu_info", telemetry=False, holders=False)
    done = made_up.program(str(FLEET_PROGRAM), input=json.dumps(told))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    # The controller checks the hosts' results, which contain lanes.
    assert found["rows"] == [{"gpu": told["gpus"][0]["uuid"], "count": 2}]
    assert "lanes[0].gpu" in found["refused"]

    # The audit counts the technique's processes as use of the GPU. Right-sizing excludes this GPU.
    assert found["held"] == [True, False]
    assert found["left"] == {
        "entry": ["it is shared by lanes, so its history cannot be assigned to one workload", ""],
        "rows": ["a lane keeper serves it, so its history cannot be assigned to one workload", ""],
    }

    # Right-sizing chooses lanes, the made-up technique, for suitable workloads. The planners accept the packing.
    assert found["mode"][0] == "lanes" and "it stays in its lane" in found["mode"][1]
    assert found["mode"][2] == "mps" and found["wish"] == "lanes"
    assert found["layout"] == [lanes(3)] and found["problems"] == []
    assert found["plan"] == ["lanes %s: 3" % told["gpus"][0]["uuid"]]
    assert "its neighbours can see its lane" in found["risk"]
    assert found["unplaced"] == 1 and "lanes end at the edge of a GPU" in found["wide"]

    # Backends offer pods that take turns. If a backend cannot describe the technique, it refuses the entry or leaves it
    # out.
    assert found["offers"]["nvidia_device_plugin"]["resources"] == {"nvidia.com/gpu": 3}
    assert found["offers"]["nvidia_dra"]["resources"] == {"gpu.nvidia.com": 1}
    assert found["offers"]["hami"]["resources"] == {"nvidia.com/gpu": 3}
    assert all(not offer["problems"] for offer in found["offers"].values())
    singles = {key: offer["single"] for key, offer in found["offers"].items()}
    assert "does not support lanes" in singles["nvidia_device_plugin"][0]
    assert "does not support lanes" in singles["nvidia_dra"][0]
    assert singles["hami"] == ["HAMi does not use the layout's lane keeper"]
