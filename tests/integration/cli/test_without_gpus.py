# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test fits and import of gpu-layout without a GPU, a driver or pynvml."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.layout.files import read_configuration
from tests.integration.command_host import PYTHON


@pytest.fixture
def bare(command):
    def run(*arguments: str, status: int = 0, **options) -> subprocess.CompletedProcess:
        # With -I and -S, Python has only its standard library.
        words = [PYTHON, "-I", "-S", str(command), *arguments]
        done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


def test_fitting_profiles_have_placements(bare):
    said = bare("fits", "H100-80GB", "3g.40gb", "2x2g.20gb").stdout.splitlines()
    assert said[0] == "H100-80GB: 1x 3g.40gb, 2x 2g.20gb fit, as 2g.20gb@0, 2g.20gb@2, 3g.40gb@4"
    assert all(line.startswith("not confirmed: ") for line in said[1:]) and len(said) > 1


def test_unfitting_profiles_show_the_largest_fitting_part(bare):
    said = bare("fits", "h100-80gb", "3x3g.40gb", status=1).stdout
    assert "3x 3g.40gb do not fit together" in said and "The largest part that fits is: 2x 3g.40gb." in said
    told = json.loads(bare("fits", "H100-80GB", "3x3g.40gb", "--json", status=1).stdout)
    assert (told["fits"], told["largest_part"]) == (False, ["3g.40gb", "3g.40gb"])


def test_pinned_profile_keeps_its_placement_or_is_refused(bare):
    told = json.loads(bare("fits", "A100-40GB", "3g.20gb@4", "4g.20gb", "--json").stdout)
    assert told["instances"] == [{"profile": "4g.20gb", "placement": 0}, {"profile": "3g.20gb", "placement": 4}]
    assert "Without `placement` they would fit" in bare("fits", "A100-40GB", "3g.20gb@0", "4g.20gb", status=1).stdout


def test_model_is_known_by_board_names(bare):
    by_name = bare("fits", "NVIDIA H100 80GB HBM3", "7g.80gb").stdout
    assert by_name == bare("fits", "H100-80GB", "7g.80gb").stdout


def test_unconfirmed_facts_of_a_model_are_named(bare):
    told = json.loads(bare("fits", "B200-180GB", "1g.23gb", "--json").stdout)
    assert "1g.23gb.placement_starts" in told["unconfirmed"]
    # If a request uses no other profile, the result lists no other profile as unconfirmed.
    assert not any(field.startswith("7g.180gb") for field in told["unconfirmed"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["H900", "3g.40gb"], "A100-40GB, A100-80GB"),
        (["H100-80GB", "3g.4"], "is not the name of a MIG profile"),
        (["H100-80GB", "1c.3g.40gb"], "it is a compute instance"),
    ],
)
def test_unknown_model_is_an_error(bare, arguments, said):
    assert said in bare("fits", *arguments, status=1).stderr


def test_gpu_without_mig_fits_nothing(bare):
    assert "this GPU has no MIG" in bare("fits", "L40S-48GB", "3g.40gb", status=1).stdout


MIG_PARTED = {
    "version": "v1",
    "mig-configs": {
        "all-disabled": [{"devices": "all", "mig-enabled": False}],
        "mixed": [
            {"devices": [0, 1], "mig-enabled": True, "mig-devices": {"1g.10gb": 7}},
            {"devices": [2], "mig-enabled": True, "mig-devices": {"1c.3g.40gb": 2}},
            {"devices": [3], "mig-enabled": True, "mig-devices": {"2c.3g.40gb": 2, "1c.3g.40gb": 2}},
        ],
    },
}


@pytest.mark.host_python
def test_import_prints_a_layout_for_each_label(bare, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MIG_PARTED))
    done = bare("import", str(file))
    split = {"profile": "3g.40gb", "compute_instances": ["1c.3g.40gb", "1c.3g.40gb"]}
    mixed = [([0, 1], [{"profile": "1g.10gb", "count": 7}]), ([2], [split]), ([3], [])]
    layouts = [document["gpu_layout"] for document in yaml.safe_load_all(done.stdout)]
    assert layouts == [
        [{"gpus": "all", "sharing": "shared"}],
        [{"gpus": gpus, "sharing": "mig", "mig": mig} for gpus, mig in mixed],
    ]
    assert "mixed[2]: 2x 2c.3g.40gb, 2x 1c.3g.40gb are left out" in done.stderr
    assert "# NOT AS THERE: " in done.stdout
    one = bare("import", "-", "--label", "mixed", "--json", input=json.dumps(MIG_PARTED))
    assert list(json.loads(one.stdout)) == ["mixed"]
    assert "It has: all-disabled, mixed" in bare("import", str(file), "--label", "x", status=1).stderr


def config_map(name, data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@pytest.mark.parametrize(
    "documents",
    [
        [{"other": 1}, MIG_PARTED],
        [config_map("mig-parted", {"config.yaml": yaml.safe_dump(MIG_PARTED)})],
        [
            config_map("other", {"reset.sh": "#!/bin/sh: [", "text": "none"}),
            config_map("c", {"a": json.dumps(MIG_PARTED)}),
        ],
        [{"kind": "List", "items": [config_map("c", {"config.yaml": yaml.safe_dump(MIG_PARTED)})]}],
    ],
    ids=["document", "ConfigMap", "ConfigMaps", "List"],
)
def test_import_finds_the_configuration_in_other_yaml(tmp_path, documents):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    assert read_configuration(str(file), "mig-configs") == MIG_PARTED


def test_import_refuses_two_configurations_and_none(bare, tmp_path):
    file = tmp_path / "config.yaml"
    embedded = config_map("c", {"config.yaml": yaml.safe_dump(MIG_PARTED)})
    file.write_text(yaml.safe_dump_all([MIG_PARTED, embedded]))
    with pytest.raises(FleetError, match=r"document 1 and document 2, data\.config\.yaml have mig-configs"):
        read_configuration(str(file), "mig-configs")
    file.write_text(json.dumps(config_map("c", {"config.yaml": json.dumps({"version": "v1"})})))
    assert "it has no mig-configs" in bare("import", str(file), status=1).stderr


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("MIG 1g.10gb", "1g.10gb"),
        ("MIG 1g.10gb+me", "1g.10gb+me"),
        ("  MIG 3g.40gb     Device  0: (UUID: MIG-5c89d3fa)", "3g.40gb"),
        ("MIG 1c.3g.40gb", "1c.3g.40gb"),
        ("MIG-3G.40GB", "3g.40gb"),
        ("mig-1g-10gb", "1g.10gb"),
    ],
)
def test_name_from_nvidia_smi_is_suggested(bare, written, meant):
    assert "Did you mean %s? " % meant in bare("fits", "H100-80GB", written, status=1).stderr
