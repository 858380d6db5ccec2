# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the content of the collection's tarball with Galaxy and antsibull-docs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Files that the collection's users get. All other files are only for a checkout.
SHIPPED = {
    "CHANGELOG.md", "COPYING", "FILES.json", "LICENSES", "MANIFEST.json", "README.md", "SECURITY.md", "changelogs", "docs",
    "galaxy.yml", "inventories", "meta", "playbooks", "plugins", "requirements-bundle.txt", "requirements-rightsize.txt", "roles",
}  # fmt: skip


def run(program: str, *arguments: str, folder: Path, **environment: str) -> str:
    """Run a program from the tests' own Python, and return its output.

    The program must succeed.
    """
    programs = Path(sys.executable).parent
    done = subprocess.run(
        [str(programs / program), *arguments],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "NO_COLOR": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def tarball(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tarball")
    run("ansible-galaxy", "collection", "build", "--output-path", str(folder), folder=ROOT)
    (built,) = folder.glob("*.tar.gz")
    return built


@pytest.fixture(scope="module")
def collection(tarball):
    """Return the collection as ansible-galaxy unpacks it."""
    folder = tarball.parent / "ansible_collections" / "openfleet" / "gpu"
    folder.mkdir(parents=True)
    with tarfile.open(tarball) as file:
        file.extractall(folder)
    return folder


def test_it_carries_what_users_need_and_nothing_of_a_checkout(collection):
    assert {path.name for path in collection.iterdir()} <= SHIPPED
    waste = [path for path in collection.rglob("*") if re.search(r"cache|fragments|\.pyc$|^\.", path.name)]
    assert [path for path in waste if path.name != "doc_fragments"] == []
    assert sorted(path.name for path in (collection / "inventories").iterdir()) == ["example", "minimal"]
    assert (collection / "playbooks" / "callback_plugins" / "openfleet_gpu_summary.py").is_file()
    # The file with the same name at the root is only for a checkout.
    assert (collection / "inventories" / "minimal" / "ansible.cfg").is_file()


def test_links_of_its_documents_stay_within_it(collection):
    broken = []
    for document in collection.rglob("*.md"):
        text = re.sub(r"^( *)```.*?^\1```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
            if not re.match(r"[a-z]+:", link) and not (document.parent / link).exists():
                broken.append(f"{document.relative_to(collection)}: {link}")
    assert broken == []


def test_galaxy_takes_it_without_a_warning(tarball, tmp_path):
    """Run Galaxy's own importer.

    ansible-lint runs on the checkout with the same profile.
    """
    told = run(
        "python",
        "-m",
        "galaxy_importer.main",
        str(tarball),
        folder=tmp_path,
        GALAXY_IMPORTER_RUN_ANSIBLE_LINT="false",
        GALAXY_IMPORTER_ANSIBLE_LOCAL_TMP=str(tmp_path / "ansible"),
    )
    assert "Importer processing completed successfully" in told
    assert [line for line in told.splitlines() if re.match("WARNING|ERROR", line)] == []


def test_execution_environments_get_its_requirements(collection, tmp_path):
    """Run ansible-builder's own reader of requirements.

    The test builds no image, because the base images need a registry.
    """
    python, system = tmp_path / "python.txt", tmp_path / "system.txt"
    run(
        "ansible-builder",
        "introspect",
        f"--write-pip={python}",
        f"--write-bindep={system}",
        str(collection.parents[2]),
        folder=tmp_path,
    )
    wanted = (collection / "meta" / "execution-environment-python.txt").read_text()
    names = re.findall(r"^([a-z_-]+)==", wanted, re.MULTILINE)
    assert {"nvidia-ml-py", "numpy", "ortools"} <= set(names)
    assert [name for name in names if f"{name}==" not in python.read_text()] == []
    assert "gpgv [platform:dpkg]" in system.read_text()


def test_its_documentation_has_no_broken_reference(collection):
    """Run antsibull-docs.

    This checks markup, and references between options, modules and roles.
    """
    run(
        "antsibull-docs",
        "lint-collection-docs",
        "--plugin-docs",
        "--validate-collection-refs=self",
        str(collection),
        folder=collection,
        ANSIBLE_COLLECTIONS_PATH=str(collection.parents[2]),
    )


def test_each_page_of_its_documentation_can_be_built(collection, tmp_path):
    """Run antsibull-docs as for a documentation site.

    antsibull-docs writes an error page if it cannot read a plugin or a role.
    """
    run(
        "antsibull-docs",
        "collection",
        "--use-current",
        "--fail-on-error",
        "--dest-dir",
        str(tmp_path),
        "openfleet.gpu",
        folder=tmp_path,
        ANSIBLE_COLLECTIONS_PATH=str(collection.parents[2]),
    )
    pages = {path.stem for path in tmp_path.rglob("*.rst")}
    roles = {path.name for path in (collection / "roles").iterdir()}
    modules = {path.stem for path in (collection / "plugins" / "modules").glob("*.py")}
    assert {f"{role}_role" for role in roles} | {f"{module}_module" for module in modules} <= pages
