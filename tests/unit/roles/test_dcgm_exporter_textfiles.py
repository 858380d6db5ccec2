# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Skip textfiles of other programs that Prometheus would refuse.

The exporter names each file that it skips.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

sys.path.insert(0, str(Path(__file__).parents[3] / "roles" / "dcgm_exporter" / "files"))

from openfleet_exporter import textfiles


class Registry:
    """The metrics that the exporter serves from a folder."""

    def __init__(self, folder):
        self.folder = folder

    def collect(self):
        return textfiles.families(self.folder)


def served(folder):
    """Return the served samples, by name and labels."""
    assert generate_openmetrics(Registry(folder))  # the format that newer servers request
    lines = generate_latest(Registry(folder)).decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def readable(folder):
    start = 'openfleet_exporter_textfile_readable{file="'
    return {key[len(start) : -2]: value == "1.0" for key, value in served(folder).items() if key.startswith(start)}


@pytest.mark.parametrize(
    "text",
    [
        'a{my-label="1"} 1',
        'a{"x"="1"} 1',
        'a{1x="1"} 1',
        'a{ä="1"} 1',
        'a{="1"} 1',
        'a{__name__="b"} 1',
        "my-metric 1",
        "1a 1",
        '{a="1"} 1',
        "# TYPE",
        "# HELP",
        "# TYPE a",
        "# TYPE a nonsense",
        "# HELP a-b text",
        "# TYPE _total counter",
        "a",
        "a one",
        'a{b="1',
        'a{b="1" 1',
        "a 1 nan",
        "a 1 inf",
        "a 1 99999999999999999999",
        'a{b="\0"} 1',
    ],
)
def test_malformed_textfile_is_skipped_and_named(text, tmp_path, capsys):
    (tmp_path / "bad.prom").write_text(f"before 1\n{text}\n")
    (tmp_path / "good.prom").write_text('# TYPE good gauge\ngood{of="a b"} 1\n')
    assert readable(tmp_path) == {"bad.prom": False, "good.prom": True}
    assert served(tmp_path)['good{of="a b"}'] == "1.0"
    assert not [name for name in served(tmp_path) if name.startswith(("a", "before"))]
    assert "bad.prom is skipped: " in capsys.readouterr().out


def test_non_text_and_non_files_are_skipped(tmp_path):
    (tmp_path / "bytes.prom").write_bytes(b"a\xff 1\n")
    (tmp_path / "folder.prom").mkdir()
    os.mkfifo(tmp_path / "pipe.prom")
    assert readable(tmp_path) == {"bytes.prom": False, "folder.prom": False, "pipe.prom": False}


def test_sparse_file_is_skipped(tmp_path, capsys):
    """A sparse file can be large without using disk space."""
    with (tmp_path / "huge.prom").open("wb") as file:
        file.truncate(1 << 40)
    assert readable(tmp_path) == {"huge.prom": False}
    assert "huge.prom is skipped: more than 4194304 bytes" in capsys.readouterr().out


def test_job_files_are_read_up_to_a_limit(tmp_path):
    for name, write in (("pipe", os.mkfifo), ("folder", os.mkdir)):
        write(tmp_path / name)
        with pytest.raises(ValueError, match="not a regular file"):
            textfiles.content(tmp_path / name, 10)
    (tmp_path / "jobs").write_text("17\n18\n")
    assert textfiles.content(tmp_path / "jobs", 6) == "17\n18\n"
    with pytest.raises(ValueError, match="more than 5 bytes"):
        textfiles.content(tmp_path / "jobs", 5)


def test_textfile_names_are_validated(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.prom")).write_text("good 1\n")
    assert readable(tmp_path) == {"?.prom": True}


def test_valid_text_is_served_unchanged(tmp_path):
    (tmp_path / "all.prom").write_text(
        "# a remark\n#\n\n# HELP a:b Text with \\\\ and ä.\n# TYPE a:b counter\na:b 1\n"
        'c {d="x\\"y\\\\z\\n", _e = "ä", __meta="", } 2 1700000000000\n'
        '# TYPE h histogram\nh_bucket{le="1"} 1\nh_bucket{le="+Inf"} 2\nh_sum 3\nh_count 2\n'
        "n NaN\ni -Inf\ne 1e-3"
    )
    samples = served(tmp_path)
    assert readable(tmp_path) == {"all.prom": True}
    assert samples["h_count"] == "2.0" and samples["n"] == "NaN" and samples["i"] == "-Inf" and samples["e"] == "0.001"
    assert samples['c{__meta="",_e="ä",d="x\\"y\\\\z\\n"} 2.0'] == "1700000000000"
    assert samples["a:b_total"] == "1.0"


def test_metric_in_two_files_is_merged(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.prom").write_text(f'# TYPE both gauge\nboth{{of="{name}"}} 1\n')
    assert {'both{of="a"}', 'both{of="b"}'} <= set(served(tmp_path))
    assert generate_latest(Registry(tmp_path)).count(b"# TYPE both ") == 1
