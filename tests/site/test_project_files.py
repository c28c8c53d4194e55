"""The files that a host and a reader of the repository read: workflows, citation, addresses."""

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from tools import PATIENCE_S, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.github-actions", sorted((ROOT / ".github" / "actions").glob("*/action.yml"))),
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_each_file_fits_its_schema(schema, files):
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert checked.returncode == 0, checked.stdout


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert " AND ".join(citation["license"]) == PROJECT["license"]


def test_workflows_call_what_is_there():
    habits = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    calls = [
        step.get("run", "")
        for path in WORKFLOWS
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
    ]
    called = {name for run in calls for name in re.findall(r"\bmake ([a-z-]+)", run)}
    assert {"check", "test", "all", "edition"} <= called <= habits
    assert ".ci/run" in calls


def test_addresses_of_the_project_stand_in_one_place():
    home = PROJECT["urls"]["Homepage"]
    found = subprocess.run(
        ["git", "grep", "--files-with-matches", "--fixed-strings", home], cwd=ROOT, capture_output=True, text=True
    )
    assert found.stdout.split() == ["pyproject.toml"]
