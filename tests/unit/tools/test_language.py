# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the language check: its rules, its exceptions and its record."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
import check_language
from language import record, rules


def kinds(name, source):
    """Return the (kind, line) of each violation in a source."""
    return [(hit.kind, hit.line) for hit in rules.check(name, source)]


PYTHON = '''"""Do a thing."""
%s
'''


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Ask whoever holds the GPU.", "word"),
        ("Nobody holds it.", "word"),
        ("The file is written anew.", "word"),
        ("The owner is told of it.", "word"),
        ("All but for\n# one.", "word"),
        ("The owner was told.", "phrase"),
        ("The layout stands.", "phrase"),
        ("A run that was cut off.", "phrase"),
        ("It takes a look at the GPUs.", "phrase"),
        ("Restart what is left.", "phrase"),
        ("It says that there is no GPU.", "phrase"),
        ("Of a GPU or an instance.", "opening"),
        ("What the fleet did.", "opening"),
        ("Stays it away, check the cable.", "opening"),
        ("Read the GPU. Comes it back, contact the vendor.", "opening"),
    ],
)
def test_a_violation_is_found_in_each_kind_of_text(text, kind):
    one_line = text.replace("\n# ", " ")
    places = {
        "a.py": PYTHON % ("# " + text),
        "b.py": PYTHON % ("def run():\n    %r" % one_line),
        "c.py": PYTHON % ("print(%r)" % one_line),
        "d.py": PYTHON % ("print(f%r)" % (one_line + " {gpu}")),
        "a.c": "/* %s */\nint a;\n" % text.replace("\n#", "\n *"),
        "b.h": "// %s\n" % text.replace("\n#", "\n//"),
        "a.yml": "# %s\n---\n" % text,
        "a.md": "# Title\n\n%s\n" % one_line,
        "- item.md": "- %s\n" % one_line,
        "b.yml": "name: Install\ndescription: %s\n" % one_line,
        "c.yml": "name: Install\ndescription:\n  - %s\n" % one_line,
        "a.j2": "# %s\n" % text,
    }
    if kind != "opening":
        places["b.yml"] = "name: Install\ndescription: %s\n" % one_line
    missing = [name for name, source in places.items() if kind not in [each for each, _line in kinds(name, source)]]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.py", '"""Do a thing."""\nwhoever = standing = 1  # The current layout.\n'),
        ("a.py", '"""Do a thing."""\nprint("# is no comment", "whoever")\n'),
        ("a.py", '"""Do a thing."""\nprint("what is a GPU? %s")  # What is a GPU?\n'),
        ("a.md", "## What runs with DNF\n\nWhat is a GPU?\n\nThe two look alike.\n"),
        ("a.md", "```text\nWhat the fleet did, a line of output\n```\n"),
        ("roles/a/tasks/main.yml", "- name: Install the driver\n- name: Stop if no GPU answers\n"),
        ("a.c", 'char *text = "whoever"; int whoever; /* The current layout. */\n'),
    ],
)
def test_plain_text_and_names_of_code_are_accepted(name, source):
    assert kinds(name, source) == []


def test_the_line_of_a_violation_is_that_of_its_first_word():
    source = '"""Do a thing.\n\nBody.\n"""\n\n\n# One\n# line, but\n# for two.\nx = """a\nb anew c"""\n'
    assert kinds("a.py", source) == [("word", 8), ("word", 11)]
    assert kinds("a.yml", "---\na: 1\n# Use it\n# anew.\n") == [("word", 4)]
    assert kinds("a.c", "int a;\n\n/* One\n * anew */\n") == [("word", 4)]


def test_a_comment_after_a_string_with_a_hash_is_read():
    assert kinds("a.py", '"""Do a thing."""\nx = " # "  # whoever holds it\n') == [("word", 2)]
    assert kinds("a.py", '"""Do a thing."""\nx = "é # whoéver"  # whoever holds it\n') == [("word", 2)]


@pytest.mark.parametrize(
    ("docstring", "wrong"),
    [
        ("Return the GPUs of a host.", False),
        ("The GPUs of a host.", True),
        ("Whether a host has GPUs.", True),
        ("Without GPUs of the host.", True),
        ("Return " + "x" * 80, True),
        ("Return the GPUs.\n\n" + "x" * 90, False),
    ],
)
def test_a_docstring_of_a_function_starts_with_a_verb_and_a_short_line(docstring, wrong):
    source = '"""Do a thing."""\nclass Gpu:\n    """A GPU."""\n    def read(self):\n        """%s"""\n' % docstring
    assert kinds("a.py", source) == [("docstring", 5)] * wrong


@pytest.mark.parametrize(
    "task", ["Say why it failed", "Look at the GPUs", "Bring pynvml to the host", "What is next", "The driver"]
)
def test_a_task_starts_with_a_verb_that_names_the_change(task):
    source = "- name: Install the driver\n- name: %s\n  block:\n    - name: %s\n" % (task, task)
    assert [each for each in kinds("roles/a/tasks/main.yml", source) if each[0] == "task"] == [("task", 2), ("task", 4)]
    assert "task" not in dict(kinds("roles/a/vars/main.yml", source))


def test_long_sentences_lines_and_pages_are_found():
    words = "word " * 31
    assert kinds("a.md", "# Title\n\nShort. A %s.\n" % words.strip()) == [("sentence", 3)]
    # Line breaks, list items and code spans must neither hide a long sentence nor lengthen a short one.
    assert kinds("a.md", "- A %s\n  end.\n" % "word\n  ".join([""] * 40)) == [("sentence", 1)]
    assert kinds("a.md", "- %s\n- %s\n" % ("word " * 20, "word " * 20)) == []
    assert kinds("a.md", "Run `%s` now.\n" % words) == []
    assert kinds("a.md", "| %s |\n" % (words * 5)) == []
    assert kinds("a.md", "Word. " * 51 + "\n") == [("line", 1)]
    assert kinds("a.md", "Word.\n" * 2000) == []
    assert kinds("a.md", "Word.\n" * 2001) == [("page", 1)]


def test_an_exception_accepts_only_what_it_names():
    hits = {"a.py": [rules.Hit("phrase", 1, "Stands", ""), rules.Hit("phrase", 2, "cut off", "")], "b.py": []}
    known = [
        record.Accepted("*.py", "a reason", "phrase", "stands"),
        record.Accepted("c.py", "a reason"),
        record.Accepted("a.py", "a reason", "word"),
    ]
    left, unused = record.without_exceptions(hits, known)
    assert left == {"a.py": hits["a.py"][1:], "b.py": []} and unused == known[1:]


def test_each_exception_has_a_reason():
    assert all(each.file and each.reason for each in check_language.read_exceptions())


@pytest.fixture()
def checkout(tmp_path, monkeypatch):
    """Let the check read a repository of two pages. Return its folder."""
    monkeypatch.setattr(check_language, "ROOT", tmp_path)
    monkeypatch.setattr(check_language, "RECORD", tmp_path / "remaining.txt")
    monkeypatch.setattr(check_language, "EXCEPTIONS", tmp_path / "exceptions.txt")
    (tmp_path / "exceptions.txt").write_text("exception = []\n")
    (tmp_path / "a.md").write_text("Ask whoever holds it.\n\nWhoever holds it.\n")
    (tmp_path / "b.md").write_text("Plain text.\n")
    record.write(tmp_path / "remaining.txt", {"a.md": {"word": 2}})
    check_language.subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def test_recorded_violations_pass_and_new_ones_fail(checkout, capsys):
    assert check_language.main([]) == 0
    (checkout / "b.md").write_text("Plain text.\n\nAsk whoever holds it.\n")
    assert check_language.main([]) == 1
    assert capsys.readouterr().out == (
        "b.md:3: word: 'whoever': name the user, owner or process\n"
        "b.md: 1 of kind word, 0 recorded. Rewrite 1 lines above.\n"
    )
    # `--record` must not raise a number.
    assert check_language.main(["--record"]) == 1
    assert record.read(checkout / "remaining.txt") == {"a.md": {"word": 2}}
    assert check_language.main(["a.md"]) == 0 and check_language.main(["b.md"]) == 1


def test_fewer_violations_than_recorded_fail_until_they_are_recorded(checkout, capsys):
    (checkout / "a.md").write_text("Ask whoever holds it.\n")
    assert check_language.main([]) == check_language.main(["a.md"]) == 1
    assert "a.md: fewer violations than recorded. Run `make language-record`" in capsys.readouterr().out
    assert check_language.main(["--record"]) == check_language.main([]) == 0
    assert record.read(checkout / "remaining.txt") == {"a.md": {"word": 1}}
    (checkout / "a.md").unlink()
    assert check_language.main([]) == 1
    assert check_language.main(["--record"]) == check_language.main([]) == 0
    assert record.read(checkout / "remaining.txt") == {}


def test_merged_records_use_the_lower_numbers(checkout):
    with (checkout / "remaining.txt").open("a") as file:
        file.write("a.md: word 3, phrase 1\n")
    assert record.read(checkout / "remaining.txt") == {"a.md": {"word": 2}}


def test_an_exception_that_accepts_nothing_fails(checkout, capsys):
    (checkout / "exceptions.txt").write_text('[[exception]]\nfile = "b.md"\nreason = "none"\n')
    assert check_language.main([]) == 1
    assert "no violation matches b.md" in capsys.readouterr().out


def test_every_source_file_of_this_checkout_is_checked():
    names = check_language.source_files()
    assert {"Makefile", "tests/queue", "tests/leg", "docs/gpu_layout.schema.json", "plugins/modules/layout.py"} <= set(
        names
    )
    assert not [name for name in names if name.startswith("collections/")]
