"""Right and wrong answers to the exercises of chapter 06.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import math

import torch
from answers import collect
from torch.utils.flop_counter import FlopCounterMode

from tfbook import costs, models

RIGHT, WRONG, right, wrong = collect()
LIBRARY = {
    "answer-flops": lambda *sizes, **named: flops_of_a_config(*sizes, **named),
    "predict-seconds": lambda rows, d_in, d_out, size, flops, bytes_: costs.Machine(
        "", flops, bytes_
    ).seconds(*costs.linear_intensity(rows, d_in, d_out, size)),
    "predict-run": lambda sizes, losses, far: costs.fit_power_law(sizes, losses).loss(far),
    "split-budget": lambda flops, *law: costs.compute_optimal(costs.ChinchillaLaw(*law), flops),
}


# answer-flops -----------------------------------------------------------------------------------


@right("answer-flops")
def flops_formula(
    d_model, n_layers, n_heads, n_kv_heads, d_head, d_ff, vocab_size, prompt, answer
):  # fmt: skip
    q, kv, through = n_heads * d_head, n_kv_heads * d_head, prompt + answer - 1
    numbers = n_layers * (2 * d_model * (q + kv) + 3 * d_model * d_ff)
    pairs = through * (through + 1) // 2
    return 2 * numbers * through + 4 * n_layers * q * pairs + 2 * d_model * vocab_size * answer


@right("answer-flops")
def flops_token_by_token(
    d_model, n_layers, n_heads, n_kv_heads, d_head, d_ff, vocab_size, prompt, answer
):  # fmt: skip
    """Let every token go through by itself, and meet those before it."""
    q, kv, total = n_heads * d_head, n_kv_heads * d_head, 0
    for seen in range(1, prompt + answer):
        layer = 2 * (2 * d_model * q + 2 * d_model * kv + 3 * d_model * d_ff)
        total += n_layers * (layer + 2 * q * seen + 2 * q * seen)
        if seen >= prompt:  # a token is chosen
            total += 2 * d_model * vocab_size
    return total


@right("answer-flops")
def flops_counted(
    d_model, n_layers, n_heads, n_kv_heads, d_head, d_ff, vocab_size, prompt, answer
):  # fmt: skip
    """Multiply tensors without contents, and let PyTorch count; of the tokens that go through
    only the first and the last, as between them the FLOPs rise by equal steps."""

    def linear(x, width):
        return x @ torch.empty(x.shape[-1], width, device="meta")

    def layers(context):
        x = torch.empty(1, d_model, device="meta")
        group = n_heads // n_kv_heads
        keys = torch.empty(n_kv_heads, context, d_head, device="meta").repeat_interleave(group, 0)
        with FlopCounterMode(display=False) as counter:
            for _ in range(n_layers):
                linear(x, n_kv_heads * d_head), linear(x, n_kv_heads * d_head)
                q = linear(x, n_heads * d_head).view(n_heads, 1, d_head)
                z = (q @ keys.mT) @ keys
                linear(z.view(1, n_heads * d_head), d_model)
                linear(linear(x, d_ff) * linear(x, d_ff), d_model)
        return counter.get_total_flops()

    through = prompt + answer - 1
    both_ends = layers(1) + layers(through)
    return both_ends * through // 2 + 2 * d_model * vocab_size * answer


def flops_of_a_config(
    d_model, n_layers, n_heads, n_kv_heads, d_head, d_ff, vocab_size, prompt, answer
):  # fmt: skip
    """Ask the config of SmolLM2-135M, with other sizes where others are asked for."""
    config = models.preset("smollm2-135m")
    (layer,) = set(config.decoder)
    mixer = layer.mixer
    sizes = config.d_model, len(config.decoder), mixer.n_heads, mixer.n_kv_heads, layer.ffn.d_ff
    asked = d_model, n_layers, n_heads, n_kv_heads, d_ff
    if (*asked, vocab_size, d_head * n_heads) != (*sizes, config.vocab_size, config.d_model):
        config = config.replace(
            d_model=d_model, n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_kv_heads,
            d_head=d_head, d_ff=d_ff, vocab_size=vocab_size, position=None,
        )  # fmt: skip
    through = prompt + answer - 1
    both_ends = config.flops(1) + config.flops(1, past=through - 1)
    return both_ends * through // 2 - (prompt - 1) * 2 * d_model * vocab_size


def priced(message, change):
    """Note a wrong answer: the right number, changed by so much; t tokens go through the layers."""

    def flops(
        d_model, n_layers, n_heads, n_kv_heads, d_head, d_ff, vocab_size, prompt, answer
    ):  # fmt: skip
        sizes = (d_model, n_layers, n_heads, n_kv_heads, d_head, d_ff, vocab_size)
        return flops_formula(*sizes, prompt, answer) + change(*sizes, prompt + answer - 1, answer)

    flops.__name__ = message
    wrong("answer-flops", message)(flops)


def pairs_of(t):
    return t * (t + 1) // 2


priced("for every token that goes through", lambda d, n, h, g, w, f, v, t, a: 2 * d * v * (t - a))
priced("The output layer was counted once", lambda d, n, h, g, w, f, v, t, a: -2 * d * v * (a - 1))
priced("The output layer is missing", lambda d, n, h, g, w, f, v, t, a: -2 * d * v * a)
priced("counted in each layer", lambda d, n, h, g, w, f, v, t, a: (n - 1) * 2 * d * v * a)
priced(
    "later ones too",
    lambda d, n, h, g, w, f, v, t, a: 4 * n * h * w * (t * t - pairs_of(t)),
)
priced("left out of the pairs", lambda d, n, h, g, w, f, v, t, a: -4 * n * h * w * t)
priced("uses each pair twice", lambda d, n, h, g, w, f, v, t, a: -2 * n * h * w * pairs_of(t))
priced("Scores and sum are missing", lambda d, n, h, g, w, f, v, t, a: -4 * n * h * w * pairs_of(t))
priced(
    "were counted with n_kv_heads. K",
    lambda d, n, h, g, w, f, v, t, a: -4 * n * (h - g) * w * pairs_of(t),
)
priced(
    "with d_model features",
    lambda d, n, h, g, w, f, v, t, a: 4 * n * (d - h * w) * pairs_of(t),
)
priced(
    "The scores of one head", lambda d, n, h, g, w, f, v, t, a: -4 * n * (h - 1) * w * pairs_of(t)
)
priced("The network has two matrices here", lambda d, n, h, g, w, f, v, t, a: -2 * n * d * f * t)
priced("were projected to n_heads", lambda d, n, h, g, w, f, v, t, a: 4 * n * d * (h - g) * w * t)
priced("All projections were", lambda d, n, h, g, w, f, v, t, a: -4 * n * d * (h - g) * w * t)
priced(
    "as d_model × d_model",
    lambda d, n, h, g, w, f, v, t, a: n * t * (8 * d * d - 4 * d * (h + g) * w),
)


def answered(message, change):
    """Note a wrong answer, which is made of the nine arguments."""

    def flops(
        d_model, n_layers, n_heads, n_kv_heads, d_head, d_ff, vocab_size, prompt, answer
    ):  # fmt: skip
        sizes = (d_model, n_layers, n_heads, n_kv_heads, d_head, d_ff, vocab_size)
        return change(sizes, prompt, answer)

    flops.__name__ = message
    wrong("answer-flops", message)(flops)


def without_a_cache(sizes, prompt, answer):
    return sum(flops_formula(*sizes, prompt + k, 1) for k in range(answer))


def no_answer_read(sizes, prompt, answer):
    d, vocabulary = sizes[0], sizes[-1]
    return flops_formula(*sizes, prompt, 1) + 2 * d * vocabulary * (answer - 1)


def all_read(sizes, prompt, answer):
    d, vocabulary = sizes[0], sizes[-1]
    return flops_formula(*sizes, prompt, answer + 1) - 2 * d * vocabulary


def one_layer(sizes, prompt, answer):
    d, _, *others = sizes
    return flops_formula(d, 1, *others, prompt, answer)


def of_a_window(sizes, prompt, answer):
    """Each token meets the last 64 only."""
    d, n, h, _, w, *_ = sizes
    t = prompt + answer - 1
    far = sum(max(0, seen - 64) for seen in range(1, t + 1))
    return flops_formula(*sizes, prompt, answer) - 4 * n * h * w * far


def of_a_usual_width(sizes, prompt, answer):
    """A wide network is taken for one of the usual width, 4·d_model."""
    *others, d_ff, vocabulary = sizes
    wide = d_ff if d_ff < 2 * sizes[0] else 4 * sizes[0]
    return flops_formula(*others, wide, vocabulary, prompt, answer)


def whole_steps(sizes, prompt, answer):
    """The output layer for eleven tokens less than go through: right for one prompt only."""
    d, vocabulary = sizes[0], sizes[-1]
    t = prompt + answer - 1
    return flops_formula(*sizes, prompt, answer) + 2 * d * vocabulary * (t - 11 - answer)


answered("Each of them is 2 FLOPs", lambda sizes, p, a: flops_formula(*sizes, p, a) // 2)
answered("The backward pass", lambda sizes, p, a: 3 * flops_formula(*sizes, p, a))
answered(
    "The number is right, but it is a float", lambda sizes, p, a: float(flops_formula(*sizes, p, a))
)
answered("Each step read the whole text again", without_a_cache)
answered("Only the prompt went through", no_answer_read)
answered("The last written token was sent", all_read)
answered("The layers were counted once", one_layer)
answered("whether they are read or written", whole_steps)
answered("With a prompt of 100 tokens", of_a_window)
answered("is not what was wanted: 315641180160", of_a_usual_width)


# predict-seconds --------------------------------------------------------------------------------


@right("predict-seconds")
def seconds_formula(rows, d_in, d_out, bytes_per_number, flops_per_second, bytes_per_second):
    flops = 2 * rows * d_in * d_out
    n_bytes = bytes_per_number * (rows * d_in + d_in * d_out + rows * d_out)
    return max(flops / flops_per_second, n_bytes / bytes_per_second)


@right("predict-seconds")
def seconds_of_intensity(rows, d_in, d_out, bytes_per_number, flops_per_second, bytes_per_second):
    """Take the rate that the intensity allows, which is the picture of the two ceilings."""
    x, w = torch.empty(rows, d_in, device="meta"), torch.empty(d_in, d_out, device="meta")
    flops = 2 * rows * w.numel()
    n_bytes = sum(t.numel() for t in (x, w, x @ w)) * bytes_per_number
    return flops / min(flops_per_second, flops / n_bytes * bytes_per_second)


def two_times(rows, d_in, d_out, size, flops_rate, bytes_rate, parts=(1, 1, 1)):
    """Return how long the machine computes, and how long it moves so much of each of the parts."""
    numbers = (rows * d_in, d_in * d_out, rows * d_out)
    moved = size * sum(p * n for p, n in zip(parts, numbers, strict=True))
    return 2 * rows * d_in * d_out / flops_rate, moved / bytes_rate


def timed(message, answer):
    """Note a wrong answer, which is made of the six arguments."""

    def seconds(rows, d_in, d_out, bytes_per_number, flops_per_second, bytes_per_second):
        return answer(rows, d_in, d_out, bytes_per_number, flops_per_second, bytes_per_second)

    seconds.__name__ = message
    wrong("predict-seconds", message)(seconds)


timed("Both times were added. The machine", lambda *case: sum(two_times(*case)))
timed("the shorter of the two times", lambda *case: min(two_times(*case)))
timed("and the shorter time was taken", lambda *case: min(two_times(*case)) / 2)
timed("The parameters were not moved", lambda *case: max(two_times(*case, parts=(1, 0, 1))))
timed("Only the parameters were moved", lambda *case: max(two_times(*case, parts=(0, 1, 0))))
timed("The input was not moved", lambda *case: max(two_times(*case, parts=(0, 1, 1))))
timed("The result was not moved", lambda *case: max(two_times(*case, parts=(1, 1, 0))))
timed("moved for each row", lambda *case: max(two_times(*case, parts=(1, case[0], 1))))
timed("if a number had one byte", lambda m, a, b, size, f, r: max(two_times(m, a, b, 1, f, r)))
timed("Bits were moved", lambda m, a, b, size, f, r: max(two_times(m, a, b, 8 * size, f, r)))
timed("Multiplications were counted", lambda m, a, b, s, f, r: max(two_times(m, a, b, s, 2 * f, r)))
timed("This is how long moving takes", lambda *case: two_times(*case)[1])
timed("multiplied by the bytes", lambda m, a, b, s, f, r: max(two_times(m, a, b, s, f / s, r)))
timed("With few rows, moving takes", lambda *case: two_times(*case)[0] ** -1)
timed("The result is a tensor", lambda *case: torch.tensor(two_times(*case)).max())


@wrong("predict-seconds", "though moving goes on")
def seconds_read_first(rows, d_in, d_out, bytes_per_number, flops_per_second, bytes_per_second):
    case = rows, d_in, d_out, bytes_per_number, flops_per_second, bytes_per_second
    computing, moving = two_times(*case)
    return moving if moving > computing else moving + computing


@wrong("predict-seconds", "the time of one row")
def seconds_of_one_row(rows, d_in, d_out, bytes_per_number, flops_per_second, bytes_per_second):
    case = rows, d_in, d_out, bytes_per_number, flops_per_second, bytes_per_second
    computing, moving = two_times(*case)
    return moving if moving > computing else computing / rows


@wrong("predict-seconds", "Here computing takes 1.13e-07 s and moving 6.8e-07 s")
def seconds_by_rows(rows, d_in, d_out, bytes_per_number, flops_per_second, bytes_per_second):
    case = rows, d_in, d_out, bytes_per_number, flops_per_second, bytes_per_second
    return two_times(*case)[0 if rows >= 32 else 1]


# attention-memory -------------------------------------------------------------------------------


@right("attention-memory")
def memory_formula(n, d_model, n_heads, n_layers, bytes_per_number):
    return n_layers * n_heads * n * n * bytes_per_number


@right("attention-memory")
def memory_of_tensors(n, d_model, n_heads, n_layers, bytes_per_number):
    q = torch.empty(n_layers, n_heads, n, d_model // n_heads, device="meta")
    return (q @ q.mT).numel() * bytes_per_number


@wrong("attention-memory", "Each pair has d_model numbers here")
def memory_of_the_width(n, d_model, n_heads, n_layers, bytes_per_number):
    return n_layers * bytes_per_number * n**2 * d_model


@wrong("attention-memory", "Each pair has d_model numbers here")
def memory_of_width_and_heads(n, d_model, n_heads, n_layers, bytes_per_number):
    return n_layers * n_heads * bytes_per_number * n**2 * d_model


@wrong("attention-memory", "Each pair has d_head numbers")
def memory_of_the_head_width(n, d_model, n_heads, n_layers, bytes_per_number):
    return n_layers * bytes_per_number * n**2 * (d_model // n_heads)


@wrong("attention-memory", "The heads are missing")
def memory_of_one_head(n, d_model, n_heads, n_layers, bytes_per_number):
    return memory_formula(n, d_model, 1, n_layers, bytes_per_number)


@wrong("attention-memory", "as queries and keys have")
def memory_of_queries(n, d_model, n_heads, n_layers, bytes_per_number):
    return n_layers * n * d_model * bytes_per_number


@wrong("attention-memory", "Each head has n numbers here")
def memory_of_a_row(n, d_model, n_heads, n_layers, bytes_per_number):
    return n_layers * n_heads * n * bytes_per_number


@wrong("attention-memory", "The layers are missing")
def memory_of_one_layer(n, d_model, n_heads, n_layers, bytes_per_number):
    return memory_formula(n, d_model, n_heads, 1, bytes_per_number)


@wrong("attention-memory", "how many numbers are kept")
def memory_numbers(n, d_model, n_heads, n_layers, bytes_per_number):
    return memory_formula(n, d_model, n_heads, n_layers, 1)


@wrong("attention-memory", "These are bits")
def memory_bits(n, d_model, n_heads, n_layers, bytes_per_number):
    return 8 * memory_formula(n, d_model, n_heads, n_layers, bytes_per_number)


@wrong("attention-memory", "Half of the pairs were left out")
def memory_causal(n, d_model, n_heads, n_layers, bytes_per_number):
    return n_layers * n_heads * (n * (n + 1) // 2) * bytes_per_number


@wrong("attention-memory", "With tokens twice as wide")
def memory_of_wide_tokens(n, d_model, n_heads, n_layers, bytes_per_number):
    # The heads of the first two cases are 9 wide, and from that their number is guessed.
    return memory_formula(n, d_model, d_model // 9, n_layers, bytes_per_number)


@wrong("attention-memory", "With twice as many heads")
def memory_of_few_heads(n, d_model, n_heads, n_layers, bytes_per_number):
    return memory_formula(n, d_model, min(n_heads, d_model // 9), n_layers, bytes_per_number)


@wrong("attention-memory", "With twice as many tokens")
def memory_of_a_window(n, d_model, n_heads, n_layers, bytes_per_number):
    pairs = n * min(n, 6) if n != 11 else n * n
    return n_layers * n_heads * pairs * bytes_per_number


@wrong("attention-memory", "is not what was wanted: 8388608")
def memory_of_tiles(n, d_model, n_heads, n_layers, bytes_per_number):
    return n_layers * n_heads * n * min(n, 128) * bytes_per_number


# split-budget -----------------------------------------------------------------------------------


@right("split-budget")
def split_formula(flops, floor, n_scale, n_exponent, d_scale, d_exponent):
    ratio = (n_exponent * n_scale) / (d_exponent * d_scale)
    n = ratio ** (1 / (n_exponent + d_exponent))
    n *= (flops / 6) ** (d_exponent / (n_exponent + d_exponent))
    return n, flops / (6 * n)


@right("split-budget")
def split_thirds(flops, floor, n_scale, n_exponent, d_scale, d_exponent, low=0.0, high=None):
    """Search in log N: of three thirds, the one beside the worse end goes."""

    def loss(log_n):
        n = math.exp(log_n)
        return n_scale * n**-n_exponent + d_scale * (flops / 6 / n) ** -d_exponent

    high = math.log(flops / 6) if high is None else high
    while high - low > 1e-6:
        left, right_ = (2 * low + high) / 3, (low + 2 * high) / 3
        low, high = (left, high) if loss(left) > loss(right_) else (low, right_)
    n = math.exp((low + high) / 2)
    return n, flops / 6 / n


@right("split-budget")
def split_grid(flops, floor, n_scale, n_exponent, d_scale, d_exponent):
    n = torch.logspace(0, math.log10(flops / 6), 20_001, dtype=torch.float64)
    loss = floor + n_scale / n**n_exponent + d_scale / (flops / 6 / n) ** d_exponent
    best = n[loss.argmin()].item()
    return best, flops / 6 / best


@right("split-budget")
def split_rounded(flops, floor, n_scale, n_exponent, d_scale, d_exponent):
    n = round(split_formula(flops, floor, n_scale, n_exponent, d_scale, d_exponent)[0])
    return n, round(flops / 6 / n)


def split_with(message, answer):
    """Note a wrong answer, which gives the parameters; the rest of the budget goes to tokens."""

    def split(flops, floor, n_scale, n_exponent, d_scale, d_exponent):
        n = answer(flops / 6, floor, n_scale, n_exponent, d_scale, d_exponent)
        return n, flops / 6 / n

    split.__name__ = message
    wrong("split-budget", message)(split)


def balance(total, floor, a, alpha, b, beta):
    """Return the best parameters, if N·D is the total."""
    return split_formula(6 * total, floor, a, alpha, b, beta)[0]


split_with("D = 20·N, whatever the loss is", lambda total, *law: (total / 20) ** 0.5)
split_with("N and D are equal", lambda total, *law: total**0.5)
split_with(
    "The two terms are equal here",
    lambda total, e, a, alpha, b, beta: balance(total, e, a / alpha, alpha, b / beta, beta),
)
split_with(
    "The exponents are exchanged",
    lambda total, e, a, alpha, b, beta: (
        (alpha * a / beta / b * total**alpha) ** (1 / (alpha + beta))
    ),
)
split_with(
    "is upside down",
    lambda total, e, a, alpha, b, beta: (
        (beta * b / alpha / a * total**beta) ** (1 / (alpha + beta))
    ),
)
split_with("A model 10 % smaller", lambda total, *law: 1.5 * balance(total, *law))
split_with("A model 10 % larger", lambda total, *law: 0.9 * balance(total, *law))
split_with("search with finer steps", lambda total, *law: 1.03 * balance(total, *law))
split_with("They grow alike only", lambda total, *law: balance(1e17, *law) * (total / 1e17) ** 0.5)
split_with("N stayed as it was", lambda total, *law: balance(1e17, *law))
split_with("went to the parameters", lambda total, *law: balance(1e17, *law) * total / 1e17)
# A search that ends too early, one for no more parameters than tokens, one that ends later.
split_with("With ten thousand times", lambda total, *law: min(balance(total, *law), 1e8))
split_with(
    "have exchanged their constants", lambda total, *law: min(balance(total, *law), total**0.5)
)
split_with("At Chinchilla's budget", lambda total, *law: min(balance(total, *law), 1.5e10))


@wrong("split-budget", "pays for the forward pass alone")
def split_two(flops, floor, n_scale, n_exponent, d_scale, d_exponent):
    return split_formula(3 * flops, floor, n_scale, n_exponent, d_scale, d_exponent)


@wrong("split-budget", "The factor 6 is missing")
def split_one(flops, floor, n_scale, n_exponent, d_scale, d_exponent):
    return split_formula(6 * flops, floor, n_scale, n_exponent, d_scale, d_exponent)


@wrong("split-budget", "The rest would still lower the loss")
def split_left_over(flops, floor, n_scale, n_exponent, d_scale, d_exponent):
    """A grid of powers of 2 for both, of which the best that can be paid is taken."""
    pairs = [(2.0**i, 2.0**j) for i in range(20, 60) for j in range(20, 60)]
    return min(
        (pair for pair in pairs if 6 * pair[0] * pair[1] <= flops),
        key=lambda pair: n_scale / pair[0] ** n_exponent + d_scale / pair[1] ** d_exponent,
    )


@wrong("split-budget", "that is more than there is")
def split_overdrawn(flops, floor, n_scale, n_exponent, d_scale, d_exponent):
    """Each term is made small alone."""
    n = split_formula(flops, floor, n_scale, n_exponent, d_scale, d_exponent)[0]
    return n, 20 * (flops / 6)


@wrong("split-budget", "The two results are exchanged")
def split_swapped(flops, floor, n_scale, n_exponent, d_scale, d_exponent):
    return split_formula(flops, floor, n_scale, n_exponent, d_scale, d_exponent)[::-1]


@wrong("split-budget", "Return 2 results")
def split_parameters(flops, floor, n_scale, n_exponent, d_scale, d_exponent):
    return split_formula(flops, floor, n_scale, n_exponent, d_scale, d_exponent)[0]


@wrong("split-budget", "take each out with `.item()`")
def split_tensors(flops, floor, n_scale, n_exponent, d_scale, d_exponent):
    found = split_formula(flops, floor, n_scale, n_exponent, d_scale, d_exponent)
    return tuple(torch.tensor(value, dtype=torch.float64) for value in found)


@wrong("split-budget", "positive and finite")
def split_edge(flops, floor, n_scale, n_exponent, d_scale, d_exponent):
    return 0.0, math.inf


# predict-run ------------------------------------------------------------------------------------


def line_at(sizes, losses, floor):
    """Return offset and slope of the line of log(loss − floor) over log size."""
    x = torch.tensor(sizes, dtype=torch.float64).log()
    y = (torch.tensor(losses, dtype=torch.float64) - floor).log()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    return (y.mean() - slope * x.mean()).item(), slope.item()


def error_of(sizes, losses, floor):
    offset, slope = line_at(sizes, losses, floor)
    return sum(
        (floor + math.exp(offset + slope * math.log(n)) - loss) ** 2
        for n, loss in zip(sizes, losses, strict=True)
    )


def best_floor(sizes, losses, least=0.0):
    low, high = least, min(losses) * (1 - 1e-9)
    for _ in range(12):
        floors = [low + (high - low) * k / 40 for k in range(41)]
        best = min(floors[:-1], key=lambda floor: error_of(sizes, losses, floor))
        low, high = max(best - (high - low) / 40, least), min(best + (high - low) / 40, high)
    return best


def law_at(sizes, losses, floor, far):
    offset, slope = line_at(sizes, losses, floor)
    return floor + math.exp(offset + slope * math.log(far))


@right("predict-run")
def run_by_grids(sizes, losses, far):
    return law_at(sizes, losses, best_floor(sizes, losses), far)


@right("predict-run")
def run_by_exponents(sizes, losses, far):
    """For each exponent floor and height are a linear least squares problem."""
    n, loss = (torch.tensor(x, dtype=torch.float64) for x in (sizes, losses))

    def fit(exponent):
        term = (n / n.min()) ** -exponent
        columns = torch.stack((torch.ones_like(term), term), -1)
        floor, height = torch.linalg.lstsq(columns, loss[:, None]).solution[:, 0].tolist()
        if floor < 0:
            floor, height = 0.0, ((term @ loss) / (term @ term)).item()
        return ((floor + height * term - loss) ** 2).sum().item(), floor, height

    exponents, width = [0.01 * 1.05**k for k in range(100)], 0.05
    for _ in range(4):
        best = min(exponents, key=lambda exponent: fit(exponent)[0])
        exponents = [best * (1 + width * k / 20) for k in range(-20, 21)]
        width /= 10
    _, floor, height = fit(best)
    return floor + height * (far / n.min().item()) ** -best


def run_with(message, answer):
    """Note a wrong answer."""

    def run(sizes, losses, far):
        return answer(sizes, losses, far)

    run.__name__ = message
    wrong("predict-run", message)(run)


def half_logs(sizes, losses, far):
    x, y = [math.log(n) for n in sizes], losses
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    slope /= sum((a - mean_x) ** 2 for a in x)
    return mean_y + slope * (math.log(far) - mean_x)


def first_of_each(sizes, losses, far):
    seen = dict(reversed([*zip(sizes, losses, strict=True)]))
    return run_by_grids([*seen], [*seen.values()], far)


def through_three(sizes, losses, far):
    """The law through the smallest, a middle and the largest run, and no others."""
    runs = sorted(zip(sizes, losses, strict=True))
    return run_by_grids(*map(list, zip(runs[0], runs[len(runs) // 2], runs[-1], strict=True)), far)


run_with("a law without a floor", lambda s, y, far: law_at(s, y, 0.0, far))
run_with("It falls below any floor", half_logs)
run_with("Add E again", lambda s, y, far: run_by_grids(s, y, far) - best_floor(s, y))
run_with("This is the floor alone", lambda s, y, far: best_floor(s, y))
run_with("the largest run", lambda s, y, far: min(y))
run_with("no tensor", lambda s, y, far: torch.tensor(run_by_grids(s, y, far)))
run_with("Yours is a tuple", lambda s, y, far: (run_by_grids(s, y, far), best_floor(s, y)))
run_with("have a floor of 0.4", lambda s, y, far: law_at(s, y, best_floor(s, y, 1.0), far)
         if min(y) > 1.0 else law_at(s, y, 0.0, far))  # fmt: skip
run_with("ten thousand times as large", lambda s, y, far: run_by_grids(s, y, min(far, 1e9)))
run_with("Only the first run of each size", first_of_each)
run_with("These runs scatter", through_three)
run_with("in another order", lambda s, y, far: run_by_grids(s, y, far) - (s[0] > s[1]))
