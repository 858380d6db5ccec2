# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test a node's lines in the files that slurm.conf and gres.conf include."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.config import (
    GRES,
    NODES,
    Request,
    candidate,
    edit,
    former_lines,
    with_former,
)

ETC = "/etc/slurm"
NODE_LINE = "NodeName=gpu-a NodeAddr=10.0.0.1 CPUs=64 RealMemory=500000 Gres=gpu:h100:4 Weight=5\n"
LINES = ("NodeName=gpu-a AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia0",)
WANTED = Request("gpu-a", "gpu:h100:1", ("gpu",), ("gres/gpu", "gres/gpu:h100"), LINES)


def files(**texts):
    """Return the prepared files of a cluster. A text of None means no file."""
    given = {
        "slurm": f"ClusterName=lab\nGresTypes=gpu\nInclude {NODES}\nPartitionName=main Nodes=ALL\n",
        "gres": f"Include {GRES}\n",
        "nodes": NODE_LINE + "NodeName=gpu-b CPUs=2 Gres=gpu:h100:1\n",
        "lines": "NodeName=gpu-b Name=gpu Type=h100 File=/dev/nvidia0\n",
        **texts,
    }
    names = {"slurm": "slurm.conf", "gres": "gres.conf", "nodes": NODES, "lines": GRES}
    return {f"{ETC}/{names.get(key, key)}": text for key, text in given.items() if text is not None}


def test_only_gres_of_the_node_changes():
    found = edit(files(), ETC, WANTED)
    assert found.problems == () and not found.new_types
    assert found.texts[NODES] == files()[f"{ETC}/{NODES}"].replace("gpu:h100:4", "gpu:h100:1")
    assert found.texts[GRES] == files()[f"{ETC}/{GRES}"] + LINES[0] + "\n"


@pytest.mark.parametrize(
    "line",
    [
        "NodeName=gpu-a CPUs=2",
        "nodename=gpu-a CPUs=2 gres=gpu:2 State=UNKNOWN",
        "NodeName=gpu-a CPUs=2 \\\n   Gres=gpu:2 \\\n   Feature=x",
        'NodeName=gpu-a Gres=gpu:2 Reason="has Gres in it" # Gres=gpu:9',
    ],
)
def test_gres_is_written_once(line):
    found = edit(files(nodes=line + "\n"), ETC, WANTED)
    assert found.problems == ()
    (text,) = found.texts[NODES].splitlines()
    assert text.partition("#")[0].lower().count(" gres=") == 1 and " Gres=gpu:h100:1" in text
    assert ("# Gres=gpu:9" in text) == ("#" in line)
    again = edit(files(nodes=found.texts[NODES], lines=found.texts[GRES]), ETC, WANTED)
    assert again.texts == found.texts


def test_node_without_gpus_has_no_gres():
    found = edit(files(), ETC, Request("gpu-a"))
    assert "NodeName=gpu-a NodeAddr=10.0.0.1 CPUs=64 RealMemory=500000 Weight=5\n" in found.texts[NODES]
    assert found.texts[GRES] == files()[f"{ETC}/{GRES}"]


def test_lines_replace_the_former_ones_in_place():
    former = "# mine\nNodeName=gpu-a Name=gpu File=/dev/nvidia7\nNodeName=gpu-b Name=gpu File=/dev/nvidia0\n"
    found = edit(files(lines=former), ETC, WANTED)
    assert found.texts[GRES].splitlines() == ["# mine", LINES[0], "NodeName=gpu-b Name=gpu File=/dev/nvidia0"]


def test_unknown_lines_are_kept():
    former = "NodeName=gpu-a Name=gpu File=/dev/nvidia7\n"
    assert edit(files(lines=former), ETC, Request("gpu-a", "gpu:1", ("gpu",), lines=None)).texts[GRES] == former


@pytest.mark.parametrize(
    ("texts", "place", "cure"),
    [
        # This is the first run on a cluster.
        ({"slurm": "ClusterName=lab\n" + NODE_LINE, "nodes": None}, "slurm.conf:", f"touch {ETC}/{NODES}"),
        ({"slurm": "ClusterName=lab\n" + NODE_LINE, "nodes": None}, "slurm.conf line 2", f"Move the line to {ETC}/{NODES}"),
        ({"gres": "", "lines": None}, "gres.conf:", f"Add the line `Include {GRES}`"),
        ({"gres": None, "lines": None}, "gres.conf: the file does not exist", f"touch {ETC}/{GRES}"),
        # Slurm refuses a second line for the node.
        ({"slurm": f"Include {NODES}\nNodeName=gpu-[1-2],gpu-a CPUs=1\n"}, "slurm.conf line 2", "refuses a second line"),
        ({"slurm": f"Include {NODES}\nInclude more.conf\n", "more.conf": NODE_LINE}, "more.conf line 1", "Move the line"),
        ({"nodes": ""}, NODES, "slurmd -C"),
        ({"nodes": "NodeName=gpu-[1-3],gpu-a CPUs=1\n"}, f"{NODES} line 1", "one line for each node"),
        # slurmd would add the devices of these lines to the layout's devices.
        ({"gres": f"Include {GRES}\nName=gpu File=/dev/nvidia0\n"}, "gres.conf line 2", "with NodeName=gpu-a in front"),
        ({"gres": f"Include {GRES}\nNodeName=gpu-a Name=gpu File=/dev/nvidia0\n"}, "gres.conf line 2", "Move the line"),
        ({"gres": f"Include {GRES}\nNodeName=gpu-a AutoDetect=nvml\n"}, "gres.conf line 2", "Move the line"),
        ({"lines": "NodeName=gpu-a,gpu-b Name=gpu File=/dev/nvidia0\n"}, f"{GRES} line 1", "one line for each node"),
        ({"slurm": f"GresTypes=mps\nInclude {NODES}\n"}, "slurm.conf line 1", "GresTypes=mps,gpu"),
    ],
)  # fmt: skip
def test_administrator_is_told_what_to_change(texts, place, cure):
    problems = [str(problem) for problem in edit(files(**texts), ETC, WANTED).problems]
    assert any(place in problem and cure in problem for problem in problems), problems


def test_message_has_the_line_to_move():
    slurm = "ClusterName=lab\n" + NODE_LINE
    (problem,) = [p for p in edit(files(slurm=slurm, nodes=None), ETC, WANTED).problems if "line 2" in p.where]
    assert NODE_LINE.strip() in problem.cure


@pytest.mark.parametrize(
    "gres", ["Name=nic File=/dev/ib0\n", "NodeName=gpu-[02-10] Name=gpu File=/dev/nvidia0\n", "# Name=gpu\n"]
)
def test_lines_of_others_are_no_problem(gres):
    assert edit(files(gres=f"Include {ETC}/{GRES}\n{gres}"), ETC, WANTED).problems == ()


def test_types_are_added_where_the_collection_may_write():
    request = Request("gpu-a", "gpu:h100:1,shard:4", ("gpu", "shard"), lines=LINES)
    without = files(slurm=f"Include {NODES}\n")
    found = edit(without, ETC, request)
    assert found.new_types and found.problems == ()
    assert found.texts[NODES].splitlines()[0] == "GresTypes=gpu,shard"
    again = edit({**without, f"{ETC}/{NODES}": found.texts[NODES]}, ETC, request)
    assert not again.new_types and again.texts[NODES] == found.texts[NODES]


def test_accounting_needs_slurmdbd():
    """Require slurmdbd for the accounting of GRES. Otherwise slurmctld would end."""
    plain = f"GresTypes=gpu\nInclude {NODES}\n"
    assert "AccountingStorageTRES" not in edit(files(slurm=plain), ETC, WANTED).texts[NODES]
    accounted = plain + "AccountingStorageType=accounting_storage/slurmdbd\n"
    text = edit(files(slurm=accounted), ETC, WANTED).texts[NODES]
    assert text.splitlines()[0] == "AccountingStorageTRES=gres/gpu,gres/gpu:h100"
    own = edit(files(slurm=accounted + "AccountingStorageTRES=gres/gpu\n"), ETC, WANTED)
    assert own.problems == () and "lacks gres/gpu:h100" in own.notes[0]


def test_autodetect_is_explained():
    found = edit(files(gres=f"AutoDetect=nvml\nInclude {GRES}\n"), ETC, WANTED)
    assert found.problems == ()
    assert "gres.conf line 1: AutoDetect=nvml is not used for node gpu-a" in found.notes[0]


def test_restored_lines_keep_later_changes_of_other_nodes():
    before = files()
    gres, rows = former_lines(before, ETC, "gpu-a")
    edited = edit(before, ETC, WANTED)
    after = {**before, **{f"{ETC}/{name}": text for name, text in edited.texts.items()}}
    after[f"{ETC}/{NODES}"] = after[f"{ETC}/{NODES}"].replace("NodeName=gpu-b CPUs=2", "NodeName=gpu-b CPUs=3")
    restored = with_former(after, ETC, "gpu-a", gres, rows)
    assert restored[NODES] == before[f"{ETC}/{NODES}"].replace("NodeName=gpu-b CPUs=2", "NodeName=gpu-b CPUs=3")
    assert restored[GRES] == before[f"{ETC}/{GRES}"]


def test_candidate_includes_its_own_files():
    """Check that Include lines with full paths name the candidate's own files."""
    given = files(slurm=f"GresTypes=gpu\nInclude {ETC}/{NODES}\nInclude /srv/parts.conf\n")
    given["/srv/parts.conf"] = "PartitionName=main Nodes=ALL\n"
    found = candidate(given, ETC, edit(given, ETC, WANTED))
    assert set(found) == {"slurm.conf", "gres.conf", NODES, GRES, "parts.conf"}
    assert found["slurm.conf"] == f"GresTypes=gpu\nInclude {NODES}\nInclude parts.conf\n"
    assert "gpu:h100:1" in found[NODES]
