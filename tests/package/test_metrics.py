"""Scores: by hand, by what they must not depend on, and as the tools of the field compute them."""

import math

import pytest
import sacrebleu
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbook import data
from tfbook.metrics import (
    accuracy,
    bits_per_byte,
    bleu,
    chrf,
    f1,
    perplexity,
    span_f1,
    spans,
    words_13a,
)

# Perplexity and bits per byte


def test_a_uniform_guess_is_as_unsure_as_its_choices():
    assert perplexity(13 * math.log(7), tokens=13) == pytest.approx(7, rel=1e-12)
    assert perplexity(math.log(7)) == pytest.approx(7, rel=1e-12)
    assert perplexity(0.0, tokens=5) == 1


def test_perplexity_depends_on_the_tokens_and_bits_per_byte_does_not():
    """One text, one likelihood, cut into 20 or into 40 tokens."""
    assert perplexity(100.0, 20) == pytest.approx(perplexity(100.0, 40) ** 2, rel=1e-12)
    text = "Ça coûte 3 €."
    mean20, mean40 = 100 / 20, 100 / 40
    n_bytes = len(text.encode())
    assert n_bytes == 17 > len(text)
    for mean, tokens in ((mean20, 20), (mean40, 40)):
        by_rate = mean * (tokens / n_bytes) / math.log(2)
        assert bits_per_byte(100.0, n_bytes) == pytest.approx(by_rate, rel=1e-12)


def test_bytes_at_random_cost_eight_bits_each():
    assert bits_per_byte(11 * math.log(256), 11) == pytest.approx(8, rel=1e-12)


def test_a_perplexity_beyond_the_largest_float_is_infinite():
    assert perplexity(1e5) == math.inf == perplexity(math.inf, 3)


@pytest.mark.untyped
@pytest.mark.parametrize("score", [perplexity, bits_per_byte])
def test_impossible_losses_and_counts_are_refused(score):
    for loss in (-0.1, math.nan):
        with pytest.raises(ValueError, match="nats must be at least 0"):
            score(loss, 3)
    with pytest.raises(TypeError, match="nats must be a number, got str"):
        score("2", 3)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        score(2.0, 0)


# Accuracy and F1


def random_classes(n_classes=5, shape=(7, 11), seed=3):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, n_classes, shape, generator=generator)
    wrong = torch.rand(shape, generator=generator) < 0.4
    return torch.where(wrong, torch.randint(0, n_classes, shape, generator=generator), targets), (
        targets
    )


def test_accuracy_leaves_padding_out():
    guess = torch.tensor([[5, 6, 7], [8, 0, 1]])
    truth = torch.tensor([[5, 6, 9], [8, 0, 0]])
    assert accuracy(guess, truth) == 4 / 6
    assert accuracy(guess, truth, ignore=0) == 3 / 4
    assert accuracy(guess, truth, ignore=-100) == 4 / 6


def test_what_is_predicted_at_padding_does_not_matter():
    guess, truth = random_classes()
    other = torch.where(truth == 2, 4 - guess, guess)
    assert not torch.equal(other, guess)
    for score in (accuracy, f1, lambda *a, **k: f1(*a, average="micro", **k)):
        assert score(other, truth, ignore=2) == score(guess, truth, ignore=2)


def f1_by_counting(guess, truth):
    """2 P R / (P + R) from the definitions, class by class."""
    pairs = list(zip(guess.flatten().tolist(), truth.flatten().tolist(), strict=True))
    found = []
    for c in sorted({x for pair in pairs for x in pair}):
        tp = sum(g == t == c for g, t in pairs)
        said, true = sum(g == c for g, _ in pairs), sum(t == c for _, t in pairs)
        p, r = tp / said if said else 0.0, tp / true if true else 0.0
        found.append(2 * p * r / (p + r) if p + r else 0.0)
    return sum(found) / len(found)


def test_macro_f1_is_the_mean_of_the_harmonic_means():
    for seed in (1, 2, 3):
        guess, truth = random_classes(seed=seed)
        assert f1(guess, truth) == pytest.approx(f1_by_counting(guess, truth), rel=1e-12)
    guess, truth = torch.tensor([0, 0, 3]), torch.tensor([0, 1, 0])  # 3 never true, 1 never said
    assert f1(guess, truth) == pytest.approx((0.5 + 0 + 0) / 3)


def test_micro_f1_of_one_label_each_is_the_accuracy():
    guess, truth = random_classes()
    assert f1(guess, truth, average="micro") == pytest.approx(accuracy(guess, truth), rel=1e-12)


def test_a_class_that_is_never_found_costs_macro_f1_more_than_accuracy():
    truth = torch.tensor([0] * 97 + [1] * 3)
    always = torch.zeros_like(truth)
    assert accuracy(always, truth) == 0.97
    assert f1(always, truth) == pytest.approx(0.5 * 2 * 0.97 / 1.97)


def test_names_and_order_of_the_classes_do_not_matter():
    guess, truth = random_classes()
    order = torch.randperm(guess.numel(), generator=torch.Generator().manual_seed(5))
    names = torch.tensor([17, 3, 101, 0, 7])
    shuffled = [names[x.flatten()[order]] for x in (guess, truth)]
    assert f1(*shuffled) == pytest.approx(f1(guess, truth), rel=1e-12)


@pytest.mark.untyped
@pytest.mark.parametrize("score", [accuracy, f1])
def test_bad_predictions_are_refused(score):
    truth = torch.tensor([1, 2, 3])
    with pytest.raises(TypeError, match=r"predicted must hold integers, got torch.float32; use"):
        score(torch.rand(3), truth)
    with pytest.raises(TypeError, match="targets must be a tensor, got list"):
        score(truth, [1, 2, 3])
    with pytest.raises(ValueError, match=r"same shape, got \(2,\) and \(3,\)"):
        score(truth[:2], truth)
    with pytest.raises(ValueError, match="nothing is left to count"):
        score(truth, torch.zeros_like(truth), ignore=0)
    with pytest.raises(TypeError, match="ignore must be an integer, got float"):
        score(truth, truth, ignore=0.0)


@pytest.mark.untyped
def test_another_average_is_refused():
    with pytest.raises(ValueError, match='average must be "macro" or "micro", got \'weighted\''):
        f1(torch.tensor([1]), torch.tensor([1]), average="weighted")


# Entities


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O O", []),
        ("", []),
        ("B-A", [(0, 1, "A")]),
        ("B-A I-A I-A O", [(0, 3, "A")]),
        ("B-A B-A", [(0, 1, "A"), (1, 2, "A")]),
        ("B-A I-B", [(0, 1, "A"), (1, 2, "B")]),
        ("O I-A I-A B-A I-A", [(1, 3, "A"), (3, 5, "A")]),
        ("I-A-b O I-A-b", [(0, 1, "A-b"), (2, 3, "A-b")]),
    ],
)
def test_entities_are_read_off_their_tags(tags, expected):
    assert sorted(spans(tags.split())) == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["A", "B"]), st.integers(1, 4))))
def test_entities_come_back_from_the_tags_that_they_make(parts):
    tags, expected = [], set()
    for gap, kind, length in parts:
        tags += ["O"] * gap
        expected.add((len(tags), len(tags) + length, kind))
        tags += [f"B-{kind}"] + [f"I-{kind}"] * (length - 1)
    assert spans(tags) == expected


def test_entity_f1_counts_over_all_sentences_and_wants_ends_and_kind_right():
    truth = [{(0, 2, "A"), (3, 4, "B")}, set(), {(1, 2, "A")}]
    guess = [{(0, 2, "A"), (3, 5, "B")}, {(0, 1, "A")}, {(1, 2, "B")}]
    assert span_f1(guess, truth) == pytest.approx(2 * 1 / (4 + 3))
    assert span_f1(truth, guess) == span_f1(guess, truth)
    assert span_f1(truth, truth) == 1 == span_f1([set()], [set()])
    assert span_f1([set()] * 3, truth) == 0


@pytest.mark.untyped
def test_bad_tags_and_entities_are_refused():
    for tag in ("B", "B-", "X-A", "", "o"):
        with pytest.raises(ValueError, match='tags must be "O", "B-..." or'):
            spans(["O", tag])
    with pytest.raises(TypeError, match="tags must be strings, got int"):
        spans([3])
    with pytest.raises(ValueError, match="must be as many, got 1 and 2"):
        span_f1([set()], [set(), set()])
    with pytest.raises(TypeError, match="targets must hold sets, got list"):
        span_f1([set()], [[]])


# BLEU

HYPOTHESES = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
REFERENCES = [  # for each hypothesis two
    ["The dog bit the man.", "The dog had bit the man."],
    ["It was not unexpected.", "No one was surprised."],
    ["The man bit him first.", "The man had bitten the dog."],
]
# Texts with marks, numbers, entities, odd spaces, other scripts, nothing at all.
ODD = [
    ("", "something"),
    ("a b c d e", "a b c d e"),
    ("a b c", "a b c"),
    (" Well-known: 3.14, not 3-4! ", "Well-known: 3.14 and 3 - 4 !"),
    ("say &quot;no&quot; &amp; go\nhome-\nward", 'say "no" & go home ward'),
    ("naïve café, déjà vu…", "naive café , déjà-vu ..."),
    ("数学 は 楽しい。", "数学 は とても 楽しい 。"),
    ("the the the the the the the", "the cat is on the mat"),
    ("it's 1,000.50$ (maybe) [x] {y} ~z", "it 's 1,000.50 $ ( maybe ) [ x ]"),
    ("tab\tand\u00a0space  here", "tab and space here"),
]


def corpora():
    yield HYPOTHESES, REFERENCES
    yield [h for h, _ in ODD], [[r] for _, r in ODD]
    pairs = data.english_french("test")[:31]
    yield [a for _, a in pairs], [[b] for _, (_, b) in zip(pairs, pairs[1:] + pairs[:1])]  # noqa: B905
    # A wrong translation that is half right: every third word is gone.
    half = [" ".join(w for i, w in enumerate(f.split()) if i % 3) for _, f in pairs]
    yield half, [[f, f.upper()] for _, f in pairs]


def streams(references):
    """sacrebleu's order: a list of all first references, one of all second ones."""
    return [list(stream) for stream in zip(*references, strict=True)]


def same_bleu(ours, theirs):
    assert ours.score == pytest.approx(theirs.score, rel=1e-9, abs=1e-9)
    assert ours.precisions == pytest.approx(theirs.precisions, rel=1e-9, abs=1e-9)
    assert ours.brevity_penalty == pytest.approx(theirs.bp, rel=1e-9)
    assert (ours.length, ours.reference_length) == (theirs.sys_len, theirs.ref_len)


@pytest.mark.parametrize("smooth", ["exp", "floor", "none"])
@pytest.mark.parametrize("tokenize", ["13a", "none"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_equals_sacrebleu(smooth, tokenize, lowercase):
    for hypotheses, references in corpora():
        for n, effective in ((4, False), (2, True)):
            ours = bleu(
                hypotheses,
                references,
                max_order=n,
                smooth=smooth,
                tokenize=tokenize,
                lowercase=lowercase,
                effective_order=effective,
            )
            metric = sacrebleu.BLEU(
                smooth_method=smooth,
                tokenize=tokenize,
                lowercase=lowercase,
                max_ngram_order=n,
                effective_order=effective,
                force=True,
            )
            same_bleu(ours, metric.corpus_score(hypotheses, streams(references)))


def test_bleu_of_each_odd_sentence_equals_sacrebleu():
    for hypothesis, reference in ODD:
        ours = bleu([hypothesis], [reference], effective_order=True)
        same_bleu(ours, sacrebleu.sentence_bleu(hypothesis, [reference]))


@pytest.mark.parametrize(
    ("hypotheses", "references", "choices", "expected"),
    [  # the cases of sacrebleu's own tests, and the values printed there
        (HYPOTHESES, REFERENCES, {}, 48.530827),
        (["", "", ""], REFERENCES, {}, 0.0),
        (HYPOTHESES, REFERENCES, {"tokenize": "none"}, 49.1919566),
        (HYPOTHESES, REFERENCES, {"smooth": "none"}, 48.530827),
        (["this is a test", "another test"], ["ref1", "ref2"], "raw", 0.0),
        (["this is a test"], ["this is a test"], "raw", 100.0),
        (["this is a fest"], ["this is a test"], "raw", 22.3606797749979),
        (["test"], ["a test"], "raw", 36.78794411714425),
        (["a test"], ["a test"], "raw", 100.0),
        (["a little test"], ["a test"], "raw", 3.218297948685433),
    ],
)
def test_bleu_of_the_cases_that_sacrebleu_tests_itself_with(
    hypotheses, references, choices, expected
):
    if choices == "raw":
        choices = {"tokenize": "none", "smooth": "floor", "floor": 0.01, "effective_order": True}
    assert bleu(hypotheses, references, **choices).score == pytest.approx(expected, abs=1e-6)


def test_precision_is_clipped_at_the_count_of_one_reference():
    score = bleu(["the the the the the the the"], [["the cat is on the mat", "the end"]])
    assert score.precisions[0] == pytest.approx(100 * 2 / 7)


def test_a_short_translation_pays_the_brevity_penalty_and_a_long_one_does_not():
    reference = "one two three four five six seven"
    short = bleu(["one two three four five"], [reference])
    assert short.precisions == pytest.approx((100,) * 4)
    assert short.score == pytest.approx(100 * math.exp(1 - 7 / 5))
    assert bleu([reference + " eight nine"], [reference]).brevity_penalty == 1


def test_of_precisions_that_are_zero_the_first_is_half_a_match_the_next_a_quarter():
    # Runs of 1, 2, 3, 4 words: 3 of 4, 1 of 3, 0 of 2, 0 of 1.
    assert bleu(["a b x c"], ["a b y c"]).precisions == pytest.approx(
        (300 / 4, 100 / 3, 50 / 2, 25 / 1)
    )
    floored = bleu(["a b x c"], ["a b y c"], smooth="floor", floor=0.3)
    assert floored.precisions == pytest.approx((300 / 4, 100 / 3, 30 / 2, 30 / 1))


def test_the_nearest_reference_gives_the_length_and_of_two_the_shorter():
    texts = ["a b c", ["a b c d e f", "a", "a b c d", "a b"]]
    assert bleu([texts[0]], [texts[1]]).reference_length == 2


def test_counts_are_added_over_the_corpus_before_they_are_divided():
    hypotheses, references = ["a b c d", "x"], ["a b c d", "y z u v"]
    whole = bleu(hypotheses, references, smooth="none")
    assert whole.precisions == pytest.approx((80, 100, 100, 100))
    assert whole.score == pytest.approx(100 * math.exp(1 - 8 / 5) * 0.8**0.25)


@settings(max_examples=20)
@given(st.permutations(range(len(ODD))))
def test_the_order_of_the_sentences_does_not_matter(order):
    shuffled = [ODD[i] for i in order]
    for score in (lambda h, r: bleu(h, r).score, chrf):
        one = score([h for h, _ in ODD], [r for _, r in ODD])
        assert score([h for h, _ in shuffled], [r for _, r in shuffled]) == pytest.approx(one)


def test_a_text_is_cut_into_words_and_marks():
    text = "Well-known: 3.14, not 3-4! it's (ok).\nNext"
    assert words_13a(text) == ("Well-known : 3.14 , not 3 - 4 ! it's ( ok ) . Next".split())


@given(st.text(max_size=40))
def test_any_text_is_cut_as_sacrebleu_cuts_it(text):
    cut = sacrebleu.tokenizers.tokenizer_13a.Tokenizer13a()
    assert words_13a(text) == cut(text).split()


# chrF


@pytest.mark.parametrize("word_order", [0, 2])
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("whitespace", [False, True])
def test_chrf_equals_sacrebleu(word_order, smooth, whitespace):
    for hypotheses, references in corpora():
        for beta, n, lowercase in ((2.0, 6, False), (3.0, 5, True)):
            ours = chrf(
                hypotheses,
                references,
                char_order=n,
                word_order=word_order,
                beta=beta,
                lowercase=lowercase,
                whitespace=whitespace,
                smooth=smooth,
            )
            theirs = sacrebleu.CHRF(
                char_order=n,
                word_order=word_order,
                beta=int(beta),
                lowercase=lowercase,
                whitespace=whitespace,
                eps_smoothing=smooth,
            ).corpus_score(hypotheses, streams(references))
            assert ours == pytest.approx(theirs.score, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("hypotheses", "references", "smooth", "expected"),
    [  # the cases of sacrebleu's own tests, β = 3
        (["abcdefg"], ["hijklmnop"], True, 0.0),
        (["a"], ["b"], True, 0.0),
        ([""], ["reference"], True, 0.0),
        (["aa"], ["ab"], True, 8.3333),
        (["a", "b"], ["a", "c"], True, 8.3333),
        (["a"], ["a"], True, 16.6667),
        (["a b c"], ["abc"], True, 50.0),
        (["a"], ["a"], False, 100.0),
        ([""], ["reference"], False, 0.0),
        (["a b c"], ["abc"], False, 100.0),
        (["a", "b"], ["a", "c"], False, 50.0),
        (["aa"], ["ab"], False, 25.0),
    ],
)
def test_chrf_of_the_cases_that_sacrebleu_tests_itself_with(
    hypotheses, references, smooth, expected
):
    assert chrf(hypotheses, references, beta=3.0, smooth=smooth) == pytest.approx(
        expected, abs=1e-4
    )


def test_chrf_by_hand():
    """Letters of "abc" against "abd": P = R, of runs of 1, 2, 3 letters 2/3, 1/2, 0."""
    mean = (2 / 3 + 1 / 2 + 0) / 3
    assert chrf(["abc"], ["abd"]) == pytest.approx(100 * mean)
    # "abcd" against "ab": P = (2/4 + 1/3)/2, R = 1; β weighs R.
    p, r = (2 / 4 + 1 / 3) / 2, 1.0
    for beta in (1.0, 2.0):
        expected = 100 * (1 + beta**2) * p * r / (beta**2 * p + r)
        assert chrf(["abcd"], ["ab"], beta=beta) == pytest.approx(expected)


def test_chrf_does_not_see_spaces_unless_asked():
    assert chrf(["a b c"], ["abc"]) == pytest.approx(100)
    assert chrf(["a b c"], ["abc"], whitespace=True) < 50


def test_chrf_takes_the_best_reference_wherever_it_stands():
    for references in (["abd", "xyz", "abe"], ["xyz", "abe", "abd"]):
        assert chrf(["abd"], [references]) == pytest.approx(100)


def test_chrf_forgives_an_ending_that_bleu_does_not():
    hypothesis, reference = ["he was wanting it"], ["he wants it"]
    assert bleu(hypothesis, reference, smooth="none").score == 0
    assert chrf(hypothesis, reference) > 35


@pytest.mark.parametrize("score", [lambda h, r: bleu(h, r).score, chrf])
def test_a_perfect_translation_has_100(score):
    texts = [french for _, french in data.english_french("valid")[:53]]
    assert score(texts, texts) == pytest.approx(100)
    assert score(texts, [[text, "autre chose"] for text in texts]) == pytest.approx(100)


@pytest.mark.untyped
@pytest.mark.parametrize("score", [bleu, chrf])
def test_bad_texts_are_refused(score):
    with pytest.raises(TypeError, match="hypotheses must be a list of texts, got str"):
        score("one text", ["one text"])
    with pytest.raises(TypeError, match="references must be a list of texts, got NoneType"):
        score(["one"], None)
    with pytest.raises(ValueError, match="as many, at least one, got 1 and 2"):
        score(["one"], ["one", "two"])
    with pytest.raises(ValueError, match="got 0 and 0"):
        score([], [])
    with pytest.raises(ValueError, match=r"references\[1\] must hold at least one text"):
        score(["a", "b"], [["a"], []])
    with pytest.raises(TypeError, match=r"references\[0\] must be text, got int"):
        score(["a"], [3])
    with pytest.raises(TypeError, match=r"hypotheses\[1\] must be text, got int"):
        score(["a", 3], ["a", "b"])
    with pytest.raises(TypeError, match=r"references\[0\] must be text, got NoneType"):
        score(["a"], [["a", None]])


@pytest.mark.untyped
def test_unknown_settings_are_refused():
    for name, value in (("tokenize", "intl"), ("smooth", "add-k")):
        with pytest.raises(ValueError, match=f"{name} must be .*got {value!r}"):
            bleu(["a"], ["a"], **{name: value})
    with pytest.raises(ValueError, match="max_order must be from 1 to 1000, got 0"):
        bleu(["a"], ["a"], max_order=0)
    with pytest.raises(ValueError, match="beta must be finite and above 0"):
        chrf(["a"], ["a"], beta=0)
    with pytest.raises(TypeError, match="text must be a string, got int"):
        words_13a(3)
