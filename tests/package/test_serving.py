"""Many served at once get what each would get alone; pages are shared and given back.

A test that takes `room` gets `tfbook.serving`, or a copy of it with a planted bug.
"""

import importlib
import random

import fresh
import pytest
import torch
from fresh import Mutant
from hypothesis import given
from hypothesis import strategies as st

from tfbook import attention, generation, models, serving

V, MOST = 23, 40


def decoder(kind, room=serving):
    """Return a small decoder in float64 whose weights make varied texts, of the room's package."""
    m = importlib.import_module(room.__name__.split(".")[0] + ".models")
    embedding, ffn, norm = m.Tokens(), m.FFN(14), m.Norm()
    mixers = {
        "learned": m.Attention(2),
        "rotary": m.Attention(4, n_kv_heads=2, d_head=6, position=m.Rotary(), bias=False),
        "alibi": m.Attention(2, position=m.LinearBias()),
        "t5": m.Attention(2, position=m.T5Buckets(8, max_distance=16)),
        "window": m.Attention(2, position=m.Rotary(), window=5),
        "experts": m.Attention(2, position=m.Rotary()),
    }
    if kind == "learned":
        embedding = m.Tokens(m.Learned())
    if kind == "experts":
        ffn = m.Experts(9, n_experts=4, top_k=2)
    layer = m.Layer(mixers[kind], ffn, norm=norm)
    config = m.TransformerConfig(V, 12, decoder=[layer] * 2, embedding=embedding, max_len=MOST)
    torch.manual_seed(5)
    model = m.build(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.6 * torch.randn(weight.shape) + (weight.ndim == 1))
    return model


def requests(count=7, seed=3):
    """Return prompts, some of which begin alike, and how many tokens are asked of each."""
    draw = random.Random(seed)
    begin = [draw.randrange(V) for _ in range(9)]
    found = []
    for i in range(count):
        prompt = begin[: draw.randrange(4, 10)] if i % 2 else []
        prompt = prompt + [draw.randrange(V) for _ in range(draw.randrange(1, 5))]
        found.append((prompt, draw.randrange(1, 14)))
    return found


def alone(model, prompt, count, stop=()):
    """Return the tokens of a request by itself, by nothing but whole passes."""
    tokens = list(prompt)
    with torch.no_grad():
        while len(tokens) < len(prompt) + count and not set(tokens[len(prompt) :]) & set(stop):
            logits, _ = model(torch.tensor([tokens]))
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def served(server, asked, **choices):
    numbers = [server.submit(prompt, count, **choices) for prompt, count in asked]
    found = {number: [] for number in numbers}
    ended = set()
    for each in server.run():
        assert each.request not in ended
        found[each.request].append(each.token)
        if each.last:
            ended.add(each.request)
    assert ended == set(numbers)
    return list(found.values())


@pytest.mark.parametrize("kind", ["learned", "rotary", "alibi", "t5", "window", "experts"])
def test_each_gets_what_it_would_get_alone(kind, room=serving):
    model, asked = decoder(kind, room), requests()
    wanted = [alone(model, *each) for each in asked]
    for choices in ({}, {"share": False}, {"page_size": 1}, {"max_running": 2}):
        sizes = {"n_pages": 200, "page_size": 3} | choices
        server = room.Server(model, **sizes)
        assert served(server, asked) == wanted
        assert server.table.held == 0 and not server.busy
        assert (server.stats.shared > 0) == choices.get("share", True)
        made = sum(count for _, count in asked)
        assert server.stats.slots == made - len(asked)  # the first comes with the prompt
        read = sum(len(prompt) for prompt, _ in asked)
        assert server.stats.read + server.stats.shared == read
    assert len({tuple(each) for each in wanted}) > 4  # texts that differ


def test_a_batch_of_llamas_takes_few_operations_and_gets_the_same(monkeypatch):
    """The modules read prompts; a token for each goes by them only while one has a hook."""
    ffn, norm = models.FFN(20, "swiglu", bias=False), models.Norm("rms")
    mixer = models.Attention(4, n_kv_heads=2, position=models.Rotary(), bias=False)
    layer = models.Layer(mixer, ffn, norm=norm, place="pre")
    torch.manual_seed(5)
    config = models.TransformerConfig(V, 24, decoder=[layer] * 3, max_len=MOST)
    model, asked, calls = models.build(config).eval(), requests(), []
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.6 * torch.randn(weight.shape) + (weight.ndim == 1))
    wanted = [alone(model, *each) for each in asked]
    forward = attention.MultiHeadAttention.forward
    counted = lambda *given, **more: calls.append(1) or forward(*given, **more)  # noqa: E731
    monkeypatch.setattr(attention.MultiHeadAttention, "forward", counted)
    for choices in ({}, {"max_running": 3}, {"max_running": 1}, {"n_pages": 9}):
        calls.clear()
        server = serving.Server(model, **({"n_pages": 60, "page_size": 4} | choices))
        assert served(server, asked) == wanted
        alone_in_turn = 3 * (len(asked) + server.stats.preempted)
        if choices == {"max_running": 1}:
            assert len(calls) == alone_in_turn
        else:  # prompts that begin unlike are read together
            assert 3 <= len(calls) < alone_in_turn and len(calls) % 3 == 0
        together = len(calls)
    calls.clear()
    server = serving.Server(model, n_pages=60, page_size=4)
    assert served(server, asked) == wanted
    together = len(calls)
    model.stack.blocks[1].register_forward_hook(lambda *_: None)
    calls.clear()
    server = serving.Server(model, n_pages=60, page_size=4)
    assert served(server, asked) == wanted
    assert len(calls) == together + 3 * server.stats.steps


def read_in_passes(kind, prompts, choices, widths, room=serving):
    """Serve prompts; each gets what it would get alone, and the passes that read are so wide."""
    model, read = decoder(kind, room), []
    wanted = [alone(model, prompt, 3) for prompt in prompts]
    model.register_forward_pre_hook(lambda _, given: read.append(given[0].shape[1]))
    server = room.Server(model, **({"n_pages": 40, "page_size": 4} | choices))
    assert served(server, [(prompt, 3) for prompt in prompts]) == wanted
    for _ in range(server.stats.steps):
        read.remove(1)
    assert sorted(read) == sorted(widths)


@pytest.mark.parametrize("kind", ["rotary", "alibi", "learned"])
@pytest.mark.parametrize(
    ("prompts", "choices", "widths"),
    [
        ([[3], [1, 4, 1, 5], [9, 2]], {}, [4]),  # padded in front, in one pass
        ([[3, 1, 4, 1, 5], [3, 1, 4, 1, 6]], {}, [5, 1]),  # the second shares a page
        ([[3, 1, 4, 1, 5], [3, 1, 4, 1, 6]], {"share": False}, [5]),
        ([[3], [1, 4, 1, 5]], {"invariant": True}, [1, 4]),
        ([[k] * 36 + [1] * (k % 2) for k in range(7)], {"n_pages": 80}, [37, 36]),  # 6 × 37 ≤ 256
        ([[3], [1, 4, 1, 5], [9, 2]], {"max_running": 2}, [4, 2]),
    ],
)  # fmt: skip
def test_short_prompts_that_begin_unlike_are_read_in_one_pass(kind, prompts, choices, widths):
    read_in_passes(kind, prompts, choices, widths)


def test_prompts_of_other_lengths_or_of_one_beginning_are_read_right(room=serving):
    for kind in ("learned", "rotary"):
        read_in_passes(kind, [[3], [1, 4, 1, 5], [9, 2]], {}, [4], room)
        read_in_passes(kind, [[3, 1, 4, 1, 5], [3, 1, 4, 1, 6]], {}, [5, 1], room)


def test_a_server_makes_what_generation_makes():
    model, asked = decoder("rotary"), requests()
    found = served(serving.Server(model, n_pages=60, page_size=4), asked)
    for (prompt, count), tokens in zip(asked, found, strict=True):
        assert list(generation.stream(model, prompt, max_new_tokens=count)) == tokens


def test_who_loses_its_pages_goes_on_where_it_was(room=serving):
    """With as few pages as the longest request needs, the youngest give theirs back."""
    model, asked = decoder("rotary", room), requests(9)
    wanted = [alone(model, *each) for each in asked]
    most = max(len(prompt) + count - 1 for prompt, count in asked)
    for share in (True, False):
        server = room.Server(model, n_pages=-(-most // 2) + 1, page_size=2, share=share)
        assert served(server, asked) == wanted
        assert server.stats.preempted > 0
        assert server.stats.most_pages <= server.table.n_pages


def test_a_request_ends_with_its_stop_token(room=serving):
    model, asked = decoder("rotary", room), requests()
    stop = {alone(model, *asked[2])[3]} if asked[2][1] > 3 else {0, 1, 2}
    wanted = [alone(model, *each, stop=stop) for each in asked]
    assert served(room.Server(model, n_pages=60, page_size=4), asked, stop=stop) == wanted


def test_one_may_come_while_others_run(room=serving):
    model, asked = decoder("learned", room), requests(5)
    server, found = room.Server(model, n_pages=60, page_size=4), {}
    server.submit(*asked[0])
    steps = 0
    while server.busy or steps < len(asked):
        for each in server.step():
            found.setdefault(each.request, []).append(each.token)
        steps += 1
        if steps < len(asked):
            server.submit(*asked[steps])
    assert [found[i] for i in range(5)] == [alone(model, *each) for each in asked]


SAMPLINGS = [
    generation.GREEDY,
    generation.Sampling(temperature=0.8),
    generation.Sampling(temperature=1.3, top_p=0.7),
    generation.Sampling(top_k=5, repetition_penalty=1.4),
]


def test_draws_depend_on_the_seed_and_on_nobody_else(room=serving):
    """Each text is that of `stream` with its seed, few pages and other rules beside it or not."""
    model, asked = decoder("rotary", room), requests(8)
    g = importlib.import_module(room.__name__.split(".")[0] + ".generation")
    rules = [
        g.Sampling(**{k: v for k, v in vars(each).items() if v is not None}) for each in SAMPLINGS
    ]
    wanted = [
        list(g.stream(model, prompt, max_new_tokens=count, sampling=rules[i % 4], seed=i // 2))
        for i, (prompt, count) in enumerate(asked)
    ]
    for choices in ({}, {"n_pages": 12, "page_size": 2}, {"max_running": 3}):
        server = room.Server(model, **({"n_pages": 60, "page_size": 4} | choices))
        for i, each in enumerate(asked):
            server.submit(*each, sampling=rules[i % 4], seed=i // 2)
        found = {}
        for each in server.run():
            found.setdefault(each.request, []).append(each.token)
        assert [found[i] for i in range(8)] == wanted
    greedily = [alone(model, *each) for each in asked]
    assert sum(a != b for a, b in zip(greedily, wanted, strict=True)) > 4


def test_who_goes_away_leaves_its_place(room=serving):
    model, asked = decoder("rotary", room), requests(6)
    server, found = room.Server(model, n_pages=60, page_size=4, max_running=3), {}
    for prompt, _ in asked:
        server.submit(prompt, 12)
    server.step()
    assert (server.running, server.waiting) == (3, 3)
    held = server.table.held
    assert server.cancel(1) and server.cancel(4)  # one that runs, one that waits
    assert (server.running, server.waiting) == (2, 2) and server.table.held < held
    assert not server.cancel(1) and not server.cancel(99)
    for each in server.run():
        found.setdefault(each.request, []).append(each.token)
    assert set(found) == {0, 2, 3, 5} and server.table.held == 0
    for number in (3, 5):  # those that were read in afterwards
        assert found[number] == alone(model, asked[number][0], 12)


def test_a_state_may_be_continued_twice_and_beyond_its_room(room=serving):
    """What is written in place is what joining gives; old states stay valid."""
    model, asked = decoder("rotary", room), requests(4)
    cache, table = room.PagedCache(model, 30, 4), room.PageTable(30, 4, share=False)
    numbers = range(4)
    with torch.no_grad():
        for number, (prompt, _) in zip(numbers, asked, strict=True):
            table.open(number, prompt)
            _, state = model(torch.tensor([prompt]))
            cache.write(state, 0, 0, table.pages(number), len(prompt))
        tables, lengths = [table.pages(i) for i in numbers], [table.length(i) for i in numbers]
        firsts = (2, 3)  # two continuations of one state, side by side
        wholes = {
            first: [model(torch.tensor([[*prompt, first, 5, 7]]))[0][0, -3:] for prompt, _ in asked]
            for first in firsts
        }
        for space in (0, 1, 9):
            begun = cache.read(tables, lengths, room=space)
            states, said = dict.fromkeys(firsts, begun), {first: [] for first in firsts}
            for place in range(3):
                for first in firsts:
                    token = (first, 5, 7)[place]
                    logits, states[first] = model(torch.full((4, 1), token), states[first])
                    said[first].append(logits)
            for first in firsts:
                counts = states[first].layers[0].mixer.counts
                assert counts.tolist() == [n + 3 for n in lengths]
                found = torch.cat(said[first], 1)  # (B, 3, V)
                torch.testing.assert_close(found, torch.stack(wholes[first]))
            few, states = torch.tensor([3, 1]), [begun]
            for token in (2, 5):  # some of the sequences, beside all of them
                states.append(model(torch.full((4, 1), token), states[-1])[1])
                chosen = states[-2].select(few)
                logits, chosen = model(torch.full((2, 1), token), chosen)
                whole, _ = model(torch.full((4, 1), token), states[-2])
                torch.testing.assert_close(logits, whole[few])
                assert torch.equal(
                    chosen.layers[0].mixer.mask, states[-1].layers[0].mixer.mask[few]
                )


def test_continuous_batches_take_fewer_steps_than_those_that_wait(room=serving):
    model, asked = decoder("rotary", room), requests(12, seed=8)
    server = room.Server(model, n_pages=99, page_size=4, max_running=4)
    served(server, asked)
    prompts, made = [len(prompt) for prompt, _ in asked], [count for _, count in asked]
    static = room.static_batches(prompts, made, 4)
    assert server.stats.steps < static.steps
    assert server.stats.slots == static.useful < static.slots
    assert static.waste == 1 - static.useful / static.slots > 0.2
    # In pages less is empty than where the longest decides for all.
    longest = [prompt + count - 1 for prompt, count in zip(prompts, made, strict=True)]
    assert room.paged_waste(longest, 4) < static.empty


def test_static_batches_are_those_that_are_walked_through(room=serving):
    prompts, made = [3, 5, 2, 2, 7], [2, 9, 1, 3, 4]
    for batch in (1, 2, 3, 9):
        steps = slots = useful = reserved = 0
        for start in range(0, 5, batch):
            own = list(zip(prompts, made, strict=True))[start : start + batch]
            for step in range(1, max(count for _, count in own)):
                steps += 1
                slots += len(own)
                useful += sum(step < count for _, count in own)
            wide = max(prompt for prompt, _ in own) + max(count for _, count in own) - 1
            reserved += len(own) * wide
        found = room.static_batches(prompts, made, batch)
        assert (found.steps, found.slots, found.useful) == (steps, slots, useful)
        assert found.reserved == reserved and 0 <= found.empty < 1
    assert room.static_batches([4], [1], 1).waste == 0


def test_pages_are_shared_by_those_that_begin_alike(room=serving):
    table = room.PageTable(10, 3)
    text = list(range(8))
    assert table.open("a", text) == 0 and table.held == 3
    assert table.open("b", text) == 0  # not written yet
    table.settle("a")
    assert table.open("c", text) == 6  # two full pages
    assert table.pages("c")[:2] == table.pages("a")[:2] != table.pages("b")[:2]
    assert table.open("d", text[:6]) == 3  # the last token has to be read
    assert table.open("e", [*text[:3], 99]) == 3
    assert table.held == 3 + 3 + 1 + 1 + 1
    table.close("a")
    assert table.held == 9 - 1  # only its last page was its own
    for name in "bcde":
        table.close(name)
    assert table.held == 0
    assert table.open("f", text) == 6  # nobody held them, and they are still there
    with pytest.raises(room.OutOfPages, match="pages are needed for 'g'"):
        table.open("g", list(range(50, 80)))
    assert table.held == 3
    table.close("f")
    table.open("g", list(range(50, 80)))  # takes all, so what was known is forgotten
    table.close("g")
    assert table.open("h", text) == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=30), st.integers(1, 3))
def test_no_page_is_lost_and_none_is_held_twice_unshared(acts, size):
    table, lengths = serving.PageTable(12, size), {}
    for name, length in acts:
        try:
            if name not in lengths:
                table.open(name, [7] * length)
                lengths[name] = length
            elif length % 3:
                page, row = table.append(name, 7)
                assert (page, row) == (table.pages(name)[-1], lengths[name] % size)
                lengths[name] += 1
            else:
                table.close(name)
                del lengths[name]
        except serving.OutOfPages:
            pass
        for each in lengths:
            table.settle(each)
            assert table.length(each) == lengths[each]
            assert len(table.pages(each)) == -(-lengths[each] // size)
        held = {page for each in lengths for page in table.pages(each)}
        assert table.held == len(held) == table.n_pages - table.free
        open_pages = [table.pages(each)[-1] for each in lengths if lengths[each] % size]
        assert len(set(open_pages)) == len(open_pages)  # what is written to is nobody else's


@pytest.mark.untyped
def test_what_cannot_be_served_is_refused():
    model = decoder("rotary")
    server = serving.Server(model, n_pages=4, page_size=3)
    for prompt, count, words in (
        ([], 3, "from 1 to 12 positions, got 0 and 3"),
        ([1] * 9, 5, "from 1 to 12 positions, got 9 and 5"),
        ([V], 3, "a token of prompt must be from 0 to 22, got 23"),
        ([1], 0, "max_new_tokens must be"),
    ):
        with pytest.raises(ValueError, match=words):
            server.submit(prompt, count)
    with pytest.raises(TypeError, match="prompt must be a list"):
        server.submit("text", 3)
    with pytest.raises(TypeError, match="sampling must be a Sampling"):
        server.submit([1], 3, sampling=0.7)
    with pytest.raises(TypeError, match="number must be an integer"):
        server.cancel("1")
    assert not server.busy
    with pytest.raises(ValueError, match="evaluation mode"):
        serving.Server(decoder("rotary").train(), n_pages=4)
    m = models
    mamba = m.TransformerConfig(V, 8, decoder=[m.Layer(m.Mamba(), m.FFN(8))])
    with pytest.raises(TypeError, match="mixers must be MultiHeadAttention"):
        serving.Server(m.build(mamba).eval(), n_pages=4)
    table = serving.PageTable(3, 2)
    table.open("a", [1])
    with pytest.raises(ValueError, match="a new name and one token"):
        table.open("a", [1])
    with pytest.raises(ValueError, match="equally many"):
        serving.static_batches([1], [1, 2], 2)


MUTANTS = [
    Mutant(
        "a prompt read with longer ones begins at its padding",
        "tfbook.serving.batching",
        "before = [len(prompt) - new.shape[1] for prompt in prompts]",
        "before = [0 for prompt in prompts]",
        "test_prompts_of_other_lengths_or_of_one_beginning_are_read_right",
    ),
    Mutant(
        "prompts that begin alike are read at once",
        "tfbook.serving.batching",
        "return small and (apart or not self.table.share) and not self._invariant",
        "return small and not self._invariant",
        "test_prompts_of_other_lengths_or_of_one_beginning_are_read_right",
    ),
    Mutant(
        "the last token of a prompt is shared too",
        "tfbook.serving.pages",
        "(len(shared) + 1) * size < len(tokens)",
        "(len(shared) + 1) * size <= len(tokens)",
        "test_pages_are_shared_by_those_that_begin_alike",
    ),
    Mutant(
        "pages known by their own tokens only",
        "tfbook.serving.pages",
        "prefix = tuple(tokens[: (i + 1) * self.page_size])",
        "prefix = tuple(tokens[i * self.page_size : (i + 1) * self.page_size])",
        "test_pages_are_shared_by_those_that_begin_alike",
    ),
    Mutant(
        "a shared page is free when the first has left",
        "tfbook.serving.pages",
        "            if not self._holders[page]:\n",
        "            if True:\n",
        "test_pages_are_shared_by_those_that_begin_alike",
    ),
    Mutant(
        "what a page was known by is never forgotten",
        "tfbook.serving.pages",
        "            del self._known[self._names.pop(page)]\n",
        "            pass\n",
        "test_pages_are_shared_by_those_that_begin_alike",
    ),
    Mutant(
        "positions count columns",
        "tfbook.serving.paged",
        "        return self.lengths\n",
        "        return self.lengths * 0 + self.length\n",
        "test_who_loses_its_pages_goes_on_where_it_was",
    ),
    Mutant(
        "padding is seen",
        "tfbook.serving.paged",
        "there = (places >= 0)[",
        "there = (places >= -longest)[",
        "test_who_loses_its_pages_goes_on_where_it_was",
    ),
    Mutant(
        "rows of a page upside down",
        "tfbook.serving.paged",
        "index_copy_(0, slots, last",
        "index_copy_(0, slots - slots % self.page_size + -slots % self.page_size, last",
        "test_a_request_ends_with_its_stop_token",
    ),
    Mutant(
        "a new key goes to the first page",
        "tfbook.serving.paged",
        "self._slots(_table(tables), torch.tensor(lengths)[:, None] - 1)",
        "self._slots(_table(tables)[:, :1].repeat(1, 99), torch.tensor(lengths)[:, None] - 1)",
        "test_who_loses_its_pages_goes_on_where_it_was",
    ),
    Mutant(
        "a batch that has changed keeps its keys",
        "tfbook.serving.batching",
        "if batch != self._batch or",
        "if len(batch) != len(self._batch) or",
        "test_who_goes_away_leaves_its_place",
    ),
    Mutant(
        "two continuations write over each other",
        "tfbook.serving.paged",
        "return self.filled == start and stop",
        "return stop",
        "test_a_state_may_be_continued_twice_and_beyond_its_room",
    ),
    Mutant(
        "all draw the same numbers",
        "tfbook.serving.batching",
        "torch.rand((), generator=r.generator, ",
        "torch.rand((), generator=own[0].generator, ",
        "test_draws_depend_on_the_seed_and_on_nobody_else",
    ),
    Mutant(
        "one rule for all",
        "tfbook.serving.batching",
        "alike.setdefault(request.sampling, [])",
        "alike.setdefault(requests[0].sampling, [])",
        "test_draws_depend_on_the_seed_and_on_nobody_else",
    ),
    Mutant(
        "who is preempted forgets what counts as repeated",
        "tfbook.serving.batching",
        "[each.tokens + each.made for each in own]",
        "[each.tokens for each in own]",
        "test_draws_depend_on_the_seed_and_on_nobody_else",
    ),
    Mutant(
        "who has gone keeps its pages",
        "tfbook.serving.batching",
        "                    if held is self._running:\n",
        "                    if False:\n",
        "test_who_goes_away_leaves_its_place",
    ),
    Mutant(
        "who is preempted forgets what it has made",
        "tfbook.serving.batching",
        "tokens = request.tokens + request.made",
        "tokens = request.tokens",
        "test_who_loses_its_pages_goes_on_where_it_was",
    ),
    Mutant(
        "who has ended stays",
        "tfbook.serving.batching",
        "last = not request.left or token in request.stop",
        "last = not request.left",
        "test_a_request_ends_with_its_stop_token",
    ),
    Mutant(
        "the oldest is preempted",
        "tfbook.serving.batching",
        "self._preempt(self._running[-1])",
        "self._preempt(self._running[0])",
        "test_the_oldest_is_never_sent_back",
    ),
    Mutant(
        "one step more in each batch",
        "tfbook.serving.waste",
        "steps += max(made) - 1",
        "steps += max(made)",
        "test_static_batches_are_those_that_are_walked_through",
    ),
]


def test_the_oldest_is_never_sent_back(room=serving):
    model = decoder("rotary", room)
    server = room.Server(model, n_pages=6, page_size=2, share=False)
    for prompt in ([1, 2, 3], [4, 5, 6], [7, 8]):
        server.submit(prompt, 8)
    ended = [each.request for each in server.run() if each.last]
    assert ended[0] == 0 and server.stats.preempted > 0


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    room = copied(mutant.edits)
    check = globals()[mutant.caught_by]
    with pytest.raises((AssertionError, ValueError, RuntimeError, KeyError, IndexError)):
        check(room=room)


def copied(edits):
    """Return a copy of the room alone, with the bug; all else is that of the package."""
    return fresh.copies("sick_serving", ["tfbook.serving"], edits)
