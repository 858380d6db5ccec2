# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that all model files are valid, and that errors name the file and field."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils import catalogue

MODELS = catalogue.load_models()
MODULE_UTILS = Path(catalogue.__file__).resolve().parent
ROOT = Path(__file__).resolve().parents[3]
PROFILES = [pytest.param(m, p, id=f"{m.key}-{p.name}") for m in MODELS.values() for p in m.profiles]
# From nvml.h: (slices, attribute) of each NVML_GPU_INSTANCE_PROFILE_* value that a model may use.
NVML_PROFILES = {
    (1, ""): {0, 9}, (2, ""): {1}, (3, ""): {2}, (4, ""): {3}, (7, ""): {4},
    (1, "+me"): {7}, (2, "+me"): {8}, (1, "+gfx"): {10}, (2, "+gfx"): {11}, (4, "+gfx"): {12},
    (1, "-me"): {13}, (2, "-me"): {14}, (1, "+me.all"): {15}, (2, "+me.all"): {16},
}  # fmt: skip


def table_rows():
    """Yield the cells of each row of the table in docs/models.md.

    The first cell of a row has the keys of one or more models.
    """
    for line in (ROOT / "docs/models.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_table_of_models_lists_the_catalogue():
    listed = [key for keys, *_ in table_rows() for key in re.findall(r"`([^`]+)`", keys)]
    assert sorted(listed) == sorted(MODELS)


@pytest.mark.parametrize("row", list(table_rows()), ids=lambda row: row[0])
def test_table_rows_match_the_model_files(row):
    keys, gpus, instances, change = row
    for model in (MODELS[key] for key in re.findall(r"`([^`]+)`", keys) if key in MODELS):
        assert model.architecture in gpus
        if model.mig_capable:
            assert re.match(r"up to %d\b" % model.max_gpu_instances, instances), model.key
            assert change == ("needs a reset" if model.mig_needs_reset else "at once"), model.key
        else:
            assert (instances, change) == ("none", ""), model.key


def profile_name(compute_slices: int, memory_mib: int, memory_total_mib: int, attribute: str = "") -> str:
    """Build a profile's name from NVML's data, as NVIDIA's go-nvlib does.

    Source: pkg/nvlib/device/mig_profile.go. The memory is rounded up to eighths of the GPU, and then to whole GB, with
    halves rounded up. For example, 1/8 of 180 GB is 23 GB.
    """
    eighths = math.ceil(memory_mib * 8 / memory_total_mib)
    total_gib = math.ceil(memory_total_mib / 1024)
    return f"{compute_slices}g.{math.floor(eighths * total_gib / 8 + 0.5)}gb{attribute}"


@pytest.mark.parametrize("model, profile", PROFILES)
def test_names_of_profiles_follow_from_their_memory(model, profile):
    memory_mib = model.profile_memory_mib(profile)
    name = profile_name(profile.compute_slices, memory_mib, model.memory_total_mib, profile.attribute)
    assert name == profile.name


@pytest.mark.parametrize("model, profile", PROFILES)
def test_identifiers_are_those_of_nvml_h(model, profile):
    assert profile.nvml_profile in NVML_PROFILES[profile.compute_slices, profile.attribute]


@pytest.mark.parametrize("model, profile", PROFILES)
def test_max_instances_is_what_the_grid_allows(model, profile):
    apart, end = 0, 0
    for placement in sorted(profile.placements, key=lambda p: p.start):
        if placement.start >= end:
            apart, end = apart + 1, placement.start + placement.size
    by_slices = model.compute_slices // profile.compute_slices
    allowed = min(apart, by_slices)
    # An attribute is a separate resource (one +me per GPU). For profiles with an attribute, the grid gives only an
    # upper bound.
    assert profile.max_instances == allowed if not profile.attribute else profile.max_instances <= allowed


@pytest.mark.parametrize("model", [m for m in MODELS.values() if m.mig_capable], ids=lambda m: m.key)
def test_compute_instances_fit_into_their_gpu_instance(model):
    for slices, profiles in model.compute_instance_profiles.items():
        assert profiles[-1].compute_slices == slices, "the whole GPU instance as one compute instance is missing"
        for profile in profiles:
            assert all(p.start + p.size <= slices for p in profile.placements)
            assert profile.max_instances == len(profile.placements) <= slices // profile.compute_slices


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda m: m.key)
def test_memory_is_plausible(model):
    whole = [p for p in model.profiles if p.placement_size == model.placement_units]
    assert all(model.profile_memory_mib(p) <= model.memory_total_mib for p in whole)
    assert bool(whole) == model.mig_capable


@pytest.mark.parametrize("model, profile", PROFILES)
def test_the_whole_gpu_as_one_instance_has_most_multiprocessors(model, profile):
    """The profile has at least four fifths of the GPU's multiprocessors.

    The seven slices of a B200 have 126 of its 148 multiprocessors.
    """
    assert profile.multiprocessors <= model.multiprocessors
    if profile.placement_size == model.placement_units and profile.compute_slices == model.compute_slices:
        assert profile.multiprocessors >= 0.8 * model.multiprocessors


SEVEN_SLICES = (("1g", 1, 7), ("1g", 1, 1), ("1g", 2, 4), ("2g", 2, 3), ("3g", 4, 2), ("4g", 4, 1), ("7g", 8, 1))


@pytest.mark.parametrize(
    "device_id, key, sizes",
    [
        ("3182", "B300-269GB", ("34gb", "34gb+me", "67gb", "67gb", "135gb", "135gb", "269gb")),
        ("31c2", "GB300-278GB", ("35gb", "35gb+me", "70gb", "70gb", "139gb", "139gb", "278gb")),
        ("232c", "H20-141GB", ("18gb", "18gb+me", "35gb", "35gb", "71gb", "71gb", "141gb")),
    ],
)
def test_models_with_seven_slices_have_the_profiles_of_nvidias_lists(device_id, key, sizes):
    """NVIDIA's lists are mig-parted's config-default.yaml and the vGPU documentation.

    B300 and GB300 are in the file. H20 SXM5 141GB is in the documentation.
    """
    model = MODELS[key]
    assert [board.pci_device_id for board in model.boards] == [device_id]
    expected = [(f"{slices}.{size}", units, count) for (slices, units, count), size in zip(SEVEN_SLICES, sizes)]
    assert [(p.name, p.placement_size, p.max_instances) for p in model.profiles] == expected


def test_rtx_pro_4500_has_the_profiles_of_the_mig_guide():
    model = MODELS["RTXPRO4500-32GB"]
    assert [board.pci_device_id for board in model.boards] == ["2c31"]
    halves = {"1g.16gb": 2, "1g.16gb+gfx": 2, "1g.16gb+me.all": 1, "1g.16gb-me": 2}
    assert {p.name: p.max_instances for p in model.profiles} == {**halves, "2g.32gb": 1, "2g.32gb+gfx": 1}


def test_a_model_with_two_published_sets_of_profiles_names_the_other_set():
    reason = MODELS["RTXPRO5000-48GB"].unconfirmed["profiles"]
    assert all(name in reason for name in ("r580", "1g.12gb", "2g.24gb-me", "4g.48gb"))
    assert "227a" in MODELS["RTXPRO5000-48GB"].unconfirmed["boards"]


def test_a_derived_memory_stays_unconfirmed():
    unknown = [(m, p) for m in MODELS.values() for p in m.profiles if p.memory_mib is None]
    assert unknown, "with no unknown memory left, the rule for deriving it can go"
    assert all("memory_mib" in p.unconfirmed for _, p in unknown)


def test_find_model_ignores_case_and_lists_known_models():
    assert catalogue.find_model("h100-80gb").key == "H100-80GB"
    with pytest.raises(catalogue.CatalogueError, match=r"H999.*not in the catalogue.*H100-80GB"):
        catalogue.find_model("H999")
    with pytest.raises(catalogue.CatalogueError, match=r"no profile 9g.99gb.*1g.10gb"):
        MODELS["H100-80GB"].profile("9g.99gb")
    with pytest.raises(catalogue.CatalogueError, match="no MIG"):
        MODELS["T4-16GB"].profile("1g.10gb")


def test_simulated_library_supports_the_inventorys_maximum_of_gpus():
    header = (MODULE_UTILS.parents[1] / "roles/gpu_simulator/files/src/host.h").read_text(encoding="utf-8")
    assert "\tMAX_GPUS = %d," % catalogue.MOST_SIMULATED_GPUS in header
    specs = (MODULE_UTILS.parents[1] / "roles/gpu_simulator/meta/argument_specs.yml").read_text(encoding="utf-8")
    assert "at most %d GPUs" % catalogue.MOST_SIMULATED_GPUS in specs


def changed(**changes):
    data = json.loads((MODULE_UTILS / "models" / "h100-80gb.json").read_text())
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = data
        for parent in parents:
            place = place[int(parent) if parent.isdigit() else parent]
        if value is KeyError:
            del place[last]
        else:
            place[last] = value
    return json.dumps(data)


def variant(pci_subsystem_id="18bf", **differences):
    own = {} if pci_subsystem_id is KeyError else {"pci_subsystem_id": pci_subsystem_id}
    return {**own, "differences": differences}


@pytest.mark.parametrize(
    "changes, where, problem",
    [
        ({"schema": 2}, "schema", "is 2"),
        ({"multiprocessors": KeyError}, "multiprocessors", "is missing"),
        ({"multiprocessors": "132"}, "multiprocessors", 'is "132", not int'),
        ({"multiprocessors": True}, "multiprocessors", "is true, not int"),
        ({"memory_total_mib": -1}, "memory_total_mib", "is negative"),
        ({"power_watts__idle": None}, "power_watts", "idle power must be explained"),
        ({"idle_clocks_mhz__sm": 345}, "idle_clocks_mhz", "exactly"),
        ({"memory_temperatures_celsius__max": KeyError}, "memory_temperatures_celsius", "exactly"),
        ({"inforom__image": 5}, "inforom.image", "not str"),
        ({"colour": "green"}, "colour", "is not a field"),
        ({"key": "H100"}, "key", "does not match"),
        ({"boards": []}, "boards", "is empty"),
        ({"unconfirmed__colour": "no"}, "unconfirmed", "colour"),
        ({"power_watts__peak": 9}, "power_watts", "exactly"),
        ({"mig_capable": False}, "mig_capable", "else false"),
        ({"profiles__4__placement_starts": [0, 6]}, "profiles[4].placement_starts", "6 does not leave room"),
        ({"profiles__4__placement_starts": ["0"]}, "profiles[4].placement_starts.0", "not int"),
        ({"profiles__4__memory_mib": None}, "profiles[4].memory_mib", "under unconfirmed"),
        ({"profiles__4__name": "40gb"}, "profiles[4].name", "no profile name"),
        ({"profiles__4__profile_id": 19}, "profiles", "same profile_id"),
        ({"profiles": "none"}, "profiles", "not list"),
        ({"compute_instance_profiles__three": []}, "compute_instance_profiles.three", "as key"),
        ({"compute_instance_profiles__3": KeyError}, "profiles[4].compute_slices", "no entry for 3"),
        ({"variants": [variant(pci_subsystem_id=KeyError)]}, "variants[0].pci_subsystem_id", "is missing"),
        ({"variants": [variant(), variant()]}, "variants", "one subsystem id"),
        ({"variants": [variant(pci_subsystem_id="16c1")]}, "variants", "one subsystem id"),
        ({"variants": [variant(colour=1)]}, "variants[0].differences", "does not exist: colour"),
        ({"variants": [variant(profiles=1)]}, "variants[0].differences", "does not exist: profiles"),
        ({"variants": [variant(memory_reserved_mib=None)]}, "variants[0].differences.memory_reserved_mib", "not str"),
    ],
)
def test_a_malformed_model_names_file_and_field(changes, where, problem):
    with pytest.raises(catalogue.CatalogueError) as caught:
        catalogue.parse_model(changed(**changes), "/somewhere/h100-80gb.json")
    assert caught.value.where == "/somewhere/h100-80gb.json: " + where
    assert problem in caught.value.problem
    assert caught.value.cure


def test_text_that_is_not_a_json_object():
    for text in ("{", "[]"):
        with pytest.raises(catalogue.CatalogueError, match=r"h100-80gb\.json"):
            catalogue.parse_model(text, "h100-80gb.json")


def test_a_new_model_is_one_more_file(tmp_path):
    (tmp_path / "x1-80gb.json").write_text(changed(key="X1-80GB"))
    (tmp_path / "notes.txt").write_text("no model")
    assert list(catalogue.load_models(str(tmp_path))) == ["X1-80GB"]
    with pytest.raises(catalogue.CatalogueError, match="cannot be read"):
        catalogue.load_models(str(tmp_path / "nowhere"))


def test_two_models_with_one_pci_device_id_are_refused(tmp_path):
    for key in ("X1-80GB", "X2-80GB"):
        (tmp_path / f"{key.lower()}.json").write_text(changed(key=key))
    with pytest.raises(catalogue.CatalogueError) as caught:
        catalogue.load_models(str(tmp_path))
    assert caught.value.where == str(tmp_path / "x2-80gb.json")
    assert "PCI device id 2330 is that of X1-80GB too" in caught.value.problem


def test_catalogue_loads_from_a_zipapp(tmp_path):
    target = tmp_path / "tool.pyz"
    with zipfile.ZipFile(target, "w") as bundle:
        bundle.writestr("fleet/__init__.py", "")
        for name in ("catalogue.py", "errors.py", "frozen.py"):
            bundle.write(MODULE_UTILS / name, "fleet/" + name)
        bundle.write(MODULE_UTILS / "models" / "t4-16gb.json", "fleet/models/t4-16gb.json")
        bundle.writestr("__main__.py", "from fleet.catalogue import load_models\nprint(*load_models())\n")
    ran = subprocess.run([sys.executable, str(target)], stdout=subprocess.PIPE, check=True, cwd=str(tmp_path))
    assert ran.stdout.decode().split() == ["T4-16GB"]
