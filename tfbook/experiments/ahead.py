"""How many characters does a pass of a model yield, if small heads guess what comes later?

The shipped model of the experiment `shakespeare` predicts the next character from the row behind
its last layer. Three small heads are put beside its own, and read the same row: they guess the
characters 2, 3 and 4 places ahead. The model stays as it is; only the heads are trained. There are
two kinds. Heads that stand apart see the row alone. Heads in a chain see, each, the character
before the one that they guess as well, in training the true one.

What the heads find likely is put together to a tree of guesses, the likeliest branches first, and
the model reads the whole tree in one pass: each node attends to the text and to the nodes above it,
and stands as many places behind the text as it is deep. A guess is kept if it is what the model
itself chooses there. Characters are chosen greedily, or drawn with noise that was fixed beforehand
for each place, so that in both cases the same text comes out as without guesses.

A second comparison trains a fresh model for the next character alone, and another for the next four
together, as many steps on the same windows; the first one's heads are trained afterwards, with the
model frozen. One seed, a few minutes with a GPU (``--device cuda``), and hours without.

Explained in: chapters/12_generation_deeper, section "Heads that guess ahead".
"""

import copy
import heapq
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook import data, pretrained
from tfbook.data import char_tokenizer, rows
from tfbook.experiments.unmasking import network
from tfbook.models import DecoderOnly
from tfbook.optimization import Muon, muon_groups, schedule
from tfbook.training import fit

__all__ = ["SMOKE", "Heads", "Tree", "TreeReader", "Written", "grow", "load", "run", "tree_mask",
           "write"]  # fmt: skip

CONTEXT, AHEAD = 256, 3
KINDS = ("apart", "chained")
RATE, MUON_RATE, HEAD_RATE, WARMUP = 3e-3, 0.03, 2e-3, 100
# Guesses in a pass, and how many children a node may have.
TREES = {"chain of 3": (3, 1), "tree of 8": (8, 8), "tree of 24": (24, 8)}
SMOKE = {"steps": 3, "head_steps": 2, "batch": 2, "trees": ("chain of 3",), "prompts": 1, "new": 5,
         "characters": 3000}  # fmt: skip
CARD = {
    "model": "the shipped model of Shakespeare, frozen, and {AHEAD} heads, {parameters[apart]:,} "
    "or {parameters[chained]:,} parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "steps": "{head_steps:,} steps for heads, {steps:,} for the fresh models",
    "rate": "rate {HEAD_RATE:g}",
}


class Heads(nn.Module):
    """Small heads that guess the characters 2, 3, … places ahead of a row.

    The head of distance k + 2 makes of what it is carried, g, the row g + W_out silu(W_in g), in a
    chain g + W_out silu(W_in [g, e]), with e the embedding of the character before; the model's
    own table turns the row into scores. Apart, each begins with the model's row, in a chain with
    the row of the head before it.

    Args:
        d_model: size of a row.
        n_heads: how many.
        chained: whether each sees the character before the one that it guesses.
    """

    def __init__(self, d_model: int, n_heads: int = AHEAD, *, chained: bool):
        """Draw the weights; at first each head says what it is carried."""
        super().__init__()
        self.chained = chained
        into = 2 * d_model if chained else d_model
        self.w_in = nn.ModuleList(nn.Linear(into, d_model, bias=False) for _ in range(n_heads))
        self.w_out = nn.ModuleList(nn.Linear(d_model, d_model, bias=False) for _ in range(n_heads))
        for linear in self.w_out:
            nn.init.zeros_(linear.weight)

    def __len__(self) -> int:
        """Return how many heads there are."""
        return len(self.w_in)

    def forward(
        self, k: int, g: Float[Tensor, "*B D"], before: Int[Tensor, "*B"], table: Tensor
    ) -> tuple[Float[Tensor, "*B D"], Float[Tensor, "*B V"]]:
        """Return what is carried on to head k + 1, and the scores of head k.

        Args:
            k: which head, from 0.
            g: what it is carried.
            before: the characters k + 1 places ahead.
            table: the model's embedding (V, d_model).
        """
        x = torch.cat([g, F.embedding(before, table)], -1) if self.chained else g
        row = g + self.w_out[k](F.silu(self.w_in[k](x)))
        return row if self.chained else g, row @ table.T


class Tree(NamedTuple):
    """Guesses as a tree; a node comes behind its parent.

    Attributes:
        tokens: the root first, which is no guess.
        parents: the node above each; −1 for the root.
        depths: how far below the root each stands.
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]

    def child(self, node: int, token: int) -> int | None:
        """Return the child of a node that holds this token, if there is one."""
        for i, (each, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if parent == node and each == token:
                return i
        return None


def tree_mask(parents: list[int]) -> Bool[Tensor, "N N"]:
    """Return who sees whom: each node itself and the nodes above it, (N, N), True = seen."""
    sees = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            sees[node] |= sees[parent]
    return sees


@torch.no_grad()
def grow(
    heads: Heads,
    table: Float[Tensor, "V D"],
    row: Float[Tensor, " D"],
    root: int,
    *,
    n_nodes: int,
    noise: Float[Tensor, "K V"] | None = None,
    branches: int = 8,
) -> Tree:
    """Put the likeliest guesses together, those with the highest product of probabilities first.

    Args:
        heads: what guesses.
        table: the model's embedding.
        row: what is behind the last layer, at the character before the root.
        root: the character that the model has chosen.
        n_nodes: how many guesses.
        noise: added to the scores of each distance, where characters are drawn.
        branches: how many children of a node are looked at.
    """
    tree, waiting = Tree([root], [-1], [0]), []

    def look(node, log_p, g):
        """Let the node's children wait."""
        k = tree.depths[node]
        if k == len(heads):
            return
        g, scores = heads(k, g, torch.tensor(tree.tokens[node]), table)
        scores = scores if noise is None else scores + noise[k]
        for more, token in zip(*scores.log_softmax(-1).topk(branches), strict=True):
            found = (-(log_p + more.item()), len(tree.tokens), int(token), node)
            heapq.heappush(waiting, (*found, id(g), g))

    look(0, 0.0, row)
    while waiting and len(tree.tokens) <= n_nodes:
        cost, _, token, parent, _, g = heapq.heappop(waiting)
        tree.tokens.append(token)
        tree.parents.append(parent)
        tree.depths.append(tree.depths[parent] + 1)
        look(len(tree.tokens) - 1, -cost, g)
    return tree


class _Placed(nn.Module):
    """Rotary positions at places that are given, and not counted."""

    def __init__(self, rotary):
        super().__init__()
        self.rotary, self.given = rotary, None

    def places(self, first, stop, device):
        return self.given.to(device)

    def rotate(self, x, positions):
        return self.rotary.rotate(x, positions)


class TreeReader:
    """A decoder with rotary positions that reads a text and a tree behind it in one pass.

    Nothing is kept from one pass to the next: a cache would save time, and change no number.

    Args:
        model: stays as it is; a copy is used.
    """

    def __init__(self, model: DecoderOnly):
        """Copy the model, and let places be given."""
        self.model = copy.deepcopy(model).eval()
        self.table = self.model.embed.weight
        self.placed = _Placed(self.model.stack.blocks[0].mixer.position)
        for block in self.model.stack.blocks:
            block.mixer.position = self.placed

    @torch.no_grad()
    def __call__(self, text: list[int], tree: Tree | None = None) -> tuple[Tensor, Tensor]:
        """Return the rows behind the last layer (n, D) and the logits (n, V) of the tree's nodes.

        Without a tree, those of the last character.
        """
        n, tree = len(text), tree or Tree([], [], [])
        sees = torch.ones(n + len(tree.tokens), n + len(tree.tokens)).tril().bool()
        sees[n:, n:] = tree_mask(tree.parents)
        self.placed.given = torch.tensor([*range(n), *(n + depth for depth in tree.depths)])
        x = self.model.hidden_states(torch.tensor([text + tree.tokens]), mask=sees[None])[-1]
        x = self.model.stack.finish(x[:, n if tree.tokens else -1 :])  # (1, n, D)
        return x[0], self.model.head(x, self.table)[0]


class Written(NamedTuple):
    """What was written with guesses.

    Attributes:
        tokens: the new ones.
        passes: of the model, behind that over the prompt.
        kept: in how many passes 0, 1, 2, … guesses were kept.
        rows: that the model read in these passes, the text before them not counted.
    """

    tokens: list[int]
    passes: int
    kept: list[int]
    rows: int


def write(
    reader: TreeReader,
    heads: Heads,
    prompt: list[int],
    n_new: int,
    *,
    n_nodes: int,
    branches: int = 8,
    noise: Float[Tensor, "K V"] | None = None,
) -> Written:
    """Continue a prompt, with a tree of guesses in each pass.

    Args:
        reader: the model.
        heads: what guesses.
        prompt: its ids.
        n_new: how many to write.
        n_nodes: guesses in a pass; 0 for none.
        branches: as for :func:`grow`; with 1 the tree is a chain.
        noise: added to the logits of each new place, (n_new + AHEAD + 1, V); when omitted the
            choice is greedy. With Gumbel noise it is a draw at temperature 1.
    """
    state, logits = reader(prompt)
    noise = torch.zeros(n_new + len(heads) + 1, logits.shape[-1]) if noise is None else noise
    root, state = int((logits[0] + noise[0]).argmax()), state[0]
    new, kept, passes, n_rows = [], [0] * (len(heads) + 1), 0, 0
    while len(new) < n_new:
        place = len(new) + 1  # of what comes behind the root
        shape = {"n_nodes": n_nodes, "branches": branches, "noise": noise[place:]}
        tree = grow(heads, reader.table, state, root, **shape)
        states, logits = reader(prompt + new, tree)  # one pass
        passes, n_rows, node, depth = passes + 1, n_rows + len(tree.tokens), 0, 0
        while node is not None:
            new.append(tree.tokens[node])
            state, root = states[node], int((logits[node] + noise[place + depth]).argmax())
            node, depth = tree.child(node, root), depth + 1
        kept[depth - 1] += 1
    return Written(new[:n_new], passes, kept, n_rows)


def load() -> tuple[TreeReader, dict[str, Heads], pretrained.Pretrained]:
    """Return the shipped model, ready to read trees, both kinds of heads, and the model itself."""
    from tfbook import experiments

    shipped, weights = pretrained.load("shakespeare"), experiments.weights("ahead")
    found = {}
    for kind in KINDS:
        found[kind] = Heads(shipped.config.d_model, chained=kind == "chained")
        found[kind].load_state_dict(
            {k.removeprefix(f"{kind}."): w.float() for k, w in weights.items() if kind in k}
        )
    return TreeReader(shipped.model), found, shipped


class _Joint(nn.Module):
    """A model and heads that are trained together; ``frozen`` leaves the model as it is."""

    def __init__(self, model, heads, *, frozen):
        super().__init__()
        self.model, self.heads, self.frozen = model, heads, frozen
        model.requires_grad_(not frozen)

    def train(self, mode=True):
        super().train(mode)
        if self.frozen:
            self.model.eval()
        return self

    def nats(self, tokens):
        """Return −ln p and whether the likeliest is right, by distance: two of (1 + K, B, L)."""
        length = tokens.shape[1] - 1 - len(self.heads)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            x = self.model.stack.finish(self.model.hidden_states(tokens)[-1])
        table, g = self.model.embed.weight, x[:, :length]
        scores = [self.model.head(g, table)]
        for k in range(len(self.heads)):
            g, found = self.heads(k, g, tokens[:, k + 1 : k + 1 + length], table)
            scores.append(found)
        targets = tokens.unfold(1, length, 1)[:, 1:].transpose(0, 1)  # (1 + K, B, L)
        scores = torch.stack(scores)  # (1 + K, B, L, V)
        nats = F.cross_entropy(scores.movedim(-1, 1), targets, reduction="none")
        return nats, scores.argmax(-1) == targets

    def loss(self, tokens):
        nats = self.nats(tokens)[0]
        nats = nats[1:] if self.frozen else nats
        return nats.sum(), nats[0].numel()


class _Next(nn.Module):
    """A model that is trained for the next character alone, at the places that heads train at."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def loss(self, tokens):
        joint = _Joint(self.model, [], frozen=False)
        nats = joint.nats(tokens[:, : tokens.shape[1] - AHEAD])[0]
        return nats.sum(), nats.numel()


def _train(model, batches, optimizer, steps):
    fit(model, batches, loss=lambda each, tokens: each.loss(tokens), optimizer=optimizer,
        steps=steps, schedule=schedule("cosine", steps=steps, warmup=min(WARMUP, steps - 1)),
        clip=1.0, progress=False)  # fmt: skip


@torch.no_grad()
def _measure(joint, texts):
    """Return nats and the share of right guesses by distance, over held-out windows."""
    joint.eval()
    device = next(joint.parameters()).device
    found = [joint.nats(part.to(device)) for part in texts.split(64)]
    nats, right = (
        torch.cat([each.flatten(1) for each in side], 1) for side in zip(*found, strict=True)
    )
    return {"nats": [round(x, 4) for x in nats.mean(1).tolist()],
            "right": [round(x, 4) for x in right.float().mean(1).tolist()]}  # fmt: skip


def run(
    *,
    steps: int = 1500,
    head_steps: int = 1500,
    batch: int = 64,
    trees: tuple[str, ...] = tuple(TREES),
    prompts: int = 8,
    new: int = 120,
    characters: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> tuple[dict, dict[str, Tensor]]:
    """Train heads for the shipped model and count passes; train fresh models with and without.

    Args:
        steps: of each fresh model.
        head_steps: of heads on a frozen model.
        batch: windows of a step.
        trees: of which shapes, see TREES.
        prompts: how many beginnings, of 40 characters each, from the split "test".
        new: characters that are written behind each.
        characters: use so many of each split only.
        seed: of weights, batches and draws.
        device: where to train; the counting is done on the processor.

    Returns:
        the log, and the weights of both kinds of heads in half precision.
    """
    shipped = pretrained.load("shakespeare")
    tokenizer = char_tokenizer(data.shakespeare("all"))
    plays = {s: data.shakespeare(s)[:characters] for s in ("train", "valid", "test")}
    ids = {split: torch.tensor(tokenizer.encode(text).ids) for split, text in plays.items()}
    held = rows(ids["valid"], CONTEXT)

    def windows(number):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        starts = torch.randint(len(ids["train"]) - CONTEXT, (batch,), generator=generator)
        return ids["train"][starts[:, None] + torch.arange(CONTEXT + 1)]

    def frozen(model, kind):
        torch.manual_seed(seed)
        heads = Heads(model.config.d_model, chained=kind == "chained")
        joint = _Joint(model, heads, frozen=True).to(device)
        _train(joint, windows, torch.optim.AdamW(heads.parameters(), lr=HEAD_RATE), head_steps)
        return joint

    losses, heads = {}, {}
    for kind in KINDS:
        joint = frozen(copy.deepcopy(shipped.model), kind)
        losses[kind] = _measure(joint, held)
        heads[kind] = joint.heads.cpu().eval().half().float()  # as they are shipped

    torch.manual_seed(seed)
    alone = network(tokenizer.get_vocab_size(), causal=True).to(device)
    groups = muon_groups(alone, lr=MUON_RATE, adamw_lr=RATE, weight_decay=0.1)
    _train(_Next(alone), windows, Muon(groups, precision="full"), steps)
    losses["fresh, then heads"] = _measure(frozen(alone, "apart"), held)
    torch.manual_seed(seed)
    model = network(tokenizer.get_vocab_size(), causal=True)
    joint = _Joint(model, Heads(model.config.d_model, chained=False), frozen=False).to(device)
    groups = muon_groups(model, lr=MUON_RATE, adamw_lr=RATE, weight_decay=0.1)
    groups.append({**groups[0], "params": list(joint.heads.parameters())})
    _train(joint, windows, Muon(groups, precision="full"), steps)
    losses["fresh, together"] = _measure(joint, held)

    counted = _count(TreeReader(shipped.model), heads, ids["test"], trees, prompts, new, seed)
    log = {
        "settings": {"steps": steps, "head_steps": head_steps, "batch": batch, "new": new,
                     "prompts": prompts, "seed": seed},
        "parameters": {k: sum(w.numel() for w in each.parameters()) for k, each in heads.items()},
        "losses": losses,
        "counted": counted,
    }  # fmt: skip
    weights = {
        f"{kind}.{k}": w.half() for kind in KINDS for k, w in heads[kind].state_dict().items()
    }
    return log, weights


def _count(reader, heads, ids, trees, prompts, new, seed):
    """Return passes, rows and guesses kept, for both kinds of heads and each shape of tree."""
    starts = [ids[i : i + 40].tolist() for i in range(0, len(ids) - 40, len(ids) // prompts)]
    generator = torch.Generator().manual_seed(seed)
    shape = (prompts, new + AHEAD + 1, reader.table.shape[0])
    gumbel = -torch.empty(shape).exponential_(generator=generator).log()
    found = []
    for drawn in (False, True):
        noises = list(gumbel) if drawn else [None] * prompts
        pairs = list(zip(starts[:prompts], noises, strict=True))
        plain = [write(reader, heads["apart"], p, new, n_nodes=0, noise=z).tokens for p, z in pairs]
        for kind in KINDS:
            for tree in trees:
                n, branches = TREES[tree]
                all_written = [
                    write(reader, heads[kind], p, new, n_nodes=n, branches=branches, noise=z)
                    for p, z in pairs
                ]
                found.append({
                    "drawn": drawn,
                    "heads": kind,
                    "tree": tree,
                    "passes": sum(each.passes for each in all_written),
                    "rows": sum(each.rows for each in all_written),
                    "kept": [sum(k) for k in zip(*(x.kept for x in all_written), strict=True)],
                    "same": sum(x.tokens == y for x, y in zip(all_written, plain, strict=True)),
                })  # fmt: skip
    return found
