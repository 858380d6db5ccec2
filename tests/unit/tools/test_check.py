# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test `make check`: which tests it chooses, and its type check."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
import check
import check_types
import choose_tests


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("plugins/plugin_utils/idle/rule.py", "test_idle"),
        # tools/check.py finds this test through a helper in the test's folder.
        ("plugins/plugin_utils/packing/pack.py", "test_packing_properties"),
        ("plugins/module_utils/techniques/vgpu/plan.py", "test_vgpu_plan"),
        # No test imports this new file, so tools/check.py chooses the tests of the other modules in the package.
        ("plugins/plugin_utils/idle/new_rule.py", "test_idle"),
        ("plugins/modules/mig.py", "test_module_docs"),
        # No test names a data file, so tools/check.py chooses the tests of its folder.
        (f"plugins/module_utils/models/{'new'}.json", "test_catalogue"),
        ("roles/nvidia_driver/tasks/main.yml", "test_driver_managers"),
        ("docs/vgpu.md", "test_documents"),
        ("tests/unit/plugin_utils/packing/packing_cases.py", "test_packing_rules"),
        ("tests/queue", "test_queue"),
        ("Makefile", "test_queue"),
        ("tools/renew_hashes.py", "test_hashes"),
    ],
)
def test_a_change_runs_its_unit_tests(name, test):
    chosen = choose_tests.choose(ROOT, [name])[: check.TEST_FILES]
    assert test in [Path(each).stem for each in chosen]


def test_a_changed_test_runs_and_comes_first():
    names = ["tests/unit/plugin_utils/idle/test_idle.py", "plugins/module_utils/errors.py"]
    tests = choose_tests.choose(ROOT, names)
    assert tests[0] == "tests/unit/plugin_utils/idle/test_idle.py" and len(tests) > check.TEST_FILES


def test_slow_tests_run_only_if_their_file_has_changed():
    folder = "tests/unit/module_utils/techniques/vgpu/"
    tests = [folder + "test_vgpu_apply.py", folder + "test_vgpu_plan.py"]
    both = check.unit_tests(tests, ["plugins/module_utils/techniques/vgpu/plan.py", tests[0]])
    assert set(both) == {"tests", "changed tests"}
    for name, test, marks in (("tests", tests[1], "not alone and not slow"), ("changed tests", tests[0], "not alone")):
        assert marks in both[name] and [each for each in both[name] if each in tests] == [test]
    assert set(check.unit_tests(tests, [])) == {"tests"} and check.unit_tests([], tests) == {}


def test_imports_inside_functions_count():
    source = "import a.b\ndef run():\n    from c import d\n    from . import e\n"
    assert choose_tests.imported(source) == {"a.b", "c", "c.d"}


@pytest.fixture()
def checkout(tmp_path, monkeypatch):
    """Make a repository with two commits; return a function that runs git."""
    monkeypatch.setattr(check, "ROOT", tmp_path)

    def git(*arguments):
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--initial-branch=main")
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
        git("add", name)
        git("commit", "--message", name)
    return git


def test_without_uncommitted_changes_the_last_commit_is_checked(checkout):
    assert check.changed("") == ["b.py"]
    (check.ROOT / "a.py").write_text("x = 2\n")
    (check.ROOT / "new file.py").write_text("x = 1\n")
    assert check.changed("") == ["a.py", "new file.py"]


def test_branch_is_compared_with_its_merge_base(checkout):
    checkout("checkout", "-b", "branch", "HEAD~1")
    (check.ROOT / "c.py").write_text("x = 1\n")
    checkout("add", "c.py")
    checkout("commit", "--message", "c.py")
    (check.ROOT / "d.py").write_text("x = 1\n")
    assert check.changed("main") == ["c.py", "d.py"]
    assert check.changed("") == ["d.py"]


def test_each_kind_of_file_has_its_linters():
    names = ["plugins/modules/mig.py", "roles/gpu_layout/tasks/main.yml", "docs/mps.md"]
    assert set(check.linters(names)) == {"language", "ruff check", "ruff format", "yamllint", "types"}
    assert set(check.linters(["docs/mps.md"])) == {"language"}
    assert check.linters([]) == {}


def test_one_failed_command_fails_the_check(capsys):
    ok, bad = ["true"], ["sh", "-c", "echo the reason; exit 1"]
    assert check.report(["a"], check.run_all({"ruff check": ok, "tests": ok})) == 0
    assert check.report(["a"], check.run_all({"ruff check": bad, "tests": ok})) == 1
    output = capsys.readouterr().out
    assert "=== ruff check\nthe reason\n" in output and output.endswith("check: 1 file, FAILED: ruff check\n")
    # Exit status 5 of pytest (no tests) is accepted, because all tests of a file may be in another leg.
    assert check.report(["a"], check.run_all({"tests": ["sh", "-c", "exit 5"]})) == 0


OUTPUT = """\
collections/ansible_collections/openfleet/gpu/plugins/modules/mig.py:3: error: Wrong  [misc]
tools/check.py:4: error: Wrong  [misc]
tools/check.py:4: note: Right
"""


@pytest.fixture()
def types(tmp_path, monkeypatch):
    """Let mypy print OUTPUT; return a function that writes the list."""
    monkeypatch.setattr(check_types, "ROOT", tmp_path)
    monkeypatch.setattr(check_types, "RECORD", tmp_path / "remaining.txt")
    monkeypatch.setattr(check_types, "run_mypy", lambda: OUTPUT)
    return lambda *names: check_types.write(tmp_path / "remaining.txt", names)


def test_listed_files_can_fail(types):
    types("plugins/modules/mig.py", "tools/check.py")
    assert check_types.main([]) == 0


def test_other_files_must_pass(types, capsys):
    types("plugins/modules/mig.py")
    assert check_types.main([]) == check_types.main(["--record"]) == 1
    assert "tools/check.py:4: error: Wrong  [misc]\n" in capsys.readouterr().out


def test_passing_file_must_leave_the_list(types, capsys):
    types("plugins/modules/mig.py", "plugins/modules/mps.py", "tools/check.py")
    assert check_types.main([]) == 1
    assert "plugins/modules/mps.py: it passes. Run `make types-record`" in capsys.readouterr().out
    assert check_types.main(["--record"]) == check_types.main([]) == 0
    assert check_types.read(check_types.RECORD) == {"plugins/modules/mig.py", "tools/check.py"}


def test_checker_that_does_not_run_fails(types, monkeypatch):
    types()
    monkeypatch.setattr(check_types, "run_mypy", lambda: "No module named mypy\n")
    assert check_types.main([]) == 1
