"""The exercise of chapter 05 on what the sizes of a model add up to."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect_number

# count-decoder ----------------------------------------------------------------------------------


def count_decoder(
    vocab_size: int, max_len: int, d_model: int, n_layers: int, d_ff: int, tied: bool
) -> int:
    """Count the parameters of a decoder in the style of GPT-2.

    Tokens and positions have learned embeddings. Each layer has attention with four projections
    of size d_model × d_model, a feed-forward network with one hidden layer, and two layer
    normalisations; a last normalisation follows the stack. All projections of the layers have
    biases, and a normalisation has a weight and a bias. The output layer has no bias, and its
    matrix is the token embedding if `tied`.

    vocab_size: tokens of the vocabulary. max_len: positions. d_model: width. n_layers: layers.
    d_ff: hidden features of the feed-forward network. tied: whether the output shares its matrix.
    Returns: the number of parameters, an int.
    """
    ...


def _decoder_size(
    vocab_size: int, max_len: int, d_model: int, n_layers: int, d_ff: int, tied: bool
) -> int:
    d = d_model
    layer = 4 * d * d + 4 * d + 2 * d * d_ff + d_ff + d + 4 * d
    return (1 + (not tied)) * vocab_size * d + max_len * d + n_layers * layer + 2 * d


def _count_tied(count: Any) -> None:
    """Embeddings, layers and the last normalisation, with a shared output matrix."""
    v, m, d, layers, f = 101, 17, 12, 3, 31
    sizes = dict(vocab_size=v, max_len=m, d_model=d, n_layers=layers, d_ff=f, tied=True)
    right = _decoder_size(**sizes)
    expect_number(count, sizes, right, {
        "The output matrix was counted although it is the token embedding.": right + v * d,
        "The output layer was given a bias.": right + v,
        "The last normalisation is missing: a weight and a bias behind the stack.": right - 2 * d,
        "The position embeddings are missing.": right - m * d,
        "The token embeddings are missing: tied or not, there is one matrix.": right - v * d,
        "The embeddings are missing.": right - v * d - m * d,
        "The biases of the feed-forward network are missing: d_ff for its hidden features and "
        "d_model for its output.": right - layers * (f + d),
        "A bias of d_model numbers is missing in each layer: the output projection of attention "
        "has one, and so has the second matrix of the feed-forward network.": right - layers * d,
        "The first bias of the feed-forward network has d_ff numbers.":
            (right - layers * f, right + layers * (d - f)),
        "4·d_model numbers are missing in each layer. Four projections of attention have a bias "
        "each, and two normalisations have a weight and a bias each.": right - layers * 4 * d,
        "The output projection of attention is missing: queries, keys, values and output make "
        "four matrices.": (right - layers * d * d, right - layers * (d * d + d)),
        "All biases of the projections are missing.": right - layers * (4 * d + f + d),
        "All normalisations are missing.": right - layers * 4 * d - 2 * d,
        "A normalisation has a bias besides its weight.": right - layers * 2 * d - d,
        "A layer has two normalisations: one for attention, one for the network.":
            right - layers * 2 * d,
        "Biases and normalisations are missing.":
            right - layers * (4 * d + f + d + 4 * d) - 2 * d,
        "The layers were counted once. Each of the n_layers layers has weights of its own.":
            right - (layers - 1) * (4 * d * d + 2 * d * f + f + 9 * d),
        "The feed-forward network has two matrices: up to d_ff and back.": right - layers * d * f,
        "The normalisation behind the stack was counted in each layer. It comes once.":
            right + (layers - 1) * 2 * d,
    })


def _count_untied(count: Any) -> None:
    """An output matrix of its own adds one number for each token and feature."""
    sizes = dict(vocab_size=101, max_len=17, d_model=12, n_layers=3, d_ff=31, tied=False)
    right = _decoder_size(**sizes)
    expect_number(count, sizes, right, {
        "`tied` was not used: an output matrix of its own has vocab_size·d_model numbers.":
            right - 101 * 12,
        "The output layer was given a bias.": right + 101,
    })


def _count_gpt2(count: Any) -> None:
    """The sizes of the smallest GPT-2 give the number of its published weights."""
    sizes = dict(
        vocab_size=50_257, max_len=1024, d_model=768, n_layers=12, d_ff=3072, tied=True
    )
    expect_number(count, sizes, 124_439_808, {})


def _count_one_layer(count: Any) -> None:
    """One layer more adds what PyTorch's layer has."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 20)
    size = sum(p.numel() for p in layer.parameters())
    sizes = dict(vocab_size=5, max_len=7, d_model=8, n_layers=1, d_ff=20, tied=True)
    expect_number(count, sizes, size + 12 * 8 + 16, {})


COUNT_DECODER = Exercise(
    name="count-decoder",
    title="How many parameters has a GPT?",
    level=2,
    section='chapters/05_architecture_deeper, section "What the sizes add up to"',
    stub=count_decoder,
    properties=(_count_tied, _count_untied, _count_gpt2, _count_one_layer),
    hints=(
        "Go from the bottom to the top: embeddings, one layer, the other layers, what stands "
        "behind the stack. Write down the shape of every matrix.",
        "A layer: four d×d matrices with four biases; d×d_ff and d_ff×d with biases d_ff and d; "
        "two normalisations with two vectors each. Behind the stack one more normalisation.",
        "With `d = d_model`, a layer has `4*d*d + 4*d + 2*d*d_ff + d_ff + d + 4*d`; around the "
        "layers stand `vocab_size*d + max_len*d + 2*d`, and `vocab_size*d` more if not tied.",
    ),
)

EXERCISES = (COUNT_DECODER,)
