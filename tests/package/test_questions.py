"""Questions in Python: quizzes of several numbers, predictions, explanations, and their files."""

import pytest

from tfbook.teaching import explain, predict, quiz
from tfbook.teaching.explorables import _base, _questions

CHOICES = [("one", False, "No."), ("two", True, "Yes."), ("three", False, "No.")]
NUMBERS = [
    {"name": "α₁", "answer": 0.12, "tolerance": 0.005, "feedback": {0.88: "The other."}},
    {"name": "α₂", "answer": 0.88},
]
RUBRIC = ["Names it.", "Says why.", "Says when."]


def asked(**changes):
    return explain("a", "Why?", **({"model": "Because.", "rubric": RUBRIC} | changes))


# --------------------------------------------------------------------------- what Python reads


@pytest.mark.parametrize(
    ("answer", "correct"),
    [(None, None), ([0.12, 0.88], True), ([0.124, 0.88], True), ([0.12, 0.884], False)],
)
def test_several_numbers_are_right_together(answer, correct):
    question = quiz("a", "Which weights?", numbers=NUMBERS)
    question.answer = answer
    assert (question.answer, question.correct) == (answer, correct)


def test_the_text_of_several_numbers_names_each():
    shown = repr(quiz("a", "Which weights?", numbers=NUMBERS, explanation="They sum to 1."))
    assert shown.endswith("Answer: α₁ = 0.12, α₂ = 0.88. They sum to 1.")


@pytest.mark.parametrize(("answer", "correct"), [(None, None), (0, False), (1, True)])
def test_a_prediction_says_whether_it_came_true(answer, correct):
    question = predict("a", "Which?", choices=CHOICES)
    question.answer = answer
    assert (question.answer, question.correct) == (answer, correct)


def test_a_predicted_number_is_told_whatever_was_said():
    question = predict("a", "How many?", answer=7, tolerance=1)
    question.answer = 6.5
    assert question.correct is True
    assert question.data["explanation"] == "It is 7."


def test_an_explanation_is_complete_with_three_marks():
    question = asked()
    assert (question.text, question.compared, question.complete) == ("", False, False)
    question.text, question.compared = "Since it is so.", True
    question.marks = (True, True, False)
    assert question.complete is False
    question.marks = [True] * 3
    assert question.complete is True


# ---------------------------------------------------------------------------- the files' entries

FILE = """
[a-quiz]
question = "How many?"
numbers = [{name = "x", answer = 1, feedback = [{number = 2, text = "Half."}]}, {name = "y", answer = 2}]

[a-prediction]
kind = "predict"
question = "What happens?"
choices = [
    {text = "This.", right = true, feedback = "It does."}, {text = "That.", feedback = "No."},
]

[an-explanation]
kind = "explain"
question = "Why?"
model = "Because."
rubric = ["Names it.", "Says why.", "Says when."]

[another]
kind = "draw"
question = "How?"
"""  # noqa: E501


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A book with one chapter of questions."""
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / _questions.FILE).write_text(FILE, encoding="utf-8")
    monkeypatch.setattr(_questions, "FOLDER", tmp_path)
    _questions.questions.cache_clear()
    yield
    _questions.questions.cache_clear()


def test_each_kind_finds_its_entry(book):
    assert quiz("a-quiz").data["numbers"][0]["feedback"] == [{"value": 2, "text": "Half."}]
    assert [c["correct"] for c in predict("a-prediction").data["choices"]] == [True, False]
    assert explain("an-explanation").data["rubric"] == RUBRIC


@pytest.mark.parametrize(
    ("ask", "slug", "words"),
    [
        (quiz, "a-prediction", r"kind 'quiz'; .* as 'predict': predict\('a-prediction'\) shows it"),
        (quiz, "an-explanation", r"explain\('an-explanation'\) shows it"),
        (predict, "a-quiz", r"kind 'predict'; the book has it as 'quiz': quiz\('a-quiz'\) shows"),
        (explain, "a-prediction", r"must name a question of the kind 'explain'"),
        (quiz, "another", "as 'draw': no function shows it"),
        (predict, "a-predictio", "is not a question of the book: did you mean 'a-prediction'"),
        (quiz, "a-predictio", "did you mean 'a-quiz'|own give its text, and choices or an answer"),
        (explain, "nothing", "of your own give its text, and model and rubric"),
    ],
)
def test_an_entry_of_another_kind_is_refused(book, ask, slug, words):
    with pytest.raises(ValueError, match=words):
        ask(slug)


# --------------------------------------------------------------------------------- bad input


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: quiz("a", "?", numbers=NUMBERS, answer=1), ValueError, "numbers have answers"),
        (lambda: quiz("a", "?", numbers=NUMBERS, unit="s"), ValueError, "numbers have answers"),
        (lambda: quiz("a", "?", numbers=NUMBERS[:1]), ValueError, "numbers must be 2 to 8"),
        (lambda: quiz("a", "?", numbers={"x": 1}), TypeError, "list of dictionaries, got dict"),
        (lambda: quiz("a", "?", numbers=[1, 2]), TypeError, r"numbers\[0\] must be a dictionary"),
        (lambda: quiz("a", "?", numbers=[{"name": "x"}] * 2), ValueError, "must have answer"),
        (lambda: quiz("a", "?", numbers=[NUMBERS[0]] * 2), ValueError, "differ in their names"),
        (
            lambda: quiz("a", "?", numbers=[{**NUMBERS[0], "value": 1}, NUMBERS[1]]),
            ValueError,
            r"numbers\[0\] has no value",
        ),
        (lambda: quiz("why-soft", numbers=NUMBERS), ValueError, "question must not be missing"),
        (lambda: predict("A b", "?", answer=1), ValueError, "slug must be lower case"),
        (lambda: predict("a", "?"), ValueError, "give either choices or answer"),
        (lambda: predict("a", "?", choices=CHOICES[:1]), ValueError, "choices must be 2 to 6"),
        (lambda: predict("a", answer=1), ValueError, "question must not be missing"),
        (lambda: explain("a", "?"), TypeError, "model must be a string, got NoneType"),
        (lambda: explain("a", model="x"), ValueError, "question must not be missing"),
        (lambda: asked(model=" "), ValueError, "model must not be empty"),
        (lambda: asked(rubric=RUBRIC[:2]), ValueError, "exactly 3 lines, got 2"),
        (lambda: asked(rubric="abc"), TypeError, "rubric must be a list of strings, got str"),
        (lambda: asked(rubric=["a", "", "c"]), ValueError, r"rubric\[1\] must not be empty"),
    ],
)
def test_bad_input_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "name", "value", "error", "words"),
    [
        (lambda: quiz("a", "?", choices=CHOICES), "answer", 3, ValueError, "between 0 and 2"),
        (lambda: quiz("a", "?", choices=CHOICES), "answer", "b", TypeError, "a whole number"),
        (lambda: quiz("a", "?", answer=1), "answer", "1", TypeError, "must be a number, got str"),
        (lambda: quiz("a", "?", numbers=NUMBERS), "answer", [1], ValueError, "2 numbers, got 1"),
        (lambda: predict("a", "?", answer=1), "answer", [1], TypeError, "must be a number"),
        (asked, "marks", [True], ValueError, "3 times True or False"),
        (asked, "marks", [1, 0, 0], TypeError, "a mark must be True or False, got int"),
        (asked, "text", 3, TypeError, "text must be a string, got int"),
        (asked, "text", "x" * 10_001, ValueError, "at most 10000 characters"),
        (asked, "compared", 1, TypeError, "compared must be True or False"),
    ],
)
def test_a_bad_value_of_a_control_is_refused(make, name, value, error, words):
    question = make()
    before = getattr(question, name)
    with pytest.raises(error, match=words):
        setattr(question, name, value)
    assert getattr(question, name) == before


def test_a_question_says_how_it_is_answered_before_it_runs():
    for question in (asked(), predict("a", "?", answer=1), quiz("a", "?", answer=1)):
        assert question.module in _base.QUESTIONS
        assert "To answer, run the imports" in question._repr_mimebundle_()["text/html"]
