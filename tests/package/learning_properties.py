"""What is true of optimizers, schedules, objectives and denoising, as checks.

A check is `check(kit)`, with the modules under test as a kit's attributes; it raises AssertionError
when the property does not hold. The checks run over the package (test_optimizers.py and its
neighbours) and over planted bugs (test_learning_mutants.py). No check compares with another
library. Sizes are distinct primes where they may be, numbers float64.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from types import ModuleType

import fresh
import torch
from torch import Tensor, nn

CHECKS: dict[str, Callable[["Kit"], None]] = {}
PARTS: dict[str, str] = {}  # what each check is about: optimizers, schedules, …
T = 7  # steps
LR, DECAY = 0.01, 0.3


class Kit:
    """The modules of one package, and the optimizers with choices that all of them bear."""

    MODULES = {
        "denoising": "tfbook.training.denoising",
        "muon": "tfbook.optimization.muon",
        "objectives": "tfbook.training.objectives",
        "optimizers": "tfbook.optimization.optimizers",
        "schedules": "tfbook.optimization.schedules",
        "sophia": "tfbook.optimization.sophia",
    }

    def __init__(self, package: str):
        self.package = package

    def __getattr__(self, name: str) -> ModuleType:
        if name not in self.MODULES:
            raise AttributeError(name)
        return fresh.copy_of(self.package, self.MODULES[name])

    def makers(self) -> dict[str, Callable[..., torch.optim.Optimizer]]:
        """Return what makes each optimizer from parameters and options."""
        plain = self.optimizers
        names = {name: getattr(plain, name) for name in "SGD Adam AdamW RAdam Adafactor".split()}
        return names | {"Lion": plain.Lion, "Sophia": self.sophia.Sophia, "Muon": self.muon.Muon}


def about(part: str) -> Callable[[Callable[[Kit], None]], Callable[[Kit], None]]:
    """Register a check under its name, and what it is about."""

    def register(function: Callable[[Kit], None]) -> Callable[[Kit], None]:
        CHECKS[function.__name__], PARTS[function.__name__] = function, part
        return function

    return register


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed + 1))


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def walk(
    make: Callable[..., torch.optim.Optimizer],
    start: Tensor,
    gradients: list[Tensor],
    **options: object,
) -> list[Tensor]:
    """Return where a parameter stands after each gradient, and before the first."""
    w = nn.Parameter(start.clone())
    optimizer = make([w], lr=LR, **options)
    places = [start]
    for g in gradients:
        w.grad = g.clone()
        optimizer.step()
        places.append(w.detach().clone())
    return places


def moves(places: list[Tensor]) -> list[Tensor]:
    return [after - before for before, after in itertools.pairwise(places)]


def gradients(*shape: int, n: int = T, seed: int = 10) -> list[Tensor]:
    return [normal(*shape, seed=seed + t) for t in range(n)]


def running(values: list[Tensor], beta: float) -> Tensor:
    """Return the running mean of all values as a sum, (1 − β) Σ β^(t − i) x_i."""
    return sum((1 - beta) * beta ** (len(values) - 1 - i) * x for i, x in enumerate(values))


# --- optimizers ---------------------------------------------------------------------------------


@about("optimizers")
def test_momentum_is_a_geometric_sum_of_gradients(kit):
    gs = gradients(3, 5)
    made = moves(walk(kit.optimizers.SGD, normal(3, 5), gs, momentum=0.7))
    ahead = moves(walk(kit.optimizers.SGD, normal(3, 5), gs, momentum=0.7, nesterov=True))
    for t in range(T):
        m = sum(0.7 ** (t - i) * gs[i] for i in range(t + 1))
        close(made[t], -LR * m)
        close(ahead[t], -LR * (gs[t] + 0.7 * m))


@about("optimizers")
def test_plain_descent_with_a_penalty_is_descent_with_decay(kit):
    w, g = normal(5), normal(5, seed=1)
    close(walk(kit.optimizers.SGD, w, [g], weight_decay=DECAY)[1], w * (1 - LR * DECAY) - LR * g)


@about("optimizers")
def test_adam_takes_steps_of_the_learning_rate_however_large_a_steady_gradient(kit):
    for scale in (1e-4, 1.0, 1e4):
        g = scale * normal(5)
        for step in moves(walk(kit.optimizers.Adam, normal(5), [g] * T, eps=1e-30)):
            close(step, -LR * g.sign())


def adam_by_hand(gs: list[Tensor], betas: tuple[float, float], eps: float) -> Tensor:
    t = len(gs)
    m = running(gs, betas[0]) / (1 - betas[0] ** t)
    v = running([g**2 for g in gs], betas[1]) / (1 - betas[1] ** t)
    return -LR * m / (v**0.5 + eps)


@about("optimizers")
def test_adam_is_the_formula_of_the_paper(kit):
    gs, betas = gradients(3, 5), (0.8, 0.9)
    made = moves(walk(kit.optimizers.Adam, normal(3, 5), gs, betas=betas, eps=0.1))
    for t in range(T):
        close(made[t], adam_by_hand(gs[: t + 1], betas, 0.1))


@about("optimizers")
def test_decoupled_decay_shrinks_every_weight_alike_and_a_penalty_does_not(kit):
    large = [torch.tensor([10.0, 1000.0], dtype=torch.float64)]
    w = torch.ones(2, dtype=torch.float64)
    tiny = {"eps": 1e-12, "weight_decay": 0.5}
    # The decay, LR · 0.5, comes on top of the step of LR; a penalty vanishes in the division.
    close(walk(kit.optimizers.AdamW, w, large, **tiny)[1], w - LR * 1.5)
    close(walk(kit.optimizers.Adam, w, large, **tiny)[1], w - LR)


@about("optimizers")
def test_adamw_is_adam_and_a_decay(kit):
    gs, betas, start = gradients(3, 5), (0.8, 0.9), normal(3, 5)
    options = {"betas": betas, "eps": 0.1, "weight_decay": DECAY}
    places = walk(kit.optimizers.AdamW, start, gs, **options)
    for t in range(T):
        step = adam_by_hand(gs[: t + 1], betas, 0.1)
        close(places[t + 1], places[t] * (1 - LR * DECAY) + step)


@about("optimizers")
def test_rectified_adam_trusts_the_squares_only_when_there_are_enough(kit):
    gs, (beta1, beta2) = gradients(5, n=11), (0.8, 0.999)
    made = moves(walk(kit.optimizers.RAdam, normal(5), gs, betas=(beta1, beta2), eps=0.0))
    longest = 2 / (1 - beta2) - 1
    lengths = []
    for t in range(1, 12):
        # How many numbers a plain mean over as many would need to vary as little.
        weights = [(1 - beta2) * beta2**i for i in range(t)]
        ages = sum(i * share for i, share in enumerate(weights)) / sum(weights)
        lengths.append(2 * (ages + 1) - 1)
        m = running(gs[:t], beta1) / (1 - beta1**t)
        length = lengths[-1]
        if length <= 5:
            close(made[t - 1], -LR * m)
            continue
        v = running([g**2 for g in gs[:t]], beta2) / (1 - beta2**t)
        spread = (length - 4) * (length - 2) / length
        r = (spread * longest / ((longest - 4) * (longest - 2))) ** 0.5
        close(made[t - 1], -LR * r * m / v**0.5)
    assert min(lengths) <= 5 < max(lengths)


@about("optimizers")
def test_adafactor_is_exact_for_squares_of_rank_one(kit):
    a, b, w = normal(3, 1), normal(1, 5, seed=1), normal(3, 5, seed=2)
    size = w.square().mean().sqrt()
    # g² is an outer product, so V = g² and every number moves by the same amount.
    close(walk(kit.optimizers.Adafactor, w, [a * b])[1], w - LR * size * (a * b).sign(), 1e-6)


@about("optimizers")
def test_adafactor_treats_a_matrix_of_one_column_as_a_vector(kit):
    gs, w = gradients(5), normal(5)
    vector = walk(kit.optimizers.Adafactor, w, gs, weight_decay=DECAY)
    for shape in ((5, 1), (1, 5)):
        matrix = walk(
            kit.optimizers.Adafactor, w.view(shape), [g.view(shape) for g in gs], weight_decay=DECAY
        )
        close(matrix[-1].view(5), vector[-1])


@about("optimizers")
def test_adafactor_steps_are_a_share_of_the_weights_and_no_surprise_makes_them_longer(kit):
    small, w = normal(3, 5), 100 * normal(3, 5, seed=1)
    gs = [small] * 3 + [1e6 * small]
    places = walk(kit.optimizers.Adafactor, w, gs, d=1.0)
    for place, step in zip(places, moves(places), strict=False):
        assert _rms(step) <= LR * _rms(place) * (1 + 1e-9)
    # Late in training the share is 1 / √t, if that is below lr: here from t = 5 on.
    late = nn.Parameter(w.clone())
    optimizer = kit.optimizers.Adafactor([late], lr=0.5)
    for _ in range(9):
        late.grad, before = small.clone(), late.detach().clone()
        optimizer.step()
    assert abs(_rms(late.detach() - before) / _rms(before) - 1 / 3) < 1e-2


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


@about("optimizers")
def test_adafactor_keeps_rows_and_columns_only(kit):
    w = nn.Parameter(normal(3, 5, 7))
    w.grad = normal(3, 5, 7)
    optimizer = kit.optimizers.Adafactor([w])
    optimizer.step()
    kept = {name: tuple(x.shape) for name, x in optimizer.state[w].items()}
    assert kept == {"step": (), "row_var": (3, 5, 1), "col_var": (3, 1, 7)}


@about("optimizers")
def test_adafactor_averages_with_a_share_that_shrinks(kit):
    gs = [torch.tensor([x], dtype=torch.float64) for x in (1.0, 2.0, 5.0)]
    w = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer, v = kit.optimizers.Adafactor([w]), 0.0
    for t, g in enumerate(gs, 1):
        w.grad = g
        optimizer.step()
        v += t**-0.8 * (g.item() ** 2 - v)
        close(optimizer.state[w]["variance"], torch.tensor([v], dtype=torch.float64))


@about("optimizers")
def test_lion_moves_every_number_by_the_same_amount(kit):
    gs, (beta1, beta2), start = gradients(3, 5), (0.6, 0.9), normal(3, 5)
    places = walk(kit.optimizers.Lion, start, gs, betas=(beta1, beta2), weight_decay=DECAY)
    for t in range(T):
        m = running(gs[:t], beta2) if t else torch.zeros(3, 5, dtype=torch.float64)
        direction = (beta1 * m + (1 - beta1) * gs[t]).sign()
        close(places[t + 1], places[t] - LR * (direction + DECAY * places[t]))


@about("optimizers")
def test_sophia_is_newtons_step_where_it_is_not_clipped(kit):
    curvature = torch.tensor([2.0, 200.0, -2.0, 2.0], dtype=torch.float64)
    w = nn.Parameter(torch.tensor([0.5, 0.5, 0.5, 5.0], dtype=torch.float64))
    sophia = kit.sophia.Sophia([w], lr=LR, betas=(0.0, 0.0), gamma=1.0, weight_decay=DECAY)
    loss = (curvature * w**2 / 2).sum()
    sophia.curvature(kit.sophia.hutchinson(loss, [w]))
    loss.backward()
    sophia.step()
    # Newton's step leads to 0; the third falls towards the negative, the fourth is clipped.
    step = torch.tensor([0.5, 0.5, -1.0, 1.0], dtype=torch.float64)
    old = torch.tensor([0.5, 0.5, 0.5, 5.0], dtype=torch.float64)
    close(w.detach(), old * (1 - LR * DECAY) - LR * step)


@about("optimizers")
def test_sophia_averages_gradients_and_curvatures(kit):
    gs, hs, betas = gradients(5), [g**2 for g in gradients(5, seed=40)], (0.7, 0.9)
    w = nn.Parameter(normal(5))
    sophia = kit.sophia.Sophia([w], lr=LR, betas=betas, gamma=9.0)
    for t in range(T):
        w.grad, before = gs[t].clone(), w.detach().clone()
        if t % 2 == 0:
            sophia.curvature([hs[t]])
        sophia.step()
        m, h = running(gs[: t + 1], betas[0]), running(hs[: t + 1 : 2], betas[1])
        close(w.detach() - before, -LR * (m / (9.0 * h)).clamp(-1, 1))


@about("optimizers")
def test_hutchinsons_mean_is_the_diagonal_of_the_hessian(kit):
    half = normal(5, 5)
    hessian = half @ half.mT
    w, other = nn.Parameter(normal(5, seed=1)), nn.Parameter(normal(3))
    generator, n = seeded(), 3000
    draws = []
    for _ in range(n):
        loss = w @ hessian @ w / 2 + 2 * other.sum()
        one, none = kit.sophia.hutchinson(loss, [w, other], generator=generator)
        assert none.abs().max() == 0
        draws.append(one)
    draws = torch.stack(draws)
    error = (draws.mean(0) - hessian.diag()).abs()
    spread = ((hessian**2).sum(1) - hessian.diag() ** 2).sqrt()
    assert (error < 5 * spread / n**0.5).all()
    close(draws.std(0), spread, 0.1)


@about("optimizers")
def test_drawn_labels_have_the_gauss_newton_matrix_as_mean(kit):
    x, w = normal(3, 2), nn.Parameter(normal(2, 5, seed=1))
    p = (x @ w.detach()).softmax(-1)  # (3, 5)
    # Of the mean loss over rows: the mean of x_i² p_c (1 − p_c).
    wanted = torch.einsum("ni,nc->ic", x**2, p * (1 - p)) / 3
    generator, n = seeded(), 3000
    logits = x @ w
    draws = torch.stack(
        [kit.sophia.gauss_newton_bartlett(logits, [w], generator=generator)[0] for _ in range(n)]
    )
    assert (draws >= 0).all()
    assert ((draws.mean(0) - wanted).abs() < 5 * draws.std(0) / n**0.5).all()


@about("optimizers")
def test_orthogonalize_keeps_the_directions_and_evens_out_the_sizes(kit):
    for shape in ((5, 11), (11, 5), (7, 7)):
        matrix = normal(*shape)
        made = kit.muon.orthogonalize(matrix)
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        inner = u.mT @ made @ vh.mT
        close(inner, inner.diag().diag())
        assert s.min() > 0.003 * s.norm()  # smaller ones take more than five steps
        assert inner.diag().min() > 0.68 and inner.diag().max() < 1.21
        close(kit.muon.orthogonalize(1e3 * matrix), made)
        close(kit.muon.orthogonalize(matrix.mT), made.mT)


@about("optimizers")
def test_orthogonalize_applies_one_polynomial_to_each_singular_value(kit):
    s = torch.tensor([3.0, 4.0], dtype=torch.float64)  # of norm 5
    made = kit.muon.orthogonalize(s.diag(), steps=1).diag()
    s = s / 5
    close(made, 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5)


@about("optimizers")
def test_muon_moves_by_its_momentum_made_orthogonal(kit):
    # Without iterations the momentum is divided by its length, which shows what it is.
    for shape, size in (((3, 12), 1.0), ((12, 3), 2.0)):
        gs, start = gradients(*shape), normal(*shape)
        options = {"momentum": 0.7, "weight_decay": DECAY, "precision": "full", "steps": 0}
        ahead = walk(kit.muon.Muon, start, gs, **options)
        plain = walk(kit.muon.Muon, start, gs, nesterov=False, **options)
        wide = walk(kit.muon.Muon, start, gs, scale="adamw", **options)
        for t in range(T):
            m = running(gs[: t + 1], 0.7)
            n = 0.3 * gs[t] + 0.7 * m
            kept = 1 - LR * DECAY
            close(ahead[t + 1], kept * ahead[t] - LR * size * n / n.norm())
            close(plain[t + 1], kept * plain[t] - LR * size * m / m.norm())
            close(wide[t + 1], kept * wide[t] - LR * 0.2 * 12**0.5 * n / n.norm())
    exact = walk(kit.muon.Muon, start, gs[:1], weight_decay=0.0, precision="full")
    close(exact[1], start - LR * 2 * kit.muon.orthogonalize(gs[0]))


@about("optimizers")
def test_muon_moves_each_matrix_as_if_it_were_alone(kit):
    shapes = [(3, 5), (5, 3), (3, 5), (7, 2), (3, 5)]  # some alike, which are moved together
    starts = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    gs = [gradients(*shape, seed=100 * i) for i, shape in enumerate(shapes)]
    ws = [nn.Parameter(start.clone()) for start in starts]
    optimizer = kit.muon.Muon(ws, lr=LR, precision="full")
    for each in zip(*gs, strict=True):
        for w, g in zip(ws, each, strict=True):
            w.grad = g
        optimizer.step()
    for w, start, own in zip(ws, starts, gs, strict=True):
        close(w.detach(), walk(kit.muon.Muon, start, own, precision="full")[-1])


@about("optimizers")
def test_a_group_of_muon_may_follow_adamw(kit):
    gs, start = gradients(5), normal(5)
    options = {"betas": (0.8, 0.9), "eps": 0.1, "weight_decay": DECAY}
    muon = walk(kit.muon.Muon, start, gs, rule="adamw", **options)
    close(muon[-1], walk(kit.optimizers.AdamW, start, gs, **options)[-1])


@about("optimizers")
def test_groups_hold_every_trained_parameter_once_and_hidden_ones_are_hidden(kit):
    model = nn.ModuleDict(
        {
            "embed": nn.Linear(3, 5),
            "words": nn.Embedding(7, 5),
            "body": nn.Sequential(nn.Linear(5, 11), nn.LayerNorm(11), nn.Conv1d(11, 5, 3)),
            "frozen": nn.Linear(5, 5).requires_grad_(False),
            "head": nn.Linear(5, 7),
        }
    )
    trained = [w for w in model.parameters() if w.requires_grad]
    decayed = kit.optimizers.decay_groups(model, 0.1)
    hidden = kit.muon.muon_groups(model, lr=0.02, adamw_lr=0.001)
    for groups in (decayed, hidden):
        found = [w for group in groups for w in group["params"]]
        assert Counter(map(id, found)) == Counter(map(id, trained))
        for group in groups:
            assert all((w.ndim >= 2) == (group["weight_decay"] > 0) for w in group["params"])
    matrices = [group["params"] for group in hidden if group["rule"] == "muon"]
    assert [list(map(id, group)) for group in matrices] == [[id(model["body"][0].weight)]]
    assert [group["lr"] for group in hidden] == [0.02, 0.001, 0.001]
    kit.muon.Muon(hidden)


@about("optimizers")
def test_each_group_has_its_own_options_and_what_has_no_gradient_stays(kit):
    for make in kit.makers().values():
        one, other, still = (nn.Parameter(normal(3, 5)) for _ in range(3))
        optimizer = make([{"params": [one, still]}, {"params": [other], "lr": 2 * LR}], lr=LR)
        one.grad, other.grad = normal(3, 5, seed=1), normal(3, 5, seed=1)
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
        optimizer.step()
        close(other.detach() - still.detach(), 2 * (one.detach() - still.detach()))
        close(still.detach(), normal(3, 5))
        assert still not in optimizer.state


@about("optimizers")
def test_a_saved_optimizer_goes_on_as_if_nothing_had_happened(kit):
    for name, make in kit.makers().items():
        options = {"SGD": {"momentum": 0.7}}.get(name, {}) | {"weight_decay": DECAY}
        gs = gradients(3, 5)
        whole = walk(make, normal(3, 5), gs, **options)
        w = nn.Parameter(normal(3, 5))
        optimizer = make([w], lr=LR, **options)
        for t, g in enumerate(gs):
            if t == 3:
                saved = optimizer.state_dict()
                w = nn.Parameter(w.detach().clone())
                optimizer = make([w], lr=1.0)
                optimizer.load_state_dict(saved)
            w.grad = g
            optimizer.step()
        assert torch.equal(w.detach(), whole[-1])


# --- schedules ----------------------------------------------------------------------------------

COURSES = {
    "constant": {},
    "linear": {"steps": 23},
    "cosine": {"steps": 23},
    "exponential": {"rate": 0.9},
    "restarts": {"period": 5, "stretch": 2},
    "wsd": {"steps": 23, "decay": 7},
    "inverse_sqrt": {},
}


@about("schedules")
def test_every_schedule_rises_in_a_line_to_1_at_the_end_of_the_warm_up(kit):
    for name, choices in COURSES.items():
        follow = kit.schedules.schedule(name, warmup=4, **choices)
        rise = [follow(step) for step in range(5)]
        assert max(abs(a - b) for a, b in zip(rise, (0.2, 0.4, 0.6, 0.8, 1.0), strict=True)) < 1e-12
        assert all(0 <= follow(step) <= 1 for step in range(50))


@about("schedules")
def test_what_ends_falls_to_its_floor_and_stays_there(kit):
    for name in ("linear", "cosine", "wsd"):
        for floor in (0.0, 0.1):
            follow = kit.schedules.schedule(name, warmup=3, floor=floor, **COURSES[name])
            values = [follow(step) for step in range(3, 30)]
            assert all(b <= a for a, b in itertools.pairwise(values))
            assert max(abs(value - floor) for value in values[20:]) < 1e-12  # step 23 and on
            assert values[19] > floor + 1e-4


@about("schedules")
def test_half_of_the_way_is_half_of_the_fall(kit):
    assert kit.schedules.linear(13, steps=23, warmup=3) == 0.5
    assert abs(kit.schedules.cosine(13, steps=23, warmup=3, floor=0.2) - 0.6) < 1e-12
    # A cosine falls slowly at both ends, fastest in the middle.
    falls = [
        kit.schedules.cosine(s, steps=20) - kit.schedules.cosine(s + 1, steps=20) for s in range(20)
    ]
    assert falls.index(max(falls)) in (9, 10) and falls[0] < falls[4] > falls[19]
    assert abs(kit.schedules.exponential(9, rate=0.9, warmup=3) - 0.9**6) < 1e-12


@about("schedules")
def test_noam_peaks_at_the_end_of_the_warm_up_and_begins_without_an_error(kit):
    rates = [kit.schedules.noam(step, d_model=13, warmup=7) for step in range(100)]
    assert rates.index(max(rates)) == 7 and abs(max(rates) - (13 * 7) ** -0.5) < 1e-12
    assert rates[0] == rates[1] > 0
    line = [rates[step] / step for step in range(1, 8)]
    assert max(line) - min(line) < 1e-12
    for step in range(7, 100):
        shape = kit.schedules.inverse_sqrt(step, warmup=7)
        assert abs(rates[step] - max(rates) * shape) < 1e-12
    assert abs(rates[28] - rates[7] / 2) < 1e-12


@about("schedules")
def test_waves_begin_at_1_and_each_is_longer(kit):
    values = [kit.schedules.restarts(s, period=3, stretch=2, floor=0.1) for s in range(21)]
    assert [s for s, value in enumerate(values) if value == 1.0] == [0, 3, 9]
    assert min(values) > 0.1
    close(torch.tensor(values[3:9:2]), torch.tensor(values[:3]))  # the same wave, stretched
    same = [kit.schedules.restarts(s, period=3) for s in range(9)]
    assert same == same[:3] * 3


@about("schedules")
def test_until_it_falls_wsd_does_not_know_how_long_the_training_is(kit):
    short, long = (
        [kit.schedules.wsd(s, steps=n, decay=5, warmup=3) for s in range(n + 1)] for n in (17, 29)
    )
    assert short[:12] == long[:12] and short[3:13] == [1.0] * 10
    assert short[12:] == long[24:] and 0 < short[13] < 1
    root = kit.schedules.wsd(13, steps=17, decay=5, warmup=3, shape="sqrt")
    assert abs(root - (1 - (1 / 5) ** 0.5)) < 1e-12


# --- objectives ---------------------------------------------------------------------------------

B, N, V = 3, 7, 11


def ids(*shape: int, below: int = V, seed: int = 0) -> Tensor:
    return torch.randint(below, shape, generator=seeded(seed))


@about("objectives")
def test_cross_entropy_is_the_mean_of_minus_q_log_p(kit):
    logits, targets = normal(B, N, V), ids(B, N)
    for eps in (0.0, 0.1, 1.0):
        q = kit.objectives.smooth_targets(targets, V, eps).double()
        close(q.sum(-1), torch.ones(B, N, dtype=torch.float64), 1e-6)
        each = -(q * logits.log_softmax(-1)).sum(-1)
        for reduction, wanted in (("mean", each.mean()), ("sum", each.sum()), ("none", each)):
            found = kit.objectives.cross_entropy(
                logits, targets, label_smoothing=eps, reduction=reduction
            )
            close(found, wanted, 1e-6)


@about("objectives")
def test_smoothing_keeps_a_share_for_the_target_itself(kit):
    q = kit.objectives.smooth_targets(torch.tensor([2]), 4, 0.1)
    close(q, torch.tensor([[0.025, 0.025, 0.925, 0.025]]), 1e-6)
    # The least loss is the entropy of q, where p = q; without smoothing there is no least one.
    loss = kit.objectives.cross_entropy(q.log(), torch.tensor([2]), label_smoothing=0.1)
    close(loss, -(q * q.log()).sum(), 1e-6)


@about("objectives")
def test_what_is_ignored_is_as_if_it_were_not_there(kit):
    logits, targets = normal(B, N, V).requires_grad_(), ids(B, N)
    hidden = torch.rand(B, N, generator=seeded(3)) < 0.4
    hidden[0, 0], hidden[2] = False, True
    marked = targets.masked_fill(hidden, -100)
    for eps in (0.0, 0.2):
        loss = kit.objectives.cross_entropy(logits, marked, label_smoothing=eps)
        rest = kit.objectives.cross_entropy(logits[~hidden], targets[~hidden], label_smoothing=eps)
        close(loss, rest)
        gradient = torch.autograd.grad(loss, logits)[0]
        assert gradient[hidden].abs().max() == 0 < gradient[~hidden].abs().min()
    none = kit.objectives.cross_entropy(logits, marked, reduction="none")
    assert none.shape == (B, N) and none[hidden].abs().max() == 0
    own = targets.masked_fill(hidden, 4)
    mine = kit.objectives.cross_entropy(logits, own, ignore=4)
    close(mine, kit.objectives.cross_entropy(logits, own.masked_fill(own == 4, -100)))


@about("objectives")
def test_without_targets_the_loss_is_0_and_not_nan(kit):
    logits = normal(B, N, V).requires_grad_()
    for reduction in ("mean", "sum", "sequences"):
        nothing = torch.full((B, N), -100)
        loss = kit.objectives.cross_entropy(logits, nothing, reduction=reduction)
        assert loss == 0 and torch.autograd.grad(loss, logits)[0].abs().max() == 0


@about("objectives")
def test_a_mean_over_tokens_weighs_tokens_and_one_over_sequences_sequences(kit):
    logits = torch.zeros(2, N, 2, dtype=torch.float64)
    logits[0, :, 0] = 1.0
    targets = torch.zeros(2, N, dtype=torch.long)
    targets[0, 1:] = -100
    sure, unsure = math.log(1 + math.exp(-1)), math.log(2)
    mean = kit.objectives.cross_entropy(logits, targets).item()
    assert abs(mean - (sure + N * unsure) / (1 + N)) < 1e-12
    both = kit.objectives.cross_entropy(logits, targets, reduction="sequences").item()
    assert abs(both - (sure + unsure) / 2) < 1e-12
    targets[0] = -100  # a sequence without targets is none
    one = kit.objectives.cross_entropy(logits, targets, reduction="sequences").item()
    assert abs(one - unsure) < 1e-12


@about("objectives")
def test_the_gradient_is_what_is_said_minus_what_should_be(kit):
    logits, targets = normal(N, V).requires_grad_(), ids(N)
    loss = kit.objectives.cross_entropy(logits, targets, label_smoothing=0.1)
    q = kit.objectives.smooth_targets(targets, V, 0.1).double()
    close(torch.autograd.grad(loss, logits)[0], (logits.softmax(-1) - q) / N, 1e-6)


@about("objectives")
def test_partners_are_found_when_alike_and_guessed_when_all_are_alike(kit):
    a = torch.eye(5, 7, dtype=torch.float64)
    assert kit.objectives.info_nce(a, 3 * a, temperature=0.01) < 1e-9
    same = torch.ones(5, 7, dtype=torch.float64)
    assert abs(kit.objectives.info_nce(same, same).item() - math.log(5)) < 1e-9
    worst = kit.objectives.info_nce(a, a.roll(1, 0), temperature=0.1).item()
    assert abs(worst - math.log(4 + math.exp(10))) < 1e-9


@about("objectives")
def test_contrast_asks_for_directions_and_knows_no_order_of_pairs(kit):
    a, b = normal(5, 7), normal(5, 7, seed=1)
    loss = kit.objectives.info_nce(a, b, temperature=0.3)
    order = torch.tensor([3, 1, 4, 0, 2])
    close(kit.objectives.info_nce(2 * a[order], b[order] / 3, temperature=0.3), loss)
    close(kit.objectives.info_nce(b, a, temperature=0.3), loss)
    one, other = (
        kit.objectives.info_nce(*pair, temperature=0.3, symmetric=False)
        for pair in ((a, b), (b, a))
    )
    assert abs(one - other) > 1e-3
    close((one + other) / 2, loss)
    rows = [[float(x @ y / (x.norm() * y.norm()) / 0.3) for y in b] for x in a]
    by_hand = [-row[i] + math.log(sum(map(math.exp, row))) for i, row in enumerate(rows)]
    assert abs(one.item() - sum(by_hand) / 5) < 1e-9


@about("objectives")
def test_a_student_like_its_teacher_has_no_loss_and_another_has(kit):
    teacher, student = normal(B, N, V), normal(B, N, V, seed=1)
    distillation = kit.objectives.distillation
    assert distillation(teacher + 3.0, teacher).abs() < 1e-12
    p, q = ((x / 2.0).softmax(-1) for x in (teacher, student))
    close(distillation(student, teacher, temperature=2.0), 4 * (p * (p / q).log()).sum(-1).mean())
    mask = torch.rand(B, N, generator=seeded(3)) < 0.5
    close(distillation(student, teacher, mask=mask), distillation(student[mask], teacher[mask]))
    assert distillation(student, teacher, mask=mask & False) == 0


@about("objectives")
def test_what_a_teacher_cuts_adds_nothing_and_gets_no_share(kit):
    teacher, student = normal(B, N, V), normal(B, N, V, seed=1).requires_grad_()
    cut = teacher < teacher.topk(2, dim=-1).values[..., -1:]
    teacher = teacher.masked_fill(cut, -math.inf)
    loss = kit.objectives.distillation(student, teacher, temperature=2.0)
    p, q = (teacher / 2).softmax(-1), (student / 2).softmax(-1)
    close(loss, 4 * torch.where(cut, 0, p * (p.where(~cut, 1) / q).log()).sum(-1).mean())
    (gradient,) = torch.autograd.grad(loss, student)
    close(gradient, 2 * (q - p) / (B * N))
    both = student.detach().masked_fill(cut, -math.inf).requires_grad_()
    loss = kit.objectives.distillation(both, teacher, temperature=2.0)
    (gradient,) = torch.autograd.grad(loss, both)
    assert loss.isfinite() and gradient.isfinite().all() and not gradient[cut].any()
    only_student = kit.objectives.distillation(both.detach(), normal(B, N, V))
    assert only_student == math.inf


@about("objectives")
def test_the_temperature_leaves_the_size_of_the_gradient(kit):
    teacher, student = normal(N, V).requires_grad_(), normal(N, V, seed=1).requires_grad_()
    sizes = []
    for temperature in (50.0, 100.0):
        loss = kit.objectives.distillation(student, teacher, temperature=temperature)
        gradient, none = torch.autograd.grad(loss, [student, teacher], allow_unused=True)
        assert none is None
        sizes.append(gradient.norm().item())
    assert abs(sizes[0] / sizes[1] - 1) < 0.05


@about("objectives")
def test_each_place_is_asked_for_the_token_after_it(kit):
    tokens = ids(B, N)
    inputs, targets = kit.objectives.next_tokens(tokens)
    assert inputs.shape == targets.shape == (B, N - 1)
    for t in range(N - 1):
        assert torch.equal(inputs[:, t], tokens[:, t])
        assert torch.equal(targets[:, t], tokens[:, t + 1])


@about("objectives")
def test_padding_is_neither_asked_for_nor_asked(kit):
    tokens = ids(2, N)
    mask = torch.ones(2, N, dtype=torch.bool)
    mask[0, 4:], mask[1, :3] = False, False  # one on the right, one on the left
    _, targets = kit.objectives.next_tokens(tokens, mask)
    assert (targets != -100).tolist() == [[True] * 3 + [False] * 3, [False] * 3 + [True] * 3]
    alone = [kit.objectives.next_tokens(tokens[i : i + 1, mask[i]])[1][0] for i in range(2)]
    assert torch.equal(targets[targets != -100], torch.cat(alone))


class Count(nn.Module):
    """A model whose logits for a place depend on all tokens read there, and on no padding."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(normal(V, V))

    def forward(self, tokens, mask=None):
        rows = self.table[tokens]  # (B, N, V)
        if mask is not None:
            rows = rows * mask[..., None]
        return rows.cumsum(1), None


@about("objectives")
def test_one_pass_is_worth_as_many_passes_as_there_are_tokens(kit):
    model, tokens = Count(), ids(1, N)
    loss, count = kit.objectives.causal_loss(model, tokens)
    each = []
    for t in range(1, N):
        logits, _ = model(tokens[:, :t])
        each.append(-logits[0, -1].log_softmax(-1)[tokens[0, t]])
    assert count == N - 1
    close(loss, sum(each))


@about("objectives")
def test_a_batch_with_padding_has_the_losses_of_its_sequences(kit):
    model, tokens = Count(), ids(3, N)
    mask = torch.ones(3, N, dtype=torch.bool)
    mask[1, 4:], mask[2, :2] = False, False
    loss, count = kit.objectives.causal_loss(model, tokens, mask=mask, label_smoothing=0.1)
    alone = [
        kit.objectives.causal_loss(model, tokens[i : i + 1, mask[i]], label_smoothing=0.1)
        for i in range(3)
    ]
    close(loss, sum(part for part, _ in alone))
    assert count == sum(part for _, part in alone) == N - 1 + 3 + 4


@about("objectives")
def test_a_translation_is_forced_to_read_the_true_target(kit):
    table, read = normal(V, V), {}

    def model(source, target, *, source_mask, target_mask):
        read.update(target=target, source_mask=source_mask, target_mask=target_mask)
        context = (table[source] * source_mask[..., None]).sum(1, keepdim=True)
        return context + (table[target] * target_mask[..., None]).cumsum(1)

    pad, source, target = 0, ids(2, 5) % (V - 1) + 1, ids(2, N) % (V - 1) + 1
    source[1, 3:], target[0, 5:] = pad, pad
    loss, count = kit.objectives.translation_loss(model, (source, target), pad_id=pad)
    assert torch.equal(read["target"], target[:, :-1])
    assert torch.equal(read["source_mask"], source != pad)
    assert torch.equal(read["target_mask"], target[:, :-1] != pad)
    parts = [
        kit.objectives.translation_loss(model, pair, pad_id=pad)
        for pair in ((source[:1], target[:1, :5]), (source[1:, :3], target[1:]))
    ]
    close(loss, sum(part for part, _ in parts))
    assert count == sum(part for _, part in parts) == 4 + N - 1


@about("objectives")
def test_a_masked_model_is_asked_for_the_chosen_tokens_only(kit):
    task = kit.objectives.Example(ids(B, N), ids(B, N, seed=1).masked_fill(ids(B, N) > 3, -100))
    logits = normal(B, N, V)
    loss, count = kit.objectives.masked_loss(lambda tokens, mask: logits, task)
    chosen = task.targets != -100
    each = -logits.log_softmax(-1)[chosen].gather(-1, task.targets[chosen][:, None])
    close(loss, each.sum())
    assert count == int(chosen.sum())


# --- denoising ----------------------------------------------------------------------------------


@about("denoising")
def test_of_the_chosen_tokens_most_are_hidden_some_replaced_some_left(kit):
    tokens = ids(100, 499, below=97, seed=1)
    inputs, targets = kit.denoising.mask_tokens(
        tokens, mask_id=96, vocab_size=97, special=(0, 1), generator=seeded()
    )
    chosen = targets != -100
    special = (tokens == 96) | (tokens < 2)
    assert not (chosen & special).any()
    assert torch.equal(targets[chosen], tokens[chosen])
    assert torch.equal(inputs[~chosen], tokens[~chosen])
    open_to = int((~special).sum())
    hidden = chosen & (inputs == 96)
    other = chosen & (inputs != 96) & (inputs != tokens)
    assert not (other & (inputs < 2)).any()  # no special token is put in
    # A random token is the true one in 1 of 94 cases.
    for found, share in (
        (chosen.sum() / open_to, 0.15),
        (hidden.sum() / chosen.sum(), 0.8),
        (other.sum() / chosen.sum(), 0.1 * 93 / 94),
    ):
        n = open_to if share == 0.15 else int(chosen.sum())
        assert abs(float(found) - share) < 5 * (share * (1 - share) / n) ** 0.5
    put_in = inputs[other].unique()
    assert set(put_in.tolist()) == set(range(2, 96))


@about("denoising")
def test_the_same_generator_makes_the_same_task(kit):
    tokens, row = ids(B, N), list(range(20))
    tasks = {
        "mask": lambda g: kit.denoising.mask_tokens(
            tokens, mask_id=0, vocab_size=V, share=0.5, generator=g
        ).inputs.tolist(),
        "spans": lambda g: kit.denoising.corrupt_spans(
            row, sentinels=range(90, 99), share=0.4, generator=g
        ),
        "infill": lambda g: kit.denoising.infill(row, mask_id=90, generator=g),
        "delete": lambda g: kit.denoising.delete_tokens(row, share=0.5, generator=g),
        "permute": lambda g: kit.denoising.permute_sentences(
            [1, 0, 2, 0, 3, 0, 4, 0, 5, 0], end_id=0, generator=g
        ),
        "rotate": lambda g: kit.denoising.rotate(row, generator=g),
    }
    for make in tasks.values():
        torch.manual_seed(1)
        made = make(seeded(5))
        torch.manual_seed(2)
        assert make(seeded(5)) == made
        assert any(make(seeded(seed)) != made for seed in range(6, 12))


@about("denoising")
def test_spans_go_where_they_were(kit):
    for seed in range(60):
        n = 2 + seed % 29
        row, sentinels = list(range(n)), list(range(100, 130))
        share = 0.05 + seed % 10 / 10
        inputs, targets = kit.denoising.corrupt_spans(
            row, sentinels=sentinels, share=share, mean_length=1 + seed % 4, generator=seeded(seed)
        )
        assert kit.denoising.fill_spans(inputs, targets, sentinels=sentinels) == row
        used = [token for token in inputs if token >= 100]
        assert used == sentinels[: len(used)]  # in order, and one more at the end of the target
        assert [token for token in targets if token >= 100] == sentinels[: len(used) + 1]
        assert targets[-1] == sentinels[len(used)]
        cut = [token for token in targets if token < 100]
        wanted = min(max(round(share * n), 1), n - 1)
        assert len(cut) == wanted
        assert len(used) == min(max(round(wanted / (1 + seed % 4)), 1), n - wanted)
        assert inputs[0] == 0 and all(a < 100 or b < 100 for a, b in itertools.pairwise(inputs))
        assert all(a < 100 or b < 100 for a, b in itertools.pairwise(targets))  # none is empty


@about("denoising")
def test_all_ways_to_cut_spans_are_equally_likely(kit):
    generator, n = seeded(), 3000
    made = Counter(
        tuple(
            kit.denoising.corrupt_spans(
                range(7), sentinels=[90, 91, 92], share=0.43, mean_length=1.5, generator=generator
            )[0]
        )
        for _ in range(n)
    )
    # 3 of 7 in 2 spans: 3 ways to cut the 4 that stay, 2 ways to cut the 3 that go.
    assert len(made) == 6
    assert all(abs(count - n / 6) < 5 * (n * 5 / 36) ** 0.5 for count in made.values())


@about("denoising")
def test_infilling_hides_how_much_is_missing(kit):
    row, masks, n, generator = list(range(40)), 0, 400, seeded()
    for _ in range(n):
        made = kit.denoising.infill(row, mask_id=99, share=0.3, generator=generator)
        kept = [token for token in made if token != 99]
        assert kept == sorted(set(kept)) and len(kept) == 40 - 12
        masks += made.count(99)
    # Lengths of mean 3 until 12 are covered, the last cut short: a little more than 4 masks.
    assert 4.0 < masks / n < 5.2
    # Of spans with mean length ½ most are empty, and there are more masks than tokens missing.
    many = kit.denoising.infill(row, mask_id=99, mean_length=0.5, generator=generator).count(99)
    assert 12 < many < 60


@about("denoising")
def test_deletion_keeps_the_order_and_drops_its_share(kit):
    row = list(range(4999))
    made = kit.denoising.delete_tokens(row, share=0.2, generator=seeded())
    assert made == sorted(set(made)) and set(made) <= set(row)
    assert abs(len(made) / 4999 - 0.8) < 5 * (0.16 / 4999) ** 0.5
    assert kit.denoising.delete_tokens([5], share=0.999999, generator=seeded()) == [5]


@about("denoising")
def test_sentences_stay_whole_and_come_in_any_order(kit):
    row, generator = [1, 2, 0, 3, 0, 4, 5], seeded()
    orders = Counter()
    for _ in range(300):
        made = kit.denoising.permute_sentences(row, end_id=0, generator=generator)
        orders[tuple(made)] += 1
    parts = ([1, 2, 0], [3, 0], [4, 5])
    wanted = {tuple(sum(order, [])) for order in itertools.permutations(parts)}
    assert set(orders) == wanted and min(orders.values()) > 20


@about("denoising")
def test_rotation_begins_anywhere(kit):
    generator = seeded()
    made = Counter(tuple(kit.denoising.rotate([1, 2, 3], generator=generator)) for _ in range(300))
    assert set(made) == {(1, 2, 3), (2, 3, 1), (3, 1, 2)} and min(made.values()) > 60
