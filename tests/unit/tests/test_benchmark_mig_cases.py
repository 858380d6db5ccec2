# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report errors in the CASES file of `make bench BENCH=mig` with their line."""

from __future__ import annotations

import pytest

from tests.benchmark import mig_cases

GOOD = '{"model": "H100-80GB", "have": [["3g.40gb", 4]], "busy": [["3g.40gb", 4]], "want": ["1g.10gb"]}'


@pytest.mark.parametrize(
    "line, told",
    [
        ('{"model": "H999", "have": [], "want": []}', "H999.*not in the catalogue"),
        ('{"model": "H100-80GB", "have": [["9g.99gb", 0]], "want": []}', "not a case.*9g.99gb"),
        ('{"model": "H100-80GB", "have": 7, "want": []}', "not a case"),
        ("{", "not a case"),
    ],
)
def test_invalid_line_of_a_case_is_named(tmp_path, line, told):
    file = tmp_path / "cases"
    file.write_text(f"{GOOD}\n\n{line}\n")
    with pytest.raises(SystemExit, match=rf"{file}:3: .*{told}"):
        list(mig_cases.read_cases(str(file)))
    file.write_text(GOOD)
    (case,) = mig_cases.read_cases(str(file))
    assert [wanted.profile for wanted in case.target.division.instances] == ["1g.10gb"]
