"""Trees of guesses: what they see, that they change no character, and the shipped heads."""

import itertools

import pytest
import torch

from tfbook import experiments, generation
from tfbook.experiments import ahead
from tfbook.experiments.unmasking import network

V = 11


@pytest.fixture(scope="module")
def small():
    """A model that is not trained, loud enough to be sure of itself, and heads of both kinds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = network(V, causal=True).eval()
        for weight in model.parameters():
            if weight.ndim == 2:
                torch.nn.init.normal_(weight, std=0.3)
        heads = {}
        for kind in ahead.KINDS:
            heads[kind] = ahead.Heads(model.config.d_model, chained=kind == "chained")
            for weight in heads[kind].parameters():
                torch.nn.init.normal_(weight, std=0.1)
    return ahead.TreeReader(model), heads, model


def test_a_node_sees_itself_and_the_nodes_above_it():
    parents = [-1, 0, 0, 1, 3, 2]
    sees = ahead.tree_mask(parents)
    for node in range(6):
        above, at = set(), node
        while at >= 0:
            above.add(at)
            at = parents[at]
        assert set(sees[node].nonzero()[:, 0].tolist()) == above


@pytest.mark.parametrize("kind", ahead.KINDS)
def test_a_tree_holds_the_likeliest_guesses(small, kind):
    reader, heads, _ = small
    row = reader([1, 2, 3])[0][0]
    tree = ahead.grow(heads[kind], reader.table, row, 4, n_nodes=9, branches=V)
    assert len(tree.tokens) == len(tree.parents) == len(tree.depths) == 10
    assert tree.tokens[0] == 4 and all(p < node for node, p in enumerate(tree.parents))

    def log_p(path):
        """Of a whole branch, one head after another."""
        g, before, total = row, 4, 0.0
        for k, token in enumerate(path):
            g, scores = heads[kind](k, g, torch.tensor(before), reader.table)
            total, before = total + scores.log_softmax(-1)[token].item(), token
        return total

    paths = [path for n in (1, 2, 3) for path in itertools.product(range(V), repeat=n)]
    with torch.no_grad():
        best = sorted(paths, key=log_p, reverse=True)[:9]
    sees = ahead.tree_mask(tree.parents)
    grown = {
        tuple(tree.tokens[i] for i in sees[node].nonzero()[1:, 0].tolist()) for node in range(1, 10)
    }
    assert grown == set(best)


def test_with_one_branch_the_tree_is_a_chain(small):
    reader, heads, _ = small
    row = reader([1, 2])[0][0]
    tree = ahead.grow(heads["apart"], reader.table, row, 4, n_nodes=9, branches=1)
    assert tree.parents == [-1, 0, 1, 2] and tree.depths == [0, 1, 2, 3]


def test_a_tree_is_read_as_each_branch_alone(small):
    reader, _, model = small
    tree = ahead.Tree([3, 5, 6, 5, 0, 1], [-1, 0, 0, 1, 3, 2], [0, 1, 1, 2, 3, 2])
    states, logits = reader([7, 8, 9], tree)
    sees = ahead.tree_mask(tree.parents)
    for node in range(6):
        path = [tree.tokens[i] for i in sees[node].nonzero()[:, 0].tolist()]
        alone = model(torch.tensor([[7, 8, 9, *path]]))[0][0, -1]
        torch.testing.assert_close(logits[node], alone, atol=1e-4, rtol=1e-4)
        state = reader([7, 8, 9, *path])[0][0]
        torch.testing.assert_close(states[node], state, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("nodes", "branches"), [(0, 1), (3, 1), (12, 8)])
@pytest.mark.parametrize("kind", ahead.KINDS)
def test_guesses_change_no_token(small, kind, nodes, branches):
    reader, heads, model = small
    found = ahead.write(reader, heads[kind], [1, 2], 17, n_nodes=nodes, branches=branches)
    assert found.tokens == generation.generate(model, [1, 2], max_new_tokens=17).tokens[0]
    assert sum(found.kept) == found.passes
    yielded = sum(n * (k + 1) for k, n in enumerate(found.kept))
    assert 17 <= yielded <= 17 + ahead.AHEAD
    assert nodes or found.passes == found.rows == 17


@pytest.mark.parametrize("kind", ahead.KINDS)
def test_with_noise_that_is_given_guesses_change_no_draw(small, kind):
    reader, heads, model = small
    noise = torch.randn(20 + ahead.AHEAD + 1, V, generator=torch.Generator().manual_seed(1)) * 3
    found = ahead.write(reader, heads[kind], [1, 2], 20, n_nodes=8, noise=noise)
    text = [1, 2]
    for place in range(20):
        text.append(int((model(torch.tensor([text]))[0][0, -1] + noise[place]).argmax()))
    assert found.tokens == text[2:]


def test_heads_apart_do_not_see_what_was_guessed_and_heads_in_a_chain_do(small):
    _, heads, model = small
    g = torch.randn(model.config.d_model)
    for kind, differs in (("apart", False), ("chained", True)):
        with torch.no_grad():
            first, second = (
                heads[kind](1, g, torch.tensor(token), model.embed.weight)[1] for token in (2, 3)
            )
        assert torch.equal(first, second) != differs


def test_training_leaves_a_frozen_model_as_it_is():
    model = network(V, causal=True)
    joint = ahead._Joint(model, ahead.Heads(model.config.d_model, chained=True), frozen=True)
    joint.train()
    assert not model.training and joint.heads.training
    loss, count = joint.loss(torch.randint(V, (2, 9)))
    (loss / count).backward()
    assert all(weight.grad is None for weight in model.parameters())
    assert any(bool(weight.grad.any()) for weight in joint.heads.parameters())


def test_losses_by_distance_are_of_the_characters_at_that_distance():
    model = network(V, causal=True).eval()
    joint = ahead._Joint(model, ahead.Heads(model.config.d_model, chained=False), frozen=True)
    tokens = torch.randint(V, (3, 12))
    with torch.no_grad():
        nats, _ = joint.nats(tokens)
        logits, _ = model(tokens)
    assert nats.shape == (4, 3, 8)
    # Fresh heads pass the row on: each says what the model says of the next character.
    for k in range(4):
        wanted = -logits[:, :8].log_softmax(-1).gather(-1, tokens[:, k + 1 : k + 9, None])[..., 0]
        torch.testing.assert_close(nats[k], wanted, atol=1e-4, rtol=1e-4)


# what was shipped


@pytest.fixture(scope="module")
def log():
    return experiments.log("ahead")


def test_every_counted_text_is_the_one_without_guesses(log):
    settings = log["settings"]
    for each in log["counted"]:
        assert each["same"] == settings["prompts"]
        assert sum(each["kept"]) == each["passes"] < settings["prompts"] * settings["new"]
        nodes, _ = ahead.TREES[each["tree"]]
        assert each["rows"] == each["passes"] * (nodes + 1)


def test_more_guesses_take_fewer_passes(log):
    shapes = list(ahead.TREES)
    for drawn in (False, True):
        for kind in ahead.KINDS:
            passes = {
                each["tree"]: each["passes"]
                for each in log["counted"]
                if (each["drawn"], each["heads"]) == (drawn, kind)
            }
            assert [passes[shape] for shape in shapes] == sorted(passes.values(), reverse=True)


def test_the_shipped_heads_write_what_the_model_writes(log):
    reader, heads, shipped = ahead.load()
    start = shipped.encode("ROMEO:\nI will not ")[0].tolist()
    plain = generation.generate(shipped.model, start, max_new_tokens=24).tokens[0]
    for kind, parameters in log["parameters"].items():
        assert sum(w.numel() for w in heads[kind].parameters()) == parameters
        found = ahead.write(reader, heads[kind], start, 24, n_nodes=8)
        assert found.tokens == plain and found.passes < 24
