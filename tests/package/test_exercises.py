"""The graded exercises: right answers pass, wrong ones hear what is wrong, nothing else breaks."""

import builtins
import dataclasses
import functools
import importlib
import inspect
import math
import random
import re
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from tfbook.teaching import exercises
from tfbook.teaching.exercises import _card, _guard, _spec

# Each file of exercises may bring a file of solutions, with the lists RIGHT and WRONG, and
# in LIBRARY the package's own answers.
FILES = sorted(path.stem for path in Path(__file__).parent.glob("solutions_*.py"))
SOLUTIONS = [importlib.import_module(file) for file in FILES]
RIGHT = [entry for module in SOLUTIONS for entry in module.RIGHT]
WRONG = [entry for module in SOLUTIONS for entry in module.WRONG]
solutions = importlib.import_module("solutions_attention")

NAMES = exercises.names()
PACKAGE = exercises.__name__


@cache
def outcome(name, function):
    """Evaluate an answer once for all tests that ask about it."""
    return exercises.evaluate(name, function)


def fails(name, function, **kwargs):
    report = exercises.evaluate(name, function, **kwargs)
    assert report.state == "fail"
    return report


def label(value):
    return getattr(value, "__name__", None)


# answers ----------------------------------------------------------------------------------------


class Maps:
    """Watches the comparisons of the exercises, and collects their maps of known slips.

    known: the sentences of all maps, by exercise; heard: those with which the comparison answers
    when the slip itself comes back, whoever made it.
    """

    def __init__(self):
        self.name, self.known, self.heard = None, defaultdict(set), defaultdict(set)

    def watch(self, original, parameters, feed):
        """Return the comparison with an ear in it."""

        @functools.wraps(original)
        def watched(*args, **kwargs):
            bound = parameters.bind(*args, **kwargs)
            for sentence, values in (bound.arguments.get("mistakes") or {}).items():
                self.known[self.name].add(sentence)
                for value in values if feed and isinstance(values, tuple) else (values,):
                    self.listen(feed, original, bound.arguments, value)
            return original(*args, **kwargs)

        return watched

    def listen(self, feed, original, arguments, value):
        try:
            if feed:
                original(**arguments | feed(value))
        except _spec.Wrong as wrong:
            self.heard[self.name].add(str(wrong))


# How a slip is handed to a comparison as if it were the answer.
FEEDS = {
    "expect": lambda value: {"got": value},
    "expect_number": lambda value: {"function": lambda **sizes: value},
    "expect_plain": lambda value: {"function": lambda *arguments: value},
}


@pytest.fixture(scope="module")
def maps():
    """Evaluate the right answers, with all comparisons watched that know of slips."""
    maps, watched = Maps(), {}
    for name in NAMES:
        exercises._find(name)  # a file read later would keep the watched comparison for good
    modules = [module for name, module in sys.modules.items() if name.startswith(PACKAGE)]
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for name, function in inspect.getmembers(module, inspect.isfunction):
                parameters = inspect.signature(function)
                if "mistakes" in parameters.parameters:
                    feed = FEEDS.get(name)
                    new = watched.setdefault(function, maps.watch(function, parameters, feed))
                    patch.setattr(module, name, new)
        assert set(FEEDS) <= {function.__name__ for function in watched}
        for maps.name, function in RIGHT:
            outcome(maps.name, function)
    return maps


def test_right_answers_pass(maps):
    reports = [outcome(name, function) for name, function in RIGHT]
    assert not [repr(report) for report in reports if report.state != "pass"]


@pytest.mark.untyped  # as a reader hears it, without the tests' check of shapes
def test_wrong_answers_hear_their_mistake():
    deaf = []
    for name, message, function in WRONG:
        report = outcome(name, function)
        assert report.state == "fail", f"{name} lets {label(function)} pass"
        if not message or message not in report.message:
            deaf.append((name, label(function), message, report.message))
    assert not deaf


def test_each_exercise_has_two_right_and_three_wrong_answers():
    right, wrong = (Counter(entry[0] for entry in entries) for entries in (RIGHT, WRONG))
    assert not [name for name in NAMES if right[name] < 2 or wrong[name] < 3]
    assert right.keys() | wrong.keys() == set(NAMES)


@pytest.mark.untyped
def test_each_property_refuses_a_wrong_answer():
    """What comes later in the list is asked alone: the first that fails hides the others."""
    idle = []
    for name in NAMES:
        answers = [function for n, _, function in WRONG if n == name]
        first = {outcome(name, function).failed for function in answers}
        idle += [
            (name, _spec.property_name(test))
            for test in exercises._find(name).properties
            if _spec.property_name(test) not in first
            and not any(refuses(name, test, function) for function in answers)
        ]
    assert not idle


def refuses(name, test, function):
    """Tell whether one property of an exercise alone finds an answer wrong."""
    try:
        with _guard.steady_torch():
            test(_guard.Guarded(exercises._find(name), function, 10.0))
    except _spec.Wrong:
        return True
    return False


@pytest.mark.untyped
def test_each_known_slip_can_be_heard(maps):
    """A slip that equals what is wanted, or one before it in the map, is never heard of."""
    heard = {name: set(found) for name, found in maps.heard.items()}
    for name, _, function in WRONG:  # the maps that an exercise compares itself
        heard.setdefault(name, set()).add(outcome(name, function).message)
    mute = [(name, s) for name, known in maps.known.items() for s in known - heard[name]]
    assert not mute
    assert sum(map(len, maps.known.values())) > len(NAMES)


def test_levels_run_from_warm_up_to_challenge():
    assert {exercises.describe(name).level for name in NAMES} == {1, 2, 3}


LIBRARY = dict(item for m in SOLUTIONS for item in getattr(m, "LIBRARY", {}).items())


@pytest.mark.untyped
def test_the_library_passes_its_own_exercises():
    assert set(LIBRARY) <= set(NAMES) and len(LIBRARY) >= 20
    reports = [exercises.evaluate(name, function) for name, function in LIBRARY.items()]
    assert not [repr(report) for report in reports if report.state != "pass"]


# the stub ---------------------------------------------------------------------------------------


def stub_of(name):
    """Run the stub's source as the reader's cell would, and return the function."""
    description = exercises.describe(name)
    scope = {"torch": torch, "Callable": Callable, "Iterator": Iterator}
    exec(description.stub, scope)
    return scope[description.signature.partition("(")[0]]


def test_an_untouched_stub_is_not_started():
    for name in NAMES:
        report = exercises.evaluate(name, stub_of(name))
        assert report.state == "todo", name
        assert "not started" in repr(report)


def test_descriptions_match_their_stubs():
    for name in NAMES:
        description = exercises.describe(name)
        stub = stub_of(name)
        parameters = re.findall(r"(\w+):", description.signature.partition(" -> ")[0])
        assert parameters == list(inspect.signature(stub).parameters), name
        assert description.docstring == inspect.getdoc(stub), name
        for words in ("Returns:", *(f"{p}:" for p in parameters if len(parameters) > 2)):
            assert words in description.docstring, name
        for part in (description.title, description.signature, description.docstring):
            assert part in repr(description), name


# a planted fault ----------------------------------------------------------------------------------


def mean_of_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the mean of each row."""
    total = sum(row.sum() for row in x)
    return total / x.shape[-1]


def _means(mean):
    """The mean of each row comes back."""
    x = _spec.numbers(2, 3, seed=1)
    _spec.expect(mean(x), x.mean(-1))


MENDED = "    return x.sum(-1) / x.shape[-1]\n"
AS_IT_IS = """
def mean_of_rows(x: torch.Tensor) -> torch.Tensor:
    # Here the reader has written a comment.
    total = sum(row.sum() for row in x)  # of what?
    return total / x.shape[-1]
"""
OTHER_FAULT = AS_IT_IS.replace("x.shape[-1]", "x.shape[0]")
INNER_FAULT = AS_IT_IS.replace("row.sum() for", "row.mean() for")


@pytest.fixture
def broken(monkeypatch):
    """An exercise whose stub is a function with a fault; returns its answer to a source."""
    exercise = _spec.Exercise(
        name="mend-it", title="Mend it", level=1, section="", stub=mean_of_rows,
        properties=(_means,), hints=("Look at the shape.",), broken=True,
    )  # fmt: skip
    monkeypatch.setattr(exercises, "_find", lambda name: exercise)

    def answer(source):
        scope = {"torch": torch}
        exec(source, scope)
        return exercises.evaluate("mend-it", scope["mean_of_rows"])

    return answer


@pytest.mark.untyped
def test_a_planted_fault_is_to_be_found_as_long_as_nothing_has_changed(broken):
    starting = exercises.describe("mend-it").stub
    assert "total / x.shape[-1]" in starting
    for source in (starting, AS_IT_IS):
        report = broken(source)
        assert report.state == "todo"
        wanted = "Find the fault in `mean_of_rows` and mend it, then run the check again."
        assert report.message == wanted
        assert "Hint 1 of 1" in report._repr_mimebundle_()["text/html"]
    for source in (OTHER_FAULT, INNER_FAULT):
        assert broken(source).state == "fail"
    assert broken(AS_IT_IS.partition("    total")[0] + MENDED).state == "pass"


def test_what_to_do_with_a_stub_can_be_said_in_its_own_words():
    exercise = exercises._find("two-lines-to-an-encoder")
    assert exercise.begin == exercise.task == "Change two lines of `encoder_loss`"


@pytest.mark.untyped
def test_a_planted_fault_is_one():
    """Of each exercise that is to be mended, the code to begin with fails."""
    for name in NAMES:
        exercise = exercises._find(name)
        if exercise.broken:
            with _guard.steady_torch(), pytest.raises(_spec.Wrong):
                whole = dataclasses.replace(exercise, broken=False)
                for test in exercise.properties:
                    test(_guard.Guarded(whole, exercise.stub, 10.0))


def test_an_empty_stub_is_to_be_filled_in():
    report = exercises.evaluate("stable-softmax", stub_of("stable-softmax"))
    assert report.message == "Fill in `stable_softmax`, then run the check again."


def todo_ellipsis(scores):
    return ...


def todo_raises(scores):
    raise NotImplementedError


def todo_raises_with_words(scores):
    raise NotImplementedError("your turn")


def todo_pass(scores):
    pass


@pytest.mark.parametrize(
    "function", [todo_ellipsis, todo_raises, todo_raises_with_words, todo_pass], ids=label
)
def test_other_empty_functions_are_not_started(function):
    assert exercises.evaluate("stable-softmax", function).state == "todo"


def test_a_forgotten_return_is_named():
    def forgot(scores):
        weights = torch.softmax(scores, -1)  # noqa: F841

    assert "Is the `return` missing?" in fails("stable-softmax", forgot).message


# the reader's code going wrong --------------------------------------------------------------------


def test_an_exception_is_one_line_with_the_readers_line():
    def breaks(scores):
        top = scores.amax(-1)
        return scores @ top

    message = fails("stable-softmax", breaks).message
    assert message.startswith("Your function raised RuntimeError: size mismatch")
    line = inspect.getsourcelines(breaks)[1] + 2
    assert message.endswith(f", at your line {line}: `return scores @ top`")
    assert "\n" not in message


def test_an_exception_in_a_helper_of_the_reader_shows_the_helper():
    def helper(x):
        raise KeyError("oops")

    message = fails("stable-softmax", lambda scores: helper(scores)).message
    assert "KeyError: 'oops'" in message
    assert '`raise KeyError("oops")`' in message


def test_a_kernel_that_torch_lacks_is_an_error_and_not_an_empty_stub():
    def lacks(scores):
        return torch.nn.functional.softmax((scores > 0), -1)

    assert "raised" in fails("stable-softmax", lacks).message


@pytest.mark.parametrize("error", [SystemExit, RecursionError, AssertionError, StopIteration])
def test_unusual_exceptions_do_not_escape(error):
    def leaves(scores):
        raise error

    assert error.__name__ in fails("stable-softmax", leaves).message


def test_an_interrupt_by_the_reader_escapes():
    def interrupted(scores):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exercises.evaluate("stable-softmax", interrupted)


def test_object_addresses_do_not_reach_the_card():
    def shows_address(scores):
        raise ValueError(f"bad {object()}\nmore lines")

    assert "bad <object object>" in fails("stable-softmax", shows_address).message


def test_an_endless_loop_is_stopped():
    def endless(scores):
        while True:
            try:
                scores = scores + 1
            except Exception:
                continue

    started = time.monotonic()
    message = fails("stable-softmax", endless, time_limit=0.2).message
    assert time.monotonic() - started < 5
    assert message.startswith("Your function was stopped after 0.2 seconds at your line")


def test_time_that_others_have_does_not_count_and_waiting_has_an_end(monkeypatch):
    def busy(scores):
        begun = time.monotonic()
        while time.monotonic() - begun < 0.3:
            pass
        return solutions.softmax_shifted(scores)

    def waiting(scores):
        threading.Event().wait(60)

    monkeypatch.setattr(_guard.time, "thread_time", lambda: 7.0)  # the processor is never ours
    with monkeypatch.context() as patch:
        patch.setattr(_guard, "PATIENCE", 10**6)
        assert exercises.evaluate("stable-softmax", busy, time_limit=0.05).state == "pass"
    message = fails("stable-softmax", waiting, time_limit=0.02).message
    assert message.startswith("Your function was stopped after 0.24 seconds, most of them spent")


def test_slow_imports_are_done_before_the_clock_starts(monkeypatch, tmp_path):
    (tmp_path / "loaded_slowly.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    real, seen = exercises._find("stable-softmax"), []
    warm = dataclasses.replace(real, warm=("loaded_slowly",))
    monkeypatch.setattr(exercises, "_find", lambda name: warm)

    def answer(scores):
        seen.append("loaded_slowly" in sys.modules)
        return solutions.softmax_shifted(scores)

    assert exercises.evaluate("stable-softmax", answer).state == "pass"
    assert all(seen)
    monkeypatch.delitem(sys.modules, "loaded_slowly")
    with_optimizers = ("adamw-step", "lab-train")
    monkeypatch.undo()
    for name in with_optimizers:
        assert exercises._find(name).warm == ("torch._dynamo",)


def test_the_time_limit_leaves_an_earlier_alarm_in_place():
    def ignore(signum, frame):
        pass

    before = signal.signal(signal.SIGALRM, ignore)
    try:
        signal.setitimer(signal.ITIMER_REAL, 500.0)
        exercises.evaluate("stable-softmax", solutions.softmax_shifted)
        assert signal.getsignal(signal.SIGALRM) is ignore
        assert 400 < signal.getitimer(signal.ITIMER_REAL)[0] <= 500
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_check_works_outside_the_main_thread():
    states = []

    def work():
        states.append(exercises.evaluate("stable-softmax", solutions.softmax_shifted).state)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert states == ["pass"]


@pytest.mark.parametrize(
    "function",
    [lambda: 1, lambda x, y: x, lambda *, scores: scores],
    ids=["none", "two", "keyword"],
)
def test_a_signature_that_does_not_fit_is_named(function):
    message = fails("stable-softmax", function).message
    assert message.startswith("Your function takes (")
    assert "stable_softmax(scores)" in message


def test_a_renamed_keyword_is_named():
    def renamed(query, keys, values, tau=1.0):
        return torch.softmax(keys @ query / tau, 0) @ values

    message = fails("soft-lookup", renamed).message
    assert "(query, keys, values, tau)" in message
    assert "soft_lookup(query, keys, values, temperature)" in message


class Odd(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise LookupError("odd")


class OddShape:
    shape = property(lambda self: 1 / 0)


ODD = [
    0, 1.5, "text", [], (), {}, True, object(), OddShape(), lambda: None, torch.tensor(1.0),
    torch.empty(0), torch.zeros(2, 3, 5, 7), torch.zeros(3).to_sparse(), torch.zeros(2) + 1j,
    torch.zeros(2, 3).numpy(), (None, None, None), [torch.zeros(3)] * 3,
    torch.zeros(2, 5, device="meta"), torch.zeros(2).as_subclass(Odd),
]  # fmt: skip


@pytest.mark.untyped
def test_no_result_is_odd_enough_to_raise():
    for name in NAMES:
        for result in ODD:
            report = fails(name, lambda *args, _result=result, **kwargs: _result)
            assert repr(report)
            assert report._repr_mimebundle_()["text/html"]


def test_a_wrong_shape_is_named():
    message = fails("stable-softmax", lambda scores: scores.sum(-1)).message
    assert message == "The result has shape (2,). It should be (2, 3)."


def test_nan_is_named():
    assert "contains NaN" in fails("stable-softmax", lambda scores: scores * torch.nan).message


def test_a_numpy_result_is_named():
    assert "is a ndarray" in fails("stable-softmax", lambda scores: scores.numpy()).message


def test_a_change_of_an_input_is_shown_with_the_value_from_before():
    report = fails("stable-softmax", solutions.softmax_in_place)
    assert not torch.equal(report.got, report.given["scores"])
    assert torch.equal(report.wanted, report.given["scores"])


# bad usage --------------------------------------------------------------------------------------


@pytest.mark.untyped
@pytest.mark.parametrize("call", [exercises.describe, lambda name: exercises.check(name, print)])
def test_an_unknown_name_is_answered_with_close_ones(call):
    with pytest.raises(ValueError, match="'stable_sofmax'.*did you mean 'stable-softmax'"):
        call("stable_sofmax")
    with pytest.raises(ValueError, match="the exercises are .*soft-lookup"):
        call("qqqq")


@pytest.mark.untyped
def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match=r"function must be callable, got Tensor.*stable_softmax\)"):
        exercises.check("stable-softmax", torch.zeros(2))
    with pytest.raises(TypeError, match="name must be .*a string, got function"):
        exercises.check(solutions.softmax_shifted, "stable-softmax")


@pytest.mark.untyped
@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_limit_has_to_be_positive(seconds):
    with pytest.raises(ValueError, match="time_limit must be a positive number"):
        exercises.check("stable-softmax", print, time_limit=seconds)


def test_an_incomplete_exercise_is_refused():
    def test_of(function):
        """It holds."""

    parts = dict(
        name="x",
        title="X",
        level=1,
        section="s",
        stub=test_of,
        properties=(test_of,),
        hints=("h",),
    )
    _spec.Exercise(**parts)
    for change in ({"level": 4}, {"hints": ()}, {"properties": ()}, {"stub": lambda x: x}):
        with pytest.raises(ValueError, match="level|hints|docstring"):
            _spec.Exercise(**{**parts, **change})


# what an answer leaves behind ---------------------------------------------------------------------


@pytest.mark.untyped
def test_what_an_answer_replaces_is_put_back_and_named():
    def patches(place, name, value):
        def answer(scores):
            setattr(place, name, value)
            return scores  # wrong, though nothing that was replaced would say so

        return answer

    replaced = [
        (torch, "allclose", lambda *args, **kwargs: True),
        (torch, "softmax", lambda x, dim: x),
        (torch.nn.functional, "softmax", torch.zeros(2)),
        (torch.Tensor, "softmax", lambda self, dim: self),
        (torch.Tensor, "own", 3),
        (math, "isclose", lambda *args, **kwargs: True),
        (builtins, "all", lambda values: True),
    ]
    for place, name, value in replaced:
        before = vars(place).get(name)
        message = fails("stable-softmax", patches(place, name, value)).message
        assert f"{name}`, which all other code uses too" in message
        assert vars(place).get(name) is before

    def raises(scores):
        torch.allclose = None
        raise KeyError("after it")

    assert "KeyError" in fails("stable-softmax", raises).message
    assert exercises.evaluate("stable-softmax", solutions.softmax_shifted).state == "pass"


@pytest.mark.untyped
def test_a_change_of_any_argument_is_seen():
    tensor, other = torch.ones(2), torch.ones(2)
    values = [[1, [2]], {"a": [1]}, {1, 2}, [tensor], {"a": other}, Counter("aab"), [float("nan")]]
    kept = [_guard._copy(value) for value in values]
    assert all(map(_guard._equal, values, kept))
    values[0][1].append(3)
    values[1]["a"].pop()
    values[2].add(3)
    tensor.add_(1)
    other.mul_(2)
    values[5].clear()
    values[6][0] = 1.0
    assert not any(map(_guard._equal, values, kept))


def test_rounding_on_the_way_is_named():
    x = torch.tensor([1 / 3, 2 / 7], dtype=torch.float64)
    with pytest.raises(_spec.Wrong, match="comes from rounding to float32 on the way"):
        _spec.expect(x.float().double(), x, "It differs.", tolerance=1e-9)
    with pytest.raises(_spec.Wrong) as wrong:
        _spec.expect(x + 0.1, x, "It differs.")
    assert "float32" not in str(wrong.value)


def test_no_difference_is_told_where_it_is_infinite():
    wanted = torch.tensor([0.5, -math.inf])
    with pytest.raises(_spec.Wrong) as wrong:
        _spec.expect(wanted + torch.tensor([0.1, 0.0]), wanted, "It differs.")
    assert str(wrong.value) == "It differs. It is off by up to 0.1."
    with pytest.raises(_spec.Wrong) as wrong:
        _spec.expect(torch.tensor([0.5, 1.0]), wanted, "It differs.")
    assert str(wrong.value) == "It differs."


@pytest.mark.untyped
def test_another_order_is_named_only_where_it_is_all_that_is_wrong():
    def wrong_and_turned(x, h, c, w_x, w_h, b):
        i, f, g, o = (x @ w_x.T + h @ w_h.T + b).chunk(4, -1)
        new = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return new, o.sigmoid() * new  # in the other order the cell would be right

    def turned(text, valid, test):
        first, second = (len(text) * part // 100 for part in (100 - valid - test, 100 - test))
        return text[second:], text[first:second], text[:first]

    assert "exchanged" not in fails("lstm-step", wrong_and_turned).message
    assert "in another order" in fails("lab-split", turned).message


# what stays as it was -----------------------------------------------------------------------------


@pytest.mark.untyped  # the run-time check of types draws from Python's generator
def test_global_state_is_left_alone():
    def meddles(scores):
        torch.manual_seed(1)
        torch.rand(3)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        return torch.softmax(scores, -1)

    torch.manual_seed(7)
    before, python = torch.get_rng_state(), random.getstate()
    with torch.no_grad():
        for function in (solutions.softmax_shifted, meddles):
            exercises.evaluate("stable-softmax", function)
            assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == python


def test_the_readers_modes_do_not_change_the_verdict():
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            for name, function in dict(RIGHT).items():  # one for each exercise
                assert exercises.evaluate(name, function).state == "pass", name
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.untyped
def test_a_card_is_the_same_at_every_run():
    for name, function in {name: function for name, _, function in WRONG}.items():  # one for each
        first = outcome(name, function)._repr_mimebundle_()
        assert exercises.evaluate(name, function)._repr_mimebundle_() == first, label(function)


# the card ---------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """Collects the tags, and checks that they nest."""

    def __init__(self, html):
        super().__init__()
        self.open, self.seen, self.words = [], [], ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def test_a_passed_card_says_what_was_tried():
    report = exercises.evaluate("stable-softmax", solutions.softmax_shifted)
    assert repr(report).startswith("exercise stable-softmax: passed (6 properties: every row is")
    tags = Tags(report._repr_mimebundle_()["text/html"])
    assert tags.seen[0][1]["data-state"] == "pass"
    assert sum(tag == "li" for tag, _ in tags.seen) == 6
    assert "details" not in dict(tags.seen)


def test_a_failed_card_shows_input_result_and_wish():
    report = fails("stable-softmax", solutions.softmax_of_columns)
    text = repr(report)
    assert "given scores: [[-0.5, -0.6, -0.6],\n                 [ 0.7, -0.2,  1.9]]" in text
    assert "came back: [[" in text
    assert "wanted: [[0.3559" in text.replace(" 0.3559", "0.3559")
    tags = Tags(report._repr_mimebundle_()["text/html"])
    assert tags.seen[0] == ("div", tags.seen[0][1])
    assert tags.seen[0][1]["class"] == "tfbook-check"
    assert tags.seen[0][1]["data-state"] == "fail"
    assert sum(tag == "details" for tag, _ in tags.seen) == 3
    assert ("div", {"role": "status"}) in tags.seen
    assert not any("id" in attributes for _, attributes in tags.seen)
    assert report.message.replace("`", "") in tags.words


def test_a_card_escapes_what_the_reader_wrote():
    def hostile(scores):
        raise ValueError("<script>alert(1)</script>")

    html = fails("stable-softmax", hostile)._repr_mimebundle_()["text/html"]
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_hints_lead_from_a_nudge_to_the_tool():
    for name in NAMES:
        hints = exercises.describe(name).hints
        assert len(hints) == 3, name
        assert "=" in hints[-1] or "`" in hints[-1], name
        Tags(exercises.describe(name)._repr_mimebundle_()["text/html"])


def test_check_writes_one_card_and_returns_nothing(capsys):
    assert exercises.check("stable-softmax", solutions.softmax_shifted) is None
    assert capsys.readouterr().out.startswith("exercise stable-softmax: passed")


def test_check_shows_html_in_a_notebook(monkeypatch):
    display = pytest.importorskip("IPython.display")
    shown = []
    monkeypatch.setattr(display, "display", shown.append)
    exercises.check("stable-softmax", solutions.softmax_of_columns)
    assert [set(card._repr_mimebundle_()) for card in shown] == [{"text/plain", "text/html"}]


def test_a_card_reaches_a_real_shell():
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    formatter = shell.instance().display_formatter
    report = exercises.evaluate("stable-softmax", solutions.softmax_shifted)
    data, _ = formatter.format(report)
    shell.clear_instance()
    assert data["text/plain"] == repr(report)
    assert 'class="tfbook-check"' in data["text/html"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.tensor([1.0, -0.0, 0.123456]), "[     1,      0, 0.1235]"),
        (torch.tensor([[True], [False]]), "[[ True],\n [False]]"),
        (torch.tensor([math_inf := float("inf"), -math_inf]), "[ inf, -inf]"),
        (torch.zeros(0, 3), "[]"),
        (torch.zeros(()), "0"),
        (torch.zeros(7, 11), "a tensor of shape (7, 11), float32"),
        (0.123456, "0.1235"),
        ("x" * 700, "x" * 599 + "…"),
    ],
)
def test_values_are_shown_short_and_rounded(value, text):
    assert _card.show(value) == text


# the machinery's own promises ---------------------------------------------------------------------


def test_inputs_have_one_decimal_and_do_not_depend_on_the_seed():
    torch.manual_seed(1)
    first = _spec.numbers(5, 7, seed=3)
    torch.manual_seed(2)
    assert torch.equal(first, _spec.numbers(5, 7, seed=3))
    assert torch.allclose(first * 10, (first * 10).round())
    assert first.dtype == torch.float64


def test_steady_torch_gives_the_default_device_back():
    with torch.device("meta"), _guard.steady_torch():
        assert torch.zeros(1).device.type == "cpu"
