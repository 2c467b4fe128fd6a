"""The copies in which bugs are planted: a bug shows wherever the package uses what it is in."""

import sys

import fresh
import pytest

FILES = {
    "rooms/__init__.py": "def __getattr__(name):\n    raise AttributeError(name)\n",
    "rooms/checks.py": "LIMIT = 3\n",
    "rooms/attention/__init__.py": "from rooms.attention.masks import allowed\n",
    "rooms/attention/masks.py": (
        "from rooms.checks import LIMIT\n\n\ndef allowed(n):\n    return n < LIMIT\n"
    ),
    "rooms/attention/deep/__init__.py": "from rooms.attention.deep.cores import core\n",
    "rooms/attention/deep/cores.py": (
        "from rooms.attention.masks import allowed\n\n\n"
        "def core(n):\n    from rooms import checks\n\n"
        "    return allowed(n), checks.LIMIT\n"
    ),
    "rooms/models/__init__.py": "from rooms.models.stack import stack\n",
    "rooms/models/stack.py": (
        "from rooms.attention import allowed\nfrom rooms.attention.deep import core\n\n\n"
        "def stack(n):\n    return allowed(n), *core(n)\n"
    ),
}
MASKS = {"rooms.attention.masks": [("n < LIMIT", "n <= LIMIT")]}


@pytest.fixture
def rooms(tmp_path, monkeypatch):
    """A package of rooms with doors, one in another."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [m for m in sys.modules if m.split(".")[0] in ("rooms", "sick", "well")]:
        del sys.modules[name]


def test_a_bug_is_seen_in_its_module_through_its_door_and_in_the_rooms_behind(rooms):
    stack = fresh.copies("sick", ["rooms.models"], MASKS).stack
    assert stack(3) == (True, True, 3)
    for name in ("rooms.attention.masks", "rooms.attention"):
        assert fresh.copy_of("sick", name).allowed(3)
    healthy = fresh.copies("well", ["rooms.models"])
    assert healthy.stack(3) == (False, False, 3)
    assert not fresh.copy_of("well", "rooms.attention").allowed(3)
    assert stack(3) == (True, True, 3)  # one copy does not disturb another


def test_a_bug_may_stand_in_a_door_or_in_a_room_of_a_room(rooms):
    door = {"rooms.attention": [("import allowed", "import LIMIT as allowed")]}
    assert fresh.copies("sick", ["rooms.attention"], door).allowed == 3
    deep = {"rooms.attention.deep.cores": [("allowed(n), ", "'bug', ")]}
    assert fresh.copies("sick", ["rooms.models"], deep).stack(1) == (True, "bug", 3)
    late = {"rooms.checks": [("LIMIT = 3", "LIMIT = 5")]}  # imported when the function is called
    assert fresh.copies("sick", ["rooms.models"], late).stack(4) == (True, True, 5)


def test_a_copy_is_new_each_time_and_leaves_the_package_alone(rooms):
    assert fresh.copies("sick", ["rooms.attention"], MASKS).allowed(3)
    assert not fresh.copies("sick", ["rooms.attention"]).allowed(3)
    assert "rooms" not in sys.modules
    copied = {m.removeprefix("sick") for m in sys.modules if m.split(".")[0] == "sick"}
    assert copied == {"", ".checks", ".attention", ".attention.masks"}


def test_what_does_not_stand_there_once_is_refused(rooms):
    for edits, found in ((("n > LIMIT", ""), 0), (("LIMIT", "2"), 2)):
        with pytest.raises(ValueError, match=rf"stands {found} times in rooms/attention/masks.py"):
            fresh.copies("sick", ["rooms.checks"], {"rooms.attention.masks": [edits]})
    for name in ("rooms.mask", "rooms.attention.mask", "rooms.checks.mask"):
        with pytest.raises(ModuleNotFoundError, match="No module named 'sick"):
            fresh.copies("sick", ["rooms.models"], {name: [("LIMIT", "2")]})


def test_nothing_in_a_copy_comes_from_the_original():
    fresh.copies(
        "whole_tfbook",
        ["tfbook.training.loop", "tfbook.generation.decoding", "tfbook.training.recipes"],
    )
    names = [name for name in sys.modules if name.split(".")[0] == "whole_tfbook"]
    assert len(names) > 20
    for name in names:
        for value in vars(sys.modules[name]).values():
            home = getattr(value, "__module__", None) or getattr(value, "__name__", None)
            assert str(home).split(".")[0] != "tfbook", (name, value)
        del sys.modules[name]
