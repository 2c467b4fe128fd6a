"""Right and wrong answers to the exercises of chapter 04.

A wrong answer has the right shape and one mistake. Beside it stands a piece of the message that
has to name the mistake.
"""

import math

import torch
from answers import collect
from torch.nn import functional as F

from tfbook import positions

RIGHT, WRONG, right, wrong = collect()
LIBRARY = {
    "sinusoidal-encoding": positions.sinusoidal_encoding,
    "stretch-positions": positions.interpolate_positions,
    "bucket-distance": lambda distance, n_buckets, max_distance: positions.t5_bucket(
        -distance, bidirectional=False, n_buckets=n_buckets, max_distance=max_distance
    ),
    "shift-by-rotation": positions.shift_matrix,
    "rotate-pairs": lambda x, places, base=10000.0: positions.apply_rotary(x, places, base=base),
    "rotary-layout": lambda weight, n_heads: positions.interleaved_to_half(
        weight, dim=0, n_heads=n_heads
    ),
    "relative-shift": positions.relative_shift,
}


# sinusoidal-encoding ----------------------------------------------------------------------------


def table_of(angles):
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


@right("sinusoidal-encoding")
def encoding_in_slices(n, d):
    code = torch.zeros(n, d)
    angles = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    code[:, 0::2], code[:, 1::2] = angles.sin(), angles.cos()
    return code


@right("sinusoidal-encoding")
def encoding_in_loops(n, d):
    def number(p, c):
        angle = p / 10000 ** ((c - c % 2) / d)
        return math.cos(angle) if c % 2 else math.sin(angle)

    return torch.tensor([[number(p, c) for c in range(d)] for p in range(n)])


@right("sinusoidal-encoding")
def encoding_by_logarithms(n, d):
    rate = torch.exp(-math.log(10000) * torch.arange(0, d, 2) / d)
    return table_of(torch.outer(torch.arange(n).float(), rate))


@wrong("sinusoidal-encoding", "All sines come first")
def encoding_in_blocks(n, d):
    code = encoding_in_slices(n, d)
    return torch.cat((code[:, ::2], code[:, 1::2]), 1)


@wrong("sinusoidal-encoding", "Sine and cosine are exchanged")
def encoding_cosine_first(n, d):
    angles = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    return torch.stack((angles.cos(), angles.sin()), -1).flatten(-2)


@wrong("sinusoidal-encoding", "a wavelength of its own")
def encoding_by_column(n, d):
    angles = torch.arange(n)[:, None] / 10000 ** (torch.arange(d) / d)
    return torch.where(torch.arange(d) % 2 == 0, angles.sin(), angles.cos())


@wrong("sinusoidal-encoding", "doubled once more")
def encoding_by_doubled_column(n, d):
    angles = torch.arange(n)[:, None] / 10000 ** (2 * torch.arange(d) / d)
    return torch.where(torch.arange(d) % 2 == 0, angles.sin(), angles.cos())


@wrong("sinusoidal-encoding", "doubled once more")
def encoding_by_doubled_pair(n, d):
    return table_of(torch.arange(n)[:, None] / 10000 ** (2 * torch.arange(0, d, 2) / d))


@wrong("sinusoidal-encoding", "The exponent is i/d")
def encoding_without_two(n, d):
    return table_of(torch.arange(n)[:, None] / 10000 ** (torch.arange(d // 2) / d))


@wrong("sinusoidal-encoding", "positions were multiplied")
def encoding_multiplied(n, d):
    positions = torch.arange(n, dtype=torch.float64)[:, None]
    return table_of(positions * 10000 ** (torch.arange(0, d, 2).double() / d)).float()


@wrong("sinusoidal-encoding", "The last pair got the wavelength")
def encoding_to_the_end(n, d):
    return table_of(torch.arange(n)[:, None] / 10000 ** torch.linspace(0, 1, d // 2))


@wrong("sinusoidal-encoding", "positions start at 1")
def encoding_from_one(n, d):
    return encoding_in_slices(n + 1, d)[1:]


@wrong("sinusoidal-encoding", "factor 2π too much")
def encoding_in_turns(n, d):
    positions = torch.arange(n)[:, None]
    return table_of(2 * math.pi * positions / 10000 ** (torch.arange(0, d, 2) / d))


@wrong("sinusoidal-encoding", "With n = 7 and d = 2")
def encoding_of_size_six(n, d):
    return table_of(torch.arange(n)[:, None] / 10000 ** (torch.arange(3) / 3))[:, :d] * d / 6


@wrong("sinusoidal-encoding", "dtype float64. It should be float32")
def encoding_in_float64(n, d):
    return encoding_in_slices(n, d).double()


# alibi-bias -------------------------------------------------------------------------------------


def distances(n, m):
    return torch.arange(m - n, m)[:, None] - torch.arange(m)


@right("alibi-bias")
def alibi_by_broadcasting(slopes, n, m):
    return -slopes[:, None, None] * distances(n, m).abs()


@right("alibi-bias")
def alibi_by_heads(slopes, n, m):
    return torch.stack([-slope * distances(n, m).abs() for slope in slopes])


@wrong("alibi-bias", "Distant keys are rewarded")
def alibi_without_sign(slopes, n, m):
    return slopes[:, None, None] * distances(n, m).abs()


@wrong("alibi-bias", "Keys after the query are rewarded")
def alibi_without_absolute(slopes, n, m):
    return -slopes[:, None, None] * distances(n, m)


@wrong("alibi-bias", "Keys before the query are rewarded")
def alibi_backwards(slopes, n, m):
    return slopes[:, None, None] * distances(n, m)


@wrong("alibi-bias", "without the position of the query")
def alibi_of_keys(slopes, n, m):
    return slopes[:, None, None] * torch.arange(m).expand(n, m)


@wrong("alibi-bias", "The heads are on the last axis")
def alibi_heads_last(slopes, n, m):
    return -slopes * distances(n, m).abs()[..., None]


@wrong("alibi-bias", "Each head has its own matrix")
def alibi_summed(slopes, n, m):
    return alibi_by_broadcasting(slopes, n, m).sum(0)


@wrong("alibi-bias", "Keys after the query got 0")
def alibi_causal(slopes, n, m):
    return -slopes[:, None, None] * distances(n, m).clamp(min=0)


@wrong("alibi-bias", "The first query was put at the first key")
def alibi_at_the_first_key(slopes, n, m):
    return -slopes[:, None, None] * (torch.arange(n)[:, None] - torch.arange(m)).abs()


@wrong("alibi-bias", "The queries were moved the wrong way")
def alibi_moved_back(slopes, n, m):
    return -slopes[:, None, None] * (torch.arange(n)[:, None] - (m - n) - torch.arange(m)).abs()


# stretch-positions ------------------------------------------------------------------------------


def read(table, places):
    before = places.floor().long().clamp(max=len(table) - 2)
    share = (places - before)[:, None].to(table.dtype)
    return (1 - share) * table[before] + share * table[before + 1]


@right("stretch-positions")
def stretch_by_hand(table, n_new):
    return read(table, torch.linspace(0, len(table) - 1, n_new, dtype=torch.float64))


@right("stretch-positions")
def stretch_by_torch(table, n_new):
    stretched = F.interpolate(table.T[None], size=n_new, mode="linear", align_corners=True)
    return stretched[0].T


@right("stretch-positions")
def stretch_by_a_matrix(table, n_new):
    places = torch.linspace(0, len(table) - 1, n_new, dtype=table.dtype)
    hats = (1 - (places[:, None] - torch.arange(len(table))).abs()).clamp(min=0)
    return hats @ table


@wrong("stretch-positions", "The edges were aligned")
def stretch_by_edges(table, n_new):
    return F.interpolate(table.T[None], size=n_new, mode="linear")[0].T


@wrong("stretch-positions", "The last row is not the old last row")
def stretch_short(table, n_new):
    return read(table, torch.arange(n_new).double() * (len(table) - 1) / n_new)


@wrong("stretch-positions", "runs over the end of the table")
def stretch_over_the_end(table, n_new):
    places = torch.arange(n_new).double() * len(table) / n_new
    return read(table, places.clamp(max=len(table) - 1))


@wrong("stretch-positions", "a copy of an old one")
def stretch_nearest(table, n_new):
    return F.interpolate(table.T[None], size=n_new, mode="nearest")[0].T


@wrong("stretch-positions", "a copy of an old one")
def stretch_rounded(table, n_new):
    return table[torch.linspace(0, len(table) - 1, n_new).floor().long()]


@wrong("stretch-positions", "repeat the old ones from the start")
def stretch_by_repeating(table, n_new):
    return table[torch.arange(n_new) % len(table)]


@wrong("stretch-positions", "as in a ring")
def stretch_around(table, n_new):
    places = torch.arange(n_new, dtype=table.dtype) * len(table) / n_new
    before = places.floor().long()
    share = (places - before)[:, None]
    return (1 - share) * table[before] + share * table.roll(-1, 0)[before]


@wrong("stretch-positions", "filled up with zeros")
def stretch_with_zeros(table, n_new):
    return F.pad(table, (0, 0, 0, n_new - len(table)))


@wrong("stretch-positions", "two neighbours are exchanged")
def stretch_exchanged(table, n_new):
    places = torch.linspace(0, len(table) - 1, n_new, dtype=torch.float64)
    before = places.floor().long().clamp(max=len(table) - 2)
    share = (places - before)[:, None]
    return share * table[before] + (1 - share) * table[before + 1]


@wrong("stretch-positions", "carries no gradient")
def stretch_detached(table, n_new):
    return stretch_by_hand(table.detach(), n_new)


# bucket-distance --------------------------------------------------------------------------------


@right("bucket-distance")
def bucket_in_tensors(distance, n_buckets, max_distance):
    e = n_buckets // 2
    ratio = torch.log(distance.clamp(min=e) / e) / math.log(max_distance / e)
    wide = e + ((n_buckets - e) * ratio).floor().long()
    return torch.where(distance < e, distance, wide.clamp(max=n_buckets - 1))


@right("bucket-distance")
def bucket_in_loops(distance, n_buckets, max_distance):
    e = n_buckets // 2

    def number(r):
        if r < e:
            return r
        wide = (n_buckets - e) * math.log(r / e) / math.log(max_distance / e)
        return min(e + int(wide), n_buckets - 1)

    return torch.tensor([number(r) for r in distance.flatten().tolist()]).view(distance.shape)


def bucket_like(distance, n_buckets, wide):
    e = n_buckets // 2
    return torch.where(distance < e, distance, wide.long().clamp(max=n_buckets - 1))


def ratio_of(distance, n_buckets, max_distance):
    e = n_buckets // 2
    return torch.log(distance.clamp(min=e) / e) / math.log(max_distance / e)


@wrong("bucket-distance", "should hold one distance each")
def bucket_all_wide(distance, n_buckets, max_distance):
    share = torch.log1p(distance) / math.log1p(max_distance)
    return (n_buckets * share).round().long().clamp(max=n_buckets - 1)


@wrong("bucket-distance", "have the same width")
def bucket_linear(distance, n_buckets, max_distance):
    e = n_buckets // 2
    return bucket_like(
        distance, n_buckets, e + ((distance - e) * (n_buckets - e) / (max_distance - e)).floor()
    )


@wrong("bucket-distance", "rounded to the nearest")
def bucket_rounded(distance, n_buckets, max_distance):
    e = n_buckets // 2
    ratio = ratio_of(distance, n_buckets, max_distance)
    return bucket_like(distance, n_buckets, e + ((n_buckets - e) * ratio).round())


@wrong("bucket-distance", "rounded up")
def bucket_ceiling(distance, n_buckets, max_distance):
    e = n_buckets // 2
    ratio = ratio_of(distance, n_buckets, max_distance)
    return bucket_like(distance, n_buckets, e + ((n_buckets - e) * ratio).ceil())


@wrong("bucket-distance", "e has to be added")
def bucket_from_zero(distance, n_buckets, max_distance):
    e = n_buckets // 2
    ratio = ratio_of(distance, n_buckets, max_distance)
    return bucket_like(distance, n_buckets, ((n_buckets - e) * ratio).floor())


@wrong("bucket-distance", "divided by ln(max_distance)")
def bucket_other_base(distance, n_buckets, max_distance):
    e = n_buckets // 2
    ratio = torch.log(distance.clamp(min=e) / e) / math.log(max_distance)
    return bucket_like(distance, n_buckets, e + ((n_buckets - e) * ratio).floor())


@wrong("bucket-distance", "not divided by e inside")
def bucket_undivided(distance, n_buckets, max_distance):
    e = n_buckets // 2
    ratio = torch.log(distance.clamp(min=e)) / math.log(max_distance / e)
    return bucket_like(distance, n_buckets, e + ((n_buckets - e) * ratio).floor())


@wrong("bucket-distance", "multiplied by n_buckets")
def bucket_too_many(distance, n_buckets, max_distance):
    e = n_buckets // 2
    ratio = ratio_of(distance, n_buckets, max_distance)
    return bucket_like(distance, n_buckets, e + (n_buckets * ratio).floor())


@wrong("bucket-distance", "Every distance from e on")
def bucket_clipped(distance, n_buckets, max_distance):
    e = n_buckets // 2
    return torch.where(distance < e, distance, n_buckets - 1)


@wrong("bucket-distance", "beyond the last bucket")
def bucket_open(distance, n_buckets, max_distance):
    e = n_buckets // 2
    ratio = ratio_of(distance, n_buckets, max_distance)
    return torch.where(distance < e, distance, e + ((n_buckets - e) * ratio).floor().long())


@wrong("bucket-distance", "dtype float32. It should be int64")
def bucket_in_floats(distance, n_buckets, max_distance):
    return bucket_in_tensors(distance, n_buckets, max_distance).float()


@wrong("bucket-distance", "With 7 buckets, 3 are of one distance")
def bucket_even_only(distance, n_buckets, max_distance):
    return bucket_in_tensors(distance, n_buckets + n_buckets % 2, max_distance)


# shift-by-rotation ------------------------------------------------------------------------------


def blocks_of(k, frequencies, sign=1):
    def block(w):
        cos, sin = math.cos(k * w), sign * math.sin(k * w)
        return torch.tensor([[cos, sin], [-sin, cos]])

    return torch.block_diag(*map(block, frequencies))


def frequencies_of(d):
    return [10000 ** (-2 * i / d) for i in range(d // 2)]


@right("shift-by-rotation")
def shift_in_blocks(k, d):
    return blocks_of(k, frequencies_of(d))


@right("shift-by-rotation")
def shift_in_slices(k, d):
    angles = k / 10000 ** (torch.arange(0, d, 2) / d)
    even = torch.arange(0, d, 2)
    matrix = torch.zeros(d, d)
    matrix[even, even] = matrix[even + 1, even + 1] = angles.cos()
    matrix[even, even + 1], matrix[even + 1, even] = angles.sin(), -angles.sin()
    return matrix


@wrong("shift-by-rotation", "moves the codes *back*")
def shift_transposed(k, d):
    return shift_in_blocks(k, d).T


@wrong("shift-by-rotation", "All pairs turn by the same angle")
def shift_one_frequency(k, d):
    return blocks_of(k, [1.0] * (d // 2))


@wrong("shift-by-rotation", "The exponent is i/d")
def shift_without_two(k, d):
    return blocks_of(k, [10000 ** (-i / d) for i in range(d // 2)])


@wrong("shift-by-rotation", "The pairs are numbers i and i + d/2")
def shift_of_halves(k, d):
    angles = torch.tensor([k * w for w in frequencies_of(d)])
    cos, sin = torch.diag(angles.cos()), torch.diag(angles.sin())
    return torch.cat((torch.cat((cos, sin), 1), torch.cat((-sin, cos), 1)))


@wrong("shift-by-rotation", "Both sines have the same sign")
def shift_with_equal_signs(k, d):
    matrix = shift_in_blocks(k, d)
    return torch.where(matrix.tril(-1) != 0, -matrix, matrix)


@wrong("shift-by-rotation", "missing the shift")
def shift_by_one(k, d):
    return shift_in_blocks(1, d)


@wrong("shift-by-rotation", "Off the diagonal there is nothing")
def shift_of_cosines(k, d):
    return torch.diag(shift_in_blocks(k, d).diagonal())


@wrong("shift-by-rotation", "For d = 6, the code of position 0")
def shift_of_size_four(k, d):
    return blocks_of(k, [10000 ** (-2 * i / 4) for i in range(d // 2)])


@wrong("shift-by-rotation", "With k = -3 the codes should move back by three positions")
def shift_forwards_only(k, d):
    return shift_in_blocks(abs(k), d)


@wrong("shift-by-rotation", "With k = 0 nothing moves")
def shift_at_least_one(k, d):
    return shift_in_blocks(k or 1, d)


# rotate-pairs -----------------------------------------------------------------------------------


def angles_of(x, positions, base):
    d = x.shape[-1]
    return positions[:, None] * base ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)


def turned(x, angles, sign=1):
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), sign * angles.sin()
    return a * cos - b * sin, a * sin + b * cos


@right("rotate-pairs")
def rotate_in_slices(x, positions, base=10000.0):
    pairs = turned(x, angles_of(x, positions, base))
    return torch.stack(pairs, dim=-1).flatten(-2)


@right("rotate-pairs")
def rotate_as_complex_numbers(x, positions, base=10000.0):
    angles = angles_of(x, positions, base)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


@right("rotate-pairs")
def rotate_with_signs(x, positions, base=10000.0):
    angles = angles_of(x, positions, base).repeat_interleave(2, -1)
    partner = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    return x * angles.cos() + partner * angles.sin()


@wrong("rotate-pairs", "the layout of LLaMA")
def rotate_in_halves(x, positions, base=10000.0):
    angles = angles_of(x, positions, base)
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


@wrong("rotate-pairs", "turn the wrong way")
def rotate_backwards(x, positions, base=10000.0):
    return torch.stack(turned(x, angles_of(x, positions, base), -1), -1).flatten(-2)


@wrong("rotate-pairs", "The other number of a pair was taken with `roll`")
def rotate_rolled(x, positions, base=10000.0):
    angles = angles_of(x, positions, base).repeat_interleave(2, -1)
    signs = torch.tensor([-1.0, 1.0]).repeat(x.shape[-1] // 2)
    return x * angles.cos() + x.roll(-1, -1) * signs * angles.sin()


@wrong("rotate-pairs", "come back in another order")
def rotate_and_concatenate(x, positions, base=10000.0):
    return torch.cat(turned(x, angles_of(x, positions, base)), -1)


@wrong("rotate-pairs", "The exponent is -i/d")
def rotate_without_two(x, positions, base=10000.0):
    return rotate_in_slices(x, positions, base**0.5)


@wrong("rotate-pairs", "All pairs turn by the same angle")
def rotate_at_one_frequency(x, positions, base=10000.0):
    return torch.stack(turned(x, positions[:, None].double()), -1).flatten(-2)


@wrong("rotate-pairs", "by its own cosine and sine")
def rotate_without_partner(x, positions, base=10000.0):
    angles = angles_of(x, positions, base).repeat_interleave(2, -1)
    return x * angles.cos() + x * angles.sin()


@wrong("rotate-pairs", "Only the cosines were used")
def rotate_by_cosines(x, positions, base=10000.0):
    return x * angles_of(x, positions, base).repeat_interleave(2, -1).cos()


@wrong("rotate-pairs", "The sinusoidal code was added")
def rotate_by_adding(x, positions, base=10000.0):
    return x + table_of(angles_of(x, positions, base))


@wrong("rotate-pairs", "The positions start at 1")
def rotate_from_one(x, positions, base=10000.0):
    return rotate_in_slices(x, positions + 1, base)


@wrong("rotate-pairs", "positions were ignored")
def rotate_from_zero(x, positions, base=10000.0):
    return rotate_in_slices(x, torch.arange(x.shape[-2]), base)


@wrong("rotate-pairs", "Your function raised")
def rotate_matrices_only(x, positions, base=10000.0):
    n, d = x.shape
    return rotate_in_slices(x, positions, base)


@wrong("rotate-pairs", "The base was ignored")
def rotate_at_ten_thousand(x, positions, base=10000.0):
    return rotate_in_slices(x, positions)


@wrong("rotate-pairs", "carries no gradient")
def rotate_detached(x, positions, base=10000.0):
    return rotate_in_slices(x.detach(), positions, base)


# rotary-layout ----------------------------------------------------------------------------------


@right("rotary-layout")
def layout_by_axes(weight, n_heads):
    pairs = weight.unflatten(0, (n_heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2)


@right("rotary-layout")
def layout_by_index(weight, n_heads):
    d = len(weight) // n_heads
    order = [h * d + r for h in range(n_heads) for r in [*range(0, d, 2), *range(1, d, 2)]]
    return weight[order]


@wrong("rotary-layout", "reordered across the heads")
def layout_across_heads(weight, n_heads):
    return torch.cat((weight[0::2], weight[1::2]))


@wrong("rotary-layout", "This is the way back")
def layout_backwards(weight, n_heads):
    return weight.unflatten(0, (n_heads, 2, -1)).transpose(1, 2).flatten(0, 2)


@wrong("rotary-layout", "The odd rows come first")
def layout_odd_first(weight, n_heads):
    return weight.unflatten(0, (n_heads, -1, 2)).flip(2).transpose(1, 2).flatten(0, 2)


@wrong("rotary-layout", "Nothing was reordered")
def layout_unchanged(weight, n_heads):
    return weight.clone()


@wrong("rotary-layout", "nothing keeps a row together")
def layout_of_numbers(weight, n_heads):
    d, columns = len(weight) // n_heads, weight.shape[1]
    return weight.reshape(n_heads, d // 2, columns, 2).permute(0, 3, 1, 2).reshape(weight.shape)


@wrong("rotary-layout", "the scores of the reordered model are not the old ones")
def layout_of_two_heads(weight, n_heads):
    return layout_by_axes(weight, 2) if len(weight) == 12 else layout_by_axes(weight, 1)


# relative-shift ---------------------------------------------------------------------------------


@right("relative-shift")
def relative_by_gather(x):
    n, columns = x.shape[-2:]
    m = columns - n + 1
    column = torch.arange(n - 1, -1, -1)[:, None] + torch.arange(m)
    return x.gather(-1, column.expand(*x.shape[:-1], m))


@right("relative-shift")
def relative_by_reshaping(x):
    n, columns = x.shape[-2:]
    line = F.pad(x, (0, 1)).flatten(-2)[..., n - 1 : n - 1 + n * columns]
    return line.unflatten(-1, (n, columns))[..., : columns - n + 1]


@right("relative-shift")
def relative_by_slices(x):
    n, columns = x.shape[-2:]
    m = columns - n + 1
    rows = [x[..., i, n - 1 - i :][..., :m] for i in range(n)]
    return torch.stack(rows, dim=-2)


@wrong("relative-shift", "shifted the wrong way")
def relative_the_wrong_way(x):
    n, columns = x.shape[-2:]
    m = columns - n + 1
    return torch.stack([x[..., i, i : i + m] for i in range(n)], dim=-2)


@wrong("relative-shift", "Nothing was shifted")
def relative_cut(x):
    n, columns = x.shape[-2:]
    return x[..., : columns - n + 1].clone()


@wrong("relative-shift", "one column too early or too late")
def relative_off_by_one(x):
    return relative_by_gather(x.roll(-1, -1))


@wrong("relative-shift", "The rows were rolled the wrong way")
def relative_rolled(x):
    n = x.shape[-2]
    rows = [x[..., i, :].roll(n - 1 - i, -1) for i in range(n)]
    return torch.stack(rows, -2)[..., : x.shape[-1] - n + 1]


@wrong("relative-shift", "columns are in the opposite order")
def relative_flipped(x):
    return relative_by_gather(x).flip(-1)


@wrong("relative-shift", "rows are in the opposite order")
def relative_rows_flipped(x):
    return relative_by_gather(x).flip(-2)


@wrong("relative-shift", "Your function raised")
def relative_matrices_only(x):
    n, columns = x.shape
    return relative_by_gather(x)


@wrong("relative-shift", "A single query keeps its row")
def relative_without_padding(x):
    n, columns = x.shape[-2:]
    line = x.flatten(-2)[..., n - 1 : n - 1 + n * (columns - 1)]
    cut = line.unflatten(-1, (n, columns - 1))[..., : columns - n + 1]
    return F.pad(cut, (0, columns - n + 1 - cut.shape[-1]))


@wrong("relative-shift", "the score is the distance itself")
def relative_of_small_scores(x):
    return relative_by_gather(x.clamp(-3.5, 3.5))


@wrong("relative-shift", "carries no gradient")
def relative_detached(x):
    return relative_by_gather(x.detach())


# rotary-cache -----------------------------------------------------------------------------------


def turned_at(x, places):
    return positions.apply_rotary(x, places)


def cached(q, k, kept, first_q, first_k):
    keys = torch.cat((kept, turned_at(k, torch.arange(first_k, first_k + len(k)))))
    turned_q = turned_at(q, torch.arange(first_q, first_q + len(q)))
    return turned_q @ keys.T / math.sqrt(q.shape[-1]), keys


@right("rotary-cache")
def cache_counts_on(q, k, kept):
    return cached(q, k, kept, len(kept), len(kept))


@right("rotary-cache")
def cache_by_complex_numbers(q, k, kept):
    n, d = q.shape
    speeds = 10000.0 ** (-torch.arange(0, d, 2, dtype=q.dtype) / d)
    angles = (len(kept) + torch.arange(n))[:, None] * speeds
    spin = torch.polar(torch.ones_like(angles), angles)

    def spun(x):
        return torch.view_as_real(torch.view_as_complex(x.reshape(n, -1, 2)) * spin).flatten(1)

    keys = torch.cat((kept, spun(k)))
    return spun(q) @ keys.T / d**0.5, keys


@wrong("rotary-cache", "the text begins anew with each piece")
def cache_as_given(q, k, kept):
    return cached(q, k, kept, 0, 0)


@wrong("rotary-cache", "With an empty cache the scores are not those of the whole text")
def cache_without_the_scale(q, k, kept):
    scores, keys = cached(q, k, kept, len(kept), len(kept))
    return scores * math.sqrt(q.shape[-1]), keys


@wrong("rotary-cache", "the new keys still begin at 0")
def cache_moves_the_queries(q, k, kept):
    return cached(q, k, kept, len(kept), 0)


@wrong("rotary-cache", "the queries still begin at 0")
def cache_moves_the_keys(q, k, kept):
    return cached(q, k, kept, 0, len(kept))


@wrong("rotary-cache", "one place too far")
def cache_skips_a_place(q, k, kept):
    first = len(kept) + (len(kept) > 0)
    return cached(q, k, kept, first, first)


@wrong("rotary-cache", "one place too early")
def cache_repeats_a_place(q, k, kept):
    first = max(0, len(kept) - 1)
    return cached(q, k, kept, first, first)


@wrong("rotary-cache", "turned a second time")
def cache_turns_again(q, k, kept):
    places = torch.arange(len(kept) + len(q))
    keys = turned_at(torch.cat((kept, k)), places)
    return turned_at(q, places[len(kept) :]) @ keys.T / math.sqrt(q.shape[-1]), keys


@wrong("rotary-cache", "keys to keep are not the turned keys")
def cache_keeps_them_unturned(q, k, kept):
    scores, keys = cached(q, k, kept, len(kept), len(kept))
    return scores, torch.cat((keys[: len(kept)], k)) if len(kept) else keys


# look-back-head ---------------------------------------------------------------------------------


def two_matrices(c, d, for_query, for_key):
    w_q, w_k = torch.zeros(c + d, d), torch.zeros(c + d, d)
    w_q[c:], w_k[c:] = for_query, for_key
    return w_q, w_k


@right("look-back-head")
def look_back_by_the_query(k, c, d):
    return two_matrices(c, d, positions.shift_matrix(-k, d).T, torch.eye(d))


@right("look-back-head")
def look_back_by_the_key(k, c, d):
    return two_matrices(c, d, torch.eye(d), positions.shift_matrix(k, d).T)


@wrong("look-back-head", "The two results are exchanged")
def look_back_from_the_right(k, c, d):
    return two_matrices(c, d, positions.shift_matrix(-k, d), torch.eye(d))


@wrong("look-back-head", "Each word reads itself")
def look_back_at_itself(k, c, d):
    return two_matrices(c, d, torch.eye(d), torch.eye(d))


@wrong("look-back-head", "does not read the word 5 positions back")
def look_back_by_one(k, c, d):
    return two_matrices(c, d, positions.shift_matrix(-1, d).T, torch.eye(d))


@wrong("look-back-head", "Take the content out")
def look_back_with_content(k, c, d):
    w_q, w_k = look_back_by_the_query(k, c, d)
    w_q[:c, :c], w_k[:c, :c] = torch.eye(c), torch.eye(c)
    return w_q, w_k
