"""The graphs that come with the book: read from networkx, and counted anew from the plays."""

import itertools
import re
from collections import Counter

import networkx
import torch

from tfbook.data import karate_club, les_miserables, shakespeare, shakespeare_speakers
from tfbook.data.graphs import PLAYS
from tfbook.graphs import degrees, edge_matrix, graph_mask, shortest_paths


def check_form(graph):
    n = len(graph.names)
    assert graph.edges.shape == (len(graph.weights), 2) and (graph.weights > 0).all()
    assert (graph.edges[:, 0] < graph.edges[:, 1]).all() and int(graph.edges.max()) < n
    pairs = [tuple(pair) for pair in graph.edges.tolist()]
    assert pairs == sorted(set(pairs))
    if graph.labels is not None:
        assert graph.labels.shape == (n,)
        assert set(graph.labels.tolist()) == set(range(len(graph.classes)))


def test_the_karate_club_is_that_of_networkx():
    club, theirs = karate_club(), networkx.karate_club_graph()
    check_form(club)
    table = edge_matrix(club.edges, club.weights, 34)
    assert table.tolist() == networkx.to_numpy_array(theirs).tolist()
    for node, label in enumerate(club.labels):
        assert theirs.nodes[node]["club"] == club.classes[label]
    assert club.classes[club.labels[0]] == "Mr. Hi" and club.labels[33] == 1
    # The factions hold together: few friendships cross, and the two heads have most friends.
    crossing = (club.labels[club.edges[:, 0]] != club.labels[club.edges[:, 1]]).sum()
    assert int(crossing) < len(club.edges) / 6
    mask = graph_mask(club.edges, 34)
    assert set(degrees(mask).topk(2).indices.tolist()) == {0, 33}
    assert int(shortest_paths(mask).max()) == networkx.diameter(theirs) == 5


def test_les_miserables_is_that_of_networkx():
    novel, theirs = les_miserables(), networkx.les_miserables_graph()
    check_form(novel)
    assert novel.labels is None and novel.classes == ()
    found = {
        frozenset((novel.names[a], novel.names[b])): weight
        for (a, b), weight in zip(novel.edges.tolist(), novel.weights.tolist(), strict=True)
    }
    assert found == {frozenset((a, b)): w for a, b, w in theirs.edges(data="weight")}
    weight = found[frozenset(("Valjean", "Cosette"))]
    assert weight == novel.weights.max()


def test_speakers_are_counted_line_by_line():
    graph = shakespeare_speakers()
    check_form(graph)
    names = [
        line[:-1] for line in shakespeare("all").splitlines() if re.fullmatch("[^a-z]+:", line)
    ]
    ends = list(itertools.accumulate([1105, 1089, 841, 746, 898, 892, 640, 500, 923]))
    assert ends[-1] == len(names)
    counted = Counter()
    for play, (start, end) in enumerate(itertools.pairwise([0, *ends])):
        for a, b in itertools.pairwise(names[start:end]):
            if a != b:
                counted[play, *sorted((a, b))] += 1
    own = {}
    for (a, b), weight in zip(graph.edges.tolist(), graph.weights.tolist(), strict=True):
        assert graph.labels[a] == graph.labels[b]
        own[int(graph.labels[a]), *sorted((graph.names[a], graph.names[b]))] = weight
    assert own == counted
    assert len(set(zip(graph.names, graph.labels.tolist(), strict=True))) == len(graph.names)


def test_each_play_has_the_people_that_one_knows():
    graph, known = shakespeare_speakers(), {}
    for name, label in zip(graph.names, graph.labels.tolist(), strict=True):
        known.setdefault(graph.classes[label], set()).add(name)
    people = "CORIOLANUS GLOUCESTER JULIET LEONTES ANGELO PETRUCHIO PROSPERO PUCK VIOLA".split()
    for play, name in zip(PLAYS, people, strict=True):
        assert [each for each, names in known.items() if name in names][0] == play
    romeo, juliet = (
        next(i for i, name in enumerate(graph.names) if name == each)
        for each in ("ROMEO", "JULIET")
    )
    table = edge_matrix(graph.edges, graph.weights, len(graph.names))
    assert table[romeo, juliet] > table[juliet].mean() * 20


def test_each_call_gives_numbers_of_its_own():
    first, again = karate_club(), karate_club()
    first.weights.zero_()
    first.names.clear()
    assert again.weights.min() > 0 and len(karate_club().names) == 34
    assert torch.equal(karate_club().weights, again.weights)
