"""Right and wrong answers to the checks of the project on translation.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

from collections import Counter

import torch
from answers import collect

RIGHT, WRONG, right, wrong = collect()


# project-apart ----------------------------------------------------------------------------------


def side_by_side(source, held):
    words = source.split()
    return any(pair in held for pair in zip(words, words[1:], strict=False))


@right("project-apart")
def apart_slices(pairs, held, every):
    kept = list(dict.fromkeys(pairs))
    combinations = [pair for pair in kept if side_by_side(pair[0], held)]
    rest = [pair for pair in kept if not side_by_side(pair[0], held)]
    train = [pair for i, pair in enumerate(rest, 1) if i % every]
    return train, rest[every - 1 :: every], combinations


@right("project-apart")
def apart_loop(pairs, held, every):
    parts, seen, count = ([], [], []), set(), 0
    for source, target in pairs:
        if (source, target) in seen:
            continue
        seen.add((source, target))
        text = f" {source} "
        # Two spaces, so that neither the first nor the second word can be a piece of another.
        if any(f" {a} {b} " in text for a, b in held):
            parts[2].append((source, target))
            continue
        count += 1
        parts[count % every == 0].append((source, target))
    return parts


def piles(message):
    """Keep a wrong answer that is given what is held, or not, and makes the piles itself."""
    return wrong("project-apart", message)


def sorted_out(pairs, every, hit, first=1):
    combinations = [pair for pair in pairs if hit(pair[0])]
    rest = [pair for pair in pairs if not hit(pair[0])]
    train = [pair for i, pair in enumerate(rest, first) if i % every]
    return train, [pair for i, pair in enumerate(rest, first) if i % every == 0], combinations


@piles("repeat an earlier one are still there")
def apart_repeats(pairs, held, every):
    return sorted_out(pairs, every, lambda source: side_by_side(source, held))


@piles("within each part only")
def apart_late(pairs, held, every):
    return tuple(list(dict.fromkeys(part)) for part in apart_repeats(pairs, held, every))


@piles("They must stand side by side")
def apart_anywhere(pairs, held, every):
    def hit(source):
        return any({a, b} <= set(source.split()) for a, b in held)

    return sorted_out(list(dict.fromkeys(pairs)), every, hit)


@piles("Compare words")
def apart_text(pairs, held, every):
    def hit(source):
        return any(" ".join(pair) in source for pair in held)

    return sorted_out(list(dict.fromkeys(pairs)), every, hit)


@piles("in the other order count too")
def apart_turned(pairs, held, every):
    return apart_slices(pairs, held | {(b, a) for a, b in held}, every)


@piles("begins with the test")
def apart_from_zero(pairs, held, every):
    def hit(source):
        return side_by_side(source, held)

    return sorted_out(list(dict.fromkeys(pairs)), every, hit, first=0)


@piles("The combinations were counted, too")
def apart_counts_all(pairs, held, every):
    train, test, combinations = [], [], []
    for i, pair in enumerate(dict.fromkeys(pairs), 1):
        hit = side_by_side(pair[0], held)
        (combinations if hit else train if i % every else test).append(pair)
    return train, test, combinations


@piles("Training holds everything")
def apart_trains_on_all(pairs, held, every):
    return list(dict.fromkeys(pairs)), *apart_slices(pairs, held, every)[1:]


@piles("Test and training are exchanged")
def apart_exchanged(pairs, held, every):
    train, test, combinations = apart_slices(pairs, held, every)
    return test, train, combinations


@piles("The combinations come last")
def apart_combinations_first(pairs, held, every):
    train, test, combinations = apart_slices(pairs, held, every)
    return combinations, train, test


@piles("Leave them in their order")
def apart_sorted(pairs, held, every):
    return tuple(sorted(part) for part in apart_slices(pairs, held, every))


@piles("Pairs are the same if source and target are")
def apart_by_source(pairs, held, every):
    kept = list({source: (source, target) for source, target in reversed(pairs)}.values())
    return apart_slices(kept[::-1], held, every) if len(pairs) < 9 else apart_slices(
        pairs, held, every
    )


@piles("emptied its input `pairs`")
def apart_in_place(pairs, held, every):
    found = apart_slices(pairs, held, every)
    pairs.clear()
    return found


@piles("in another order: return your first, then your third, then your second")
def apart_reordered(pairs, held, every):
    train, test, combinations = apart_slices(pairs, held, every)
    return train, combinations, test


@piles("The last word of a sentence was paired with its first")
def apart_ring(pairs, held, every):
    around = {pair: f"{pair[0]} {pair[0].split()[0]}" for pair in dict.fromkeys(pairs)}
    rest = [pair for pair, text in around.items() if not side_by_side(text, held)]
    train = [pair for i, pair in enumerate(rest, 1) if i % every]
    return train, rest[every - 1 :: every], [pair for pair in around if pair not in rest]


# project-dictionary -----------------------------------------------------------------------------


def counts(pairs, kind=set):
    left, right_, both = Counter(), Counter(), Counter()
    for source, target in pairs:
        ours, theirs = kind(source.split()), kind(target.split())
        left.update(ours)
        right_.update(theirs)
        both.update((s, t) for s in ours for t in theirs)
    return left, right_, both


def best(pairs, value, kind=set, order=sorted):
    left, right_, both = counts(pairs, kind)
    return {
        s: max(
            order(t for t in right_ if both[s, t]),
            key=lambda t: value(both[s, t], left[s], right_[t]),
        )
        for s in left
    }


def dice(n, n_s, n_t):
    return 2 * n / (n_s + n_t)


@right("project-dictionary")
def dictionary_counters(pairs):
    return best(pairs, dice)


@right("project-dictionary")
def dictionary_jaccard(pairs):
    # n / (n_s + n_t − n) grows with Dice, so that the order is the same.
    return best(pairs, lambda n, n_s, n_t: n / (n_s + n_t - n))


@wrong("project-dictionary", "a word that is everywhere wins")
def dictionary_together(pairs):
    return best(pairs, lambda n, n_s, n_t: n)


@wrong("project-dictionary", "a word that is everywhere wins")
def dictionary_given_source(pairs):
    return best(pairs, lambda n, n_s, n_t: n / n_s)


@wrong("project-dictionary", "a word that occurs once wins")
def dictionary_given_target(pairs):
    return best(pairs, lambda n, n_s, n_t: n / n_t)


@wrong("project-dictionary", "was counted twice")
def dictionary_tokens(pairs):
    return best(pairs, dice, kind=list)


@wrong("project-dictionary", "Take the first")
def dictionary_last(pairs):
    return best(pairs, dice, order=lambda words: sorted(words, reverse=True))


@wrong("project-dictionary", "leads from target to source")
def dictionary_turned(pairs):
    return dictionary_counters([(target, source) for source, target in pairs])


@wrong("project-dictionary", "Words at the same place were paired")
def dictionary_places(pairs):
    table = {}
    for source, target in pairs:
        for s, t in zip(source.split(), target.split(), strict=False):
            table.setdefault(s, Counter())[t] += 1
    return {s: min(c, key=lambda t: (-c[t], t)) for s, c in table.items()}


@wrong("project-dictionary", "Return the words")
def dictionary_values(pairs):
    left, right_, both = counts(pairs)
    return {s: max(dice(both[s, t], left[s], right_[t]) for t in right_) for s in left}


@wrong("project-dictionary", "Return one")
def dictionary_lists(pairs):
    return {s: [t] for s, t in dictionary_counters(pairs).items()}


@wrong("project-dictionary", "The result is a list")
def dictionary_items(pairs):
    return list(dictionary_counters(pairs).items())


@wrong("project-dictionary", "A source word has another partner")
def dictionary_worst(pairs):
    return best(pairs, lambda n, n_s, n_t: -n)


# project-collate --------------------------------------------------------------------------------


def filled(rows, pad, width=0):
    width = max(width, *map(len, rows)) if len(rows) > 1 else max(width, len(rows[0]))
    return torch.tensor([row + [pad] * (width - len(row)) for row in rows])


@right("project-collate")
def collate_lists(sources, targets, bos, eos, pad):
    return filled([row + [eos] for row in sources], pad), filled(
        [[bos, *row, eos] for row in targets], pad
    )


@right("project-collate")
def collate_torch(sources, targets, bos, eos, pad):
    read = [torch.tensor([*row, eos]) for row in sources]
    write = [torch.tensor([bos, *row, eos]) for row in targets]
    return tuple(
        torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
        for rows in (read, write)
    )


@wrong("project-collate", "The sources have no end")
def collate_no_source_end(sources, targets, bos, eos, pad):
    return filled(sources, pad), collate_lists(sources, targets, bos, eos, pad)[1]


@wrong("project-collate", "The sources begin with bos")
def collate_source_bos(sources, targets, bos, eos, pad):
    return collate_lists([[bos, *row] for row in sources], targets, bos, eos, pad)


@wrong("project-collate", "stands before the sources")
def collate_left(sources, targets, bos, eos, pad):
    width = max(map(len, sources)) + 1
    read = [[pad] * (width - 1 - len(row)) + row + [eos] for row in sources]
    return torch.tensor(read), collate_lists(sources, targets, bos, eos, pad)[1]


@wrong("project-collate", "as wide as the targets")
def collate_one_width(sources, targets, bos, eos, pad):
    write = collate_lists(sources, targets, bos, eos, pad)[1]
    return filled([row + [eos] for row in sources], pad, width=write.shape[1]), write


@wrong("project-collate", "Padding is 0 here")
def collate_zero(sources, targets, bos, eos, pad):
    return collate_lists(sources, targets, bos, eos, 0)


@wrong("project-collate", "filled up with eos")
def collate_eos_padding(sources, targets, bos, eos, pad):
    return collate_lists(sources, targets, bos, eos, eos)


@wrong("project-collate", "The sources were cut")
def collate_cut(sources, targets, bos, eos, pad):
    read = [row + [eos] for row in sources]
    shortest = min(map(len, read))
    write = collate_lists(sources, targets, bos, eos, pad)[1]
    return torch.tensor([row[:shortest] for row in read]), write


@wrong("project-collate", "The targets have no bos")
def collate_no_bos(sources, targets, bos, eos, pad):
    read = collate_lists(sources, targets, bos, eos, pad)[0]
    return read, filled([row + [eos] for row in targets], pad)


@wrong("project-collate", "never learn where to stop")
def collate_no_eos(sources, targets, bos, eos, pad):
    read = collate_lists(sources, targets, bos, eos, pad)[0]
    return read, filled([[bos, *row] for row in targets], pad)


@wrong("project-collate", "stands behind the padding")
def collate_late_eos(sources, targets, bos, eos, pad):
    width = max(map(len, targets))
    write = [[bos, *row, *[pad] * (width - len(row)), eos] for row in targets]
    return collate_lists(sources, targets, bos, eos, pad)[0], torch.tensor(write)


@wrong("project-collate", "bos and eos are exchanged")
def collate_exchanged(sources, targets, bos, eos, pad):
    read = collate_lists(sources, targets, bos, eos, pad)[0]
    return read, collate_lists(sources, targets, eos, bos, pad)[1]


@wrong("project-collate", "The two results are exchanged")
def collate_turned(*case):
    return collate_lists(*case)[::-1]


@wrong("project-collate", "changed its input")
def collate_in_place(sources, targets, bos, eos, pad):
    for row in sources:
        row.append(eos)
    return filled(sources, pad), filled([[bos, *row, eos] for row in targets], pad)


@wrong("project-collate", "Return 2 results")
def collate_one(sources, targets, bos, eos, pad):
    return collate_lists(sources, targets, bos, eos, pad)[0]


# project-judge ----------------------------------------------------------------------------------


@right("project-judge")
def judge_lists(hypothesis, reference, stems):
    ours, theirs = hypothesis.split(), reference.split()
    if ours == theirs:
        return "right"
    ours, theirs = ([stems.get(word, word) for word in row] for row in (ours, theirs))
    if ours == theirs:
        return "form"
    return "order" if sorted(ours) == sorted(theirs) else "words"


@right("project-judge")
def judge_counters(hypothesis, reference, stems):
    ours, theirs = hypothesis.split(), reference.split()
    known = [[stems[word] if word in stems else word for word in row] for row in (ours, theirs)]
    if Counter(known[0]) != Counter(known[1]):
        return "words"
    if any(a != b for a, b in zip(*known, strict=True)):
        return "order"
    return "form" if ours != theirs else "right"


def asked(ours, theirs, stems, alike, moved):
    """Ask the questions in turn, with other answers to the second and the third one."""
    if ours.split() == theirs.split():
        return "right"
    ours, theirs = ours.split(), theirs.split()
    found = [[stems.get(word, word) for word in row] for row in (ours, theirs)]
    return "form" if alike(*found) else "order" if moved(*found) else "words"


def equal(ours, theirs):
    return ours == theirs


def as_often(ours, theirs):
    return sorted(ours) == sorted(theirs)


@wrong("project-judge", "Stems were not looked up")
def judge_no_stems(hypothesis, reference, stems):
    return judge_lists(hypothesis, reference, {})


@wrong("project-judge", "the first kind that fits")
def judge_order_first(hypothesis, reference, stems):
    return asked(hypothesis, reference, stems, lambda *_: False, as_often)


@wrong("project-judge", "compares place by place")
def judge_form_anywhere(hypothesis, reference, stems):
    return asked(hypothesis, reference, stems, as_often, lambda *_: False)


@wrong("project-judge", "The order counts")
def judge_bag(hypothesis, reference, stems):
    if sorted(hypothesis.split()) == sorted(reference.split()):
        return "right"
    return judge_lists(hypothesis, reference, stems)


@wrong("project-judge", "in another form")
def judge_order_of_forms(hypothesis, reference, stems):
    moved = sorted(hypothesis.split()) == sorted(reference.split())
    return asked(hypothesis, reference, stems, equal, lambda *_: moved)


@wrong("project-judge", "A word is missing at the end")
def judge_zip(hypothesis, reference, stems):
    def alike(ours, theirs):
        return all(a == b for a, b in zip(ours, theirs, strict=False))

    return asked(hypothesis, reference, stems, alike, as_often)


@wrong("project-judge", "There is a word too many at the end")
def judge_prefix(hypothesis, reference, stems):
    def alike(ours, theirs):
        return ours[: len(theirs)] == theirs

    return asked(hypothesis, reference, stems, alike, as_often)


@wrong("project-judge", "Count how often, not only which")
def judge_sets(hypothesis, reference, stems):
    return asked(hypothesis, reference, stems, equal, lambda a, b: set(a) == set(b))


@wrong("project-judge", "a set does not")
def judge_sets_of_one_length(hypothesis, reference, stems):
    def moved(ours, theirs):
        return len(ours) == len(theirs) and set(ours) == set(theirs)

    return asked(hypothesis, reference, stems, equal, moved)


@wrong("project-judge", "KeyError")
def judge_unknown(hypothesis, reference, stems):
    ours, theirs = ([stems[word] for word in row.split()] for row in (hypothesis, reference))
    if hypothesis == reference:
        return "right"
    return "form" if ours == theirs else "order" if as_often(ours, theirs) else "words"


@wrong("project-judge", "is its own stem, and all words are there")
def judge_drops_unknown(hypothesis, reference, stems):
    if hypothesis.split() == reference.split():
        return "right"
    ours, theirs = (
        [stems.get(word, place) for place, word in enumerate(row.split(), ours)]
        for ours, row in ((0, hypothesis), (100, reference))
    )
    if ours == theirs:
        return "form"
    return "order" if Counter(ours) == Counter(theirs) else "words"


@wrong("project-judge", "compare words, not texts")
def judge_texts(hypothesis, reference, stems):
    if hypothesis == reference:
        return "right"
    found = judge_lists(hypothesis, reference, stems)
    return "form" if found == "right" else found


@wrong("project-judge", "none of the four")
def judge_other_name(hypothesis, reference, stems):
    return judge_lists(hypothesis, reference, stems).replace("form", "agreement")


@wrong("project-judge", "The result is a bool")
def judge_bool(hypothesis, reference, stems):
    return judge_lists(hypothesis, reference, stems) == "right"


# project-alignment ------------------------------------------------------------------------------


@right("project-alignment")
def alignment_argmax(weights, places):
    looked = weights[:-1].argmax(dim=1)
    return (looked == torch.tensor(places)).float().mean().item()


@right("project-alignment")
def alignment_loop(weights, places):
    hits = 0
    for row, place in zip(weights.tolist(), places, strict=False):
        hits += row.index(max(row)) == place
    return hits / len(places)


def hits_of(weights, places):
    return (weights[: len(places)].argmax(dim=1) == torch.tensor(places)).sum().item()


@wrong("project-alignment", "divide by the number of words")
def alignment_count(weights, places):
    return float(hits_of(weights, places))


@wrong("project-alignment", "was counted as a word")
def alignment_with_eos(weights, places):
    return hits_of(weights, places) / len(weights)


@wrong("project-alignment", "not how often they are the largest")
def alignment_mass(weights, places):
    return weights[torch.arange(len(places)), torch.tensor(places)].mean().item()


@wrong("project-alignment", "Row t + 1 was taken")
def alignment_shifted(weights, places):
    return hits_of(weights[1:], places) / len(places)


@wrong("project-alignment", "was left out")
def alignment_without_eos(weights, places):
    return hits_of(weights[:, :-1], places) / len(places)


@wrong("project-alignment", "The largest of each column")
def alignment_columns(weights, places):
    columns = weights[:-1].argmax(dim=0).tolist()
    return sum(columns[place] == t for t, place in enumerate(places)) / len(places)


@wrong("project-alignment", "largest weight is elsewhere")
def alignment_errors(weights, places):
    return 1 - hits_of(weights, places) / len(places)


@wrong("project-alignment", "in per cent")
def alignment_percent(weights, places):
    return 100 * hits_of(weights, places) / len(places)


@wrong("project-alignment", "The smallest weight")
def alignment_smallest(weights, places):
    return hits_of(-weights, places) / len(places)


@wrong("project-alignment", "above one half")
def alignment_half(weights, places):
    chosen = weights[torch.arange(len(places)), torch.tensor(places)]
    return (chosen > 0.5).float().mean().item()


@wrong("project-alignment", "take it out with `.item()`")
def alignment_tensor(weights, places):
    return (weights[:-1].argmax(dim=1) == torch.tensor(places)).float().mean()
