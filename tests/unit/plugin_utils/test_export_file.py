# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the file that exports a host for an inventory.

The tests also cover the pynvml that the export needs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pynvml
import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.layout.yaml_text import layout_yaml
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml import calls as nvml_calls
from ansible_collections.openfleet.gpu.plugins.plugin_utils import export_file, lent_pynvml, nvml_source

SHARED = [{"gpus": "all", "sharing": "shared"}]
HALVES = [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]


def write(folder, layout, known=None, overwrite=False, dry=False, left_out=()):
    plan = export_file.plan("h1", str(folder), layout, list(left_out))
    return export_file.write(plan, known, overwrite, dry), plan.path


def test_file_is_written_once(tmp_path):
    done, path = write(tmp_path, HALVES, dry=True)
    assert (done.changed, done.text) == (True, "h1: would write %s (1 entry)" % path)
    assert not path.exists()
    done, path = write(tmp_path, HALVES, left_out=["gpu 3 (L40S) is left out: a change is pending"])
    assert done.text.startswith("h1: wrote ") and done.text.endswith(
        "left out: gpu 3 (L40S) is left out: a change is pending"
    )
    assert path == tmp_path / "host_vars" / "h1" / "gpu_layout.yml"
    assert yaml.safe_load(path.read_text()) == {"gpu_layout": HALVES}
    assert "# Left out: gpu 3 (L40S)" in path.read_text()
    assert list(path.parent.iterdir()) == [path]
    done, _path = write(tmp_path, HALVES, known=HALVES)
    assert (done.changed, done.text) == (False, "h1: the inventory has this layout already")


def test_equivalent_layout_is_not_rewritten(tmp_path):
    path = tmp_path / "host_vars" / "h1" / "gpu_layout.yml"
    path.parent.mkdir(parents=True)
    text = "# ours\ngpu_layout:\n  - sharing: mig\n    gpus: all\n    mig: [{profile: 3g.40gb, count: 2}]\n"
    path.write_text(text)
    assert not write(tmp_path, HALVES)[0].changed
    assert path.read_text() == text


@pytest.mark.parametrize(
    "text", ["gpu_layout: []\n", "", "a: [", "gpu_layout: !vault x\n", "gpu_layout: []\nother: 1\n"]
)
def test_different_file_stays_without_the_option(tmp_path, text):
    path = tmp_path / "host_vars" / "h1" / "gpu_layout.yml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(FleetError, match="gpu_export_overwrite=true"):
        write(tmp_path, HALVES)
    assert path.read_text() == text
    assert write(tmp_path, HALVES, overwrite=True, dry=True)[0].changed
    assert path.read_text() == text
    assert write(tmp_path, HALVES, overwrite=True)[0].changed
    assert yaml.safe_load(path.read_text()) == {"gpu_layout": HALVES}


def test_layout_elsewhere_in_the_inventory_counts(tmp_path):
    assert not write(tmp_path, SHARED, known=SHARED)[0].changed
    with pytest.raises(FleetError, match="the inventory has another gpu_layout"):
        write(tmp_path, HALVES, known=SHARED)
    assert not (tmp_path / "host_vars").exists()


@pytest.mark.parametrize("host", ["../h1", "a/b", ".hidden", "a\0b"])
def test_host_name_that_is_no_directory_is_refused(tmp_path, host):
    with pytest.raises(FleetError, match="a directory cannot"):
        export_file.plan(host, str(tmp_path), SHARED, [])


@pytest.mark.parametrize(
    "layout",
    [
        "{{ lookup('pipe', 'id') }}",
        [{"gpus": "{{ x }}", "sharing": "shared"}],
        [
            {
                "gpus": [0],
                "sharing": "vgpu",
                "vgpu": {"tenants": [{"name": "{{ x }}", "memory": "1GiB", "sm_percent": 1}]},
            }
        ],
        [{"gpus": [{"model": "{{ x }}"}], "sharing": "shared"}],
        None,
    ],
)
def test_only_valid_layouts_of_own_gpus_are_accepted(layout):
    with pytest.raises(FleetError, match="Find out who changed"):
        export_file.checked("h1", {"gpu_layout": layout, "left_out": []})


def test_left_out_sentences_are_printable():
    _layout, left_out = export_file.checked("h1", {"gpu_layout": [], "left_out": ["a\nb: c\x1b[31m", 7]})
    assert "\n" not in "".join(left_out) and "\x1b" not in "".join(left_out)


@pytest.mark.parametrize(
    "sentence",
    [
        "a\n---\ngpu_layout: []",
        "a\rother: 1",
        "a\x85b: 1",
        "a\u2028b: 1",
        "a\u2029b: 1",
        "\ufeffa",
        "\u00e9\u4e2d",
        "\udcff",
        "",
    ],
)
def test_sentences_are_one_line_of_ascii_in_the_file(tmp_path, sentence):
    _done, path = write(tmp_path, HALVES, left_out=[sentence, "b"])
    lines = path.read_text(encoding="utf-8").splitlines()
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert [line[:12] for line in lines[1:3]] == ["# Left out: "] * 2 and lines[3] == "---"
    assert yaml.safe_load(path.read_text()) == {"gpu_layout": HALVES}


def test_text_that_reads_differently_is_not_written(tmp_path, monkeypatch):
    for other in ("gpu_layout: []\n", "gpu_layout: [\n", layout_yaml(HALVES) + "other: 1\n"):
        monkeypatch.setattr(export_file, "layout_yaml", lambda _layout, other=other: other)
        with pytest.raises(FleetError, match="would change when written as YAML"):
            write(tmp_path, HALVES)
    assert list(tmp_path.iterdir()) == []


# -- pynvml --


def test_pynvml_is_lent_only_if_missing():
    asked = []

    def execute(args):
        asked.append(args)
        return {"plan": []} if "pynvml" in args or len(asked) > 2 else {"pynvml_missing": True}

    assert lent_pynvml.run(execute, {"layout": []}, []) == {"plan": []}
    assert asked[0] == {"layout": []}
    assert asked[1]["pynvml"] == Path(pynvml.__file__).read_text()
    assert lent_pynvml.run(execute, {"layout": []}, []) == {"plan": []}
    assert len(asked) == 3


def test_pynvml_with_an_unknown_hash_is_not_lent(monkeypatch, tmp_path):
    (tmp_path / "pynvml.py").write_text("# another\n")
    monkeypatch.setattr(
        nvml_source.importlib.util, "find_spec", lambda name: type("Spec", (), {"origin": str(tmp_path / "pynvml.py")})
    )
    result = lent_pynvml.run(lambda _args: {"pynvml_missing": True}, {}, [])
    assert result["failed"] and "the SHA-256 of " in result["msg"] and result["msg"].endswith("Nothing was changed.")


def test_lent_source_works_as_the_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nvml_calls.lend(Path(pynvml.__file__).read_text())
    lent = nvml_calls._binding()
    assert lent is not pynvml and lent.NVML_ERROR_NOT_FOUND == pynvml.NVML_ERROR_NOT_FOUND
