"""The training loop: what it computes, what it leaves alone, what it refuses."""

import copy
import itertools
import json
import math
import random

import numpy as np
import pytest
import runaway
import torch
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from tfbook.blocks import Block
from tfbook.models import FFN, Attention, Layer, Rotary, TransformerConfig, build
from tfbook.optimization import Adafactor, AdamW, Lion
from tfbook.training import (
    Best,
    attention_entropy,
    files,
    fit,
    last_checkpoint,
    loop,
    processes,
    steps_in,
)

STEPS = 7


def weights(model):
    return {name: x.clone() for name, x in model.state_dict().items()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def line(seed=0):
    """A linear model in float64, and pairs to fit it to."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(5, 3).double()
    return model, [(torch.randn(n, 5).double(), torch.randn(n, 3).double()) for n in (7, 11, 2)]


def squares(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def counted(model, batch):
    x, y = batch
    return (model(x) - y).square().sum(), y.numel()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def simple(model, batches, **choices):
    defaults = {"loss": squares, "optimizer": sgd, "steps": STEPS, "progress": False}
    folder = choices.pop("folder", None)
    return fit(model, batches, **runaway.grouped(folder, **defaults | choices))


# --- what it computes -------------------------------------------------------------------------


def test_it_is_the_loop_that_one_would_write_by_hand():
    model, batches = line()
    other = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.3)
    schedule = LambdaLR(optimizer, lambda step: 1 / (step + 1))
    losses, norms, rates = [], [], []
    for _, batch in zip(range(STEPS), itertools.cycle(batches), strict=False):
        optimizer.zero_grad()
        loss = squares(other, batch)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(other.parameters(), 1.3).item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    found = simple(
        model,
        batches,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.3),
        schedule=lambda step: 1 / (step + 1),
        clip=1.3,
    )
    assert found.losses == losses and found.gradient_norms == norms
    assert found.learning_rates == rates
    assert equal(weights(model), weights(other))
    assert min(norms) < 1.3 < max(norms)  # or clipping was not seen


def test_accumulated_batches_of_unequal_size_are_one_large_batch():
    model, batches = line()
    together = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    whole, parts, means = (copy.deepcopy(model) for _ in range(3))
    one = simple(whole, [together], loss=counted)
    three = simple(parts, batches, loss=counted, accumulate=3)
    simple(means, batches, accumulate=3)  # means of means
    assert three.losses == pytest.approx(one.losses, rel=1e-12)
    assert three.gradient_norms == pytest.approx(one.gradient_norms, rel=1e-12)
    assert three.counts == [60.0] * STEPS
    torch.testing.assert_close(parts.weight, whole.weight, rtol=1e-12, atol=1e-12)
    assert (means.weight - whole.weight).abs().max() > 1e-3


def test_a_sum_and_its_count_are_a_mean():
    model, batches = line()
    other = copy.deepcopy(model)
    a, b = simple(model, batches, loss=squares), simple(other, batches, loss=counted)
    assert a.losses == pytest.approx(b.losses, rel=1e-12)
    assert (a.counts, b.counts) == ([1.0] * STEPS, ([21.0, 33.0, 6.0] * 3)[:STEPS])


@pytest.mark.parametrize("clip", [1e-3, 0.7, 1e3])
def test_a_step_of_gradient_descent_is_never_longer_than_clip_allows(clip):
    model, batches = line()
    before = weights(model)
    found = simple(model, batches, clip=clip, steps=1)
    moved = sum((weights(model)[name] - before[name]).square().sum() for name in before).sqrt()
    assert moved.item() == pytest.approx(0.1 * min(clip, found.gradient_norms[0]), rel=1e-5)


def test_a_schedule_is_a_function_or_a_scheduler():
    a, batches = line()
    b = copy.deepcopy(a)
    optimizer = sgd(b)
    found = simple(a, batches, schedule=lambda step: 0.5 ** (step + 1))
    theirs = LambdaLR(optimizer, lambda step: 0.5 ** (step + 1))
    assert found.learning_rates == [0.1 * 0.5 ** (step + 1) for step in range(STEPS)]
    assert simple(b, batches, optimizer=optimizer, schedule=theirs).losses == found.losses


def test_bfloat16_rounds_the_products_and_keeps_the_weights():
    model = runaway.model(dropout=0.0)
    found = runaway.train(None, steps=3, model=model, precision="bfloat16")
    exact = runaway.train(None, steps=3, model=runaway.model(dropout=0.0))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert found.losses == pytest.approx(exact.losses, rel=2e-2)
    assert found.losses != exact.losses


# --- the data ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["list", "tuple", "function", "loader"])
def test_batches_come_in_order_and_again(kind):
    _, batches = line()
    seen = []

    def loss(model, batch):
        seen.append(batch)
        return squares(model, batch)

    given = {
        "list": batches,
        "tuple": tuple(batches),
        "function": lambda number: batches[number % 3],
        "loader": torch.utils.data.DataLoader(batches, batch_size=None),
    }[kind]
    simple(line()[0], given, loss=loss, accumulate=2, steps=4)
    assert len(seen) == 8
    assert all(torch.equal(seen[i][0], batches[i % 3][0]) for i in range(8))


def test_a_generator_that_ends_is_an_error_that_says_what_to_pass():
    model, batches = line()
    with pytest.raises(ValueError, match="batches gave 3 and then no more.*pass a list"):
        simple(model, (batch for batch in batches))


# --- going on ---------------------------------------------------------------------------------

OPTIMIZERS = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True),
    "ours": lambda model: AdamW(model.parameters(), lr=1e-2),
    "Adafactor": lambda model: Adafactor(model.parameters(), lr=1e-2),
    "Lion": lambda model: Lion(model.parameters(), lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_in_parts_is_the_run_with_any_optimizer(tmp_path, name):
    whole, parts = runaway.model(), runaway.model()
    choices = {"optimizer": OPTIMIZERS[name]}
    wanted = runaway.train(None, steps=STEPS, model=whole, **choices)
    for steps in (2, 3, STEPS):
        found = runaway.train(str(tmp_path), steps=steps, model=parts, **choices)
        if steps < STEPS:
            parts = build(parts.config)  # other weights, which must not matter
    assert found.losses == wanted.losses
    assert equal(weights(parts), weights(whole))


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: CosineAnnealingLR(optimizer, T_max=5),
        lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (step + 1)),
    ],
    ids=["cosine", "lambda"],
)
def test_a_scheduler_goes_on_where_it_was(tmp_path, make):
    def run(folder, steps):
        model = runaway.model()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        schedule = make(optimizer)
        return runaway.train(
            folder, steps=steps, model=model, optimizer=optimizer, schedule=schedule
        )

    wanted = run(None, STEPS)
    run(str(tmp_path), 3)
    found = run(str(tmp_path), STEPS)
    assert (found.losses, found.learning_rates) == (wanted.losses, wanted.learning_rates)


@pytest.mark.untyped  # the check of types draws random numbers of its own
def test_random_numbers_of_python_and_numpy_go_on_too(tmp_path):
    def loss(model, tokens):
        value, count = runaway.loss(model, tokens)
        return value * (random.random() + np.random.rand()), count

    wanted = runaway.train(None, steps=STEPS, loss=loss)
    runaway.train(str(tmp_path), steps=3, loss=loss)
    random.seed(0), np.random.seed(0)
    assert runaway.train(str(tmp_path), steps=STEPS, loss=loss).losses == wanted.losses


@pytest.mark.parametrize("batches", ["list", "function"])
def test_the_place_in_a_list_and_of_a_function_is_kept(tmp_path, batches):
    tokens = [torch.randint(0, 13, (3, 7), generator=torch.manual_seed(i)) for i in range(5)]
    given = tokens if batches == "list" else lambda number: tokens[number % 5]
    wanted = runaway.train(None, steps=STEPS, batches=given)
    runaway.train(str(tmp_path), steps=3, batches=given)
    assert runaway.train(str(tmp_path), steps=STEPS, batches=given).losses == wanted.losses


def test_each_process_has_random_numbers_of_its_own(monkeypatch):
    class Second(processes.Ranks):
        def __init__(self):
            super().__init__()
            self.rank = 1

    def loss(model, batch):
        assert torch.initial_seed() == 12
        return squares(model, batch)

    monkeypatch.setattr(loop, "Ranks", Second)
    simple(*line(), loss=loss, seed=11, steps=1)


def test_a_finished_run_is_loaded_and_draws_nothing(tmp_path):
    wanted = runaway.train(str(tmp_path), steps=3)
    model = runaway.model()
    found = runaway.train(str(tmp_path), steps=3, model=model, batches=lambda number: 1 / 0)
    assert found.losses == wanted.losses and len(found) == 3
    assert not equal(weights(model), weights(runaway.model()))


def test_a_damaged_checkpoint_costs_its_steps_and_nothing_else(tmp_path):
    wanted = runaway.train(None, steps=STEPS)
    runaway.train(str(tmp_path), steps=5)
    file = tmp_path / "step-00000005" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="cut short.*step-00000004"):
        found = runaway.train(str(tmp_path), steps=STEPS)
    assert found.losses == wanted.losses
    assert steps_in(tmp_path) == [6, 7]


DIFFERENT = {
    "clip is 0.9 there and 1.1 here": {"clip": 1.1},
    "accumulate is 2 there and 3 here": {"accumulate": 3},
    "seed is 5 there and 6 here": {"seed": 6},
    "precision is": {"precision": "bfloat16"},
    "optimizer is 'AdamW' there and 'SGD' here": {"optimizer": sgd},
    "groups is .*'initial_lr': 0.01.* there and .*'initial_lr': 0.02": {
        "optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=2e-2)
    },
    "model is 'DecoderOnly' there and 'Linear' here": {"model": torch.nn.Linear(2, 3)},
    "config is": {
        "model": build(
            TransformerConfig(13, 8, decoder=[Layer(Attention(2, position=Rotary()), FFN(17))] * 2)
        )
    },
}


@pytest.mark.parametrize("message", DIFFERENT)
def test_the_checkpoint_of_another_run_is_refused_and_kept(tmp_path, message):
    runaway.train(str(tmp_path), steps=2)
    with pytest.raises(ValueError, match=f"step 2 in .* is of another run: .*{message}"):
        runaway.train(str(tmp_path), steps=3, **DIFFERENT[message])
    assert steps_in(tmp_path) == [2]


def test_weights_of_another_shape_are_refused_by_name(tmp_path):
    simple(torch.nn.Linear(5, 3).double(), line()[1], folder=tmp_path, steps=1)
    message = r"weight has shape \(3, 5\) there and \(5, 3\) here"
    with pytest.raises(ValueError, match=message):
        simple(torch.nn.Linear(3, 5), line()[1], folder=tmp_path)


def test_as_many_checkpoints_are_kept_as_were_asked_for(tmp_path):
    runaway.train(str(tmp_path / "three"), steps=STEPS, save_every=1, keep=3)
    assert steps_in(tmp_path / "three") == [5, 6, 7]
    runaway.train(str(tmp_path / "one"), steps=STEPS, save_every=3, keep=1)
    assert steps_in(tmp_path / "one") == [7]


def test_a_run_does_not_begin_over_another(tmp_path):
    runaway.train(str(tmp_path), steps=1)
    with pytest.raises(ValueError, match="holds checkpoints already: go on with resume=True"):
        runaway.train(str(tmp_path), steps=3, resume=False)


# --- looking on -------------------------------------------------------------------------------


def test_looking_on_does_not_change_the_run():
    def look(model):
        assert not model.training and not torch.is_grad_enabled()
        torch.rand(3), random.random(), np.random.rand()
        return 1.0

    model = runaway.model()
    frozen = next(module for module in model.modules() if isinstance(module, Block))
    wanted = runaway.train(None, steps=STEPS)
    found = runaway.train(
        None, steps=STEPS, model=model, every=2, evaluate=look, monitors={"x": lambda m, b: look(m)}
    )
    assert found.losses == wanted.losses
    assert [each["after"] for each in found.evaluations] == [2, 4, 6, 7]
    assert found.monitored[0] == {"after": 2, "x": 1.0}
    assert model.training and frozen.training


def test_a_run_that_gets_no_better_stops_and_goes_back_to_its_best(tmp_path):
    values = iter([5.0, 3.0, 4.0, 3.5, 9.0, 9.0])
    seen = []

    def evaluate(model):
        seen.append(weights(model))
        return {"loss": next(values), "accuracy": 0.5}

    model = runaway.model()
    choices = {"evaluate": evaluate, "every": 2, "patience": 2, "save_every": 5}
    found = runaway.train(str(tmp_path), steps=20, model=model, **choices)
    assert (len(found), found.best_step, found.stopped) == (8, 4, "patience")
    assert equal(weights(model), seen[1])
    again = runaway.model()  # what has stopped stays so, with its best weights
    found = runaway.train(str(tmp_path), steps=20, model=again, **choices)
    assert (len(found), found.best_step, found.stopped) == (8, 4, "patience")
    assert equal(weights(again), seen[1])


def test_patience_is_kept_over_a_stop(tmp_path):
    choices = {"every": 1, "patience": 3}
    runaway.train(str(tmp_path), steps=2, evaluate=lambda model: 1.0, **choices)
    found = runaway.train(str(tmp_path), steps=20, evaluate=lambda model: 2.0, **choices)
    assert (len(found), found.best_step) == (4, 1)


def test_the_log_has_a_line_for_each_step_and_evaluation(tmp_path):
    found = runaway.train(str(tmp_path), steps=3, evaluate=lambda model: 2.5, every=2)
    path = tmp_path / "log.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["loss"] for entry in entries if "step" in entry] == found.losses  # every digit
    assert [entry for entry in entries if "after" in entry] == found.evaluations
    with path.open("a") as file:
        file.write('{"step": 3, "loss": 1.0}\n{"step": 4, "lo')  # killed in the middle of a line
    runaway.train(str(tmp_path), steps=5, evaluate=lambda model: 2.5, every=2)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["step"] for entry in entries if "step" in entry] == list(range(5))
    assert [entry["after"] for entry in entries if "after" in entry] == [2, 3, 4, 5]


@pytest.mark.untyped
def test_a_log_takes_the_place_of_a_log_and_of_nothing_else(tmp_path):
    path = tmp_path / "notes.txt"
    for content in (b"mine", b"mine\n\xff\n", b'{"name": "mine"}\n', b"[" * 200_000, b'"a"\n3\n'):
        path.write_bytes(content)
        with pytest.raises(FileExistsError, match="log must be a new file .*notes.txt"):
            runaway.train(None, steps=1, log=path)
        assert path.read_bytes() == content
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    for place in (link, tmp_path):
        with pytest.raises(FileExistsError, match="log must be a file of its own"):
            runaway.train(None, steps=1, log=place)
    assert path.read_bytes() == content
    (tmp_path / "log.jsonl.new").symlink_to(path)
    (tmp_path / "log.jsonl").write_bytes(b'{"step": 0, "lo')  # of a run killed in its first step
    for steps in (3, 2):
        runaway.train(None, steps=steps, log=tmp_path / "log.jsonl")
        assert len((tmp_path / "log.jsonl").read_text().splitlines()) == steps
    assert path.read_bytes() == content


def test_a_line_of_the_log_that_is_no_text_is_left_out(tmp_path):
    runaway.train(str(tmp_path), steps=2)
    path = tmp_path / "log.jsonl"
    path.write_bytes(path.read_bytes() + b'\xff\xfe\n{"step": "three"}\n')
    runaway.train(str(tmp_path), steps=3)
    assert [json.loads(each)["step"] for each in path.read_text().splitlines()] == [0, 1, 2]


@pytest.mark.untyped
@pytest.mark.skipif(files.fcntl is None, reason="Windows holds no folder")
def test_two_trainings_do_not_share_a_folder(tmp_path):
    def evaluate(model):
        with pytest.raises(BlockingIOError, match=f"another training is writing into {tmp_path}"):
            runaway.train(str(tmp_path), steps=5)
        return 1.0

    found = runaway.train(str(tmp_path), steps=4, evaluate=evaluate, every=2)
    assert len(found.evaluations) == 2 and steps_in(tmp_path) == [2, 4]
    with pytest.raises(ValueError, match="of another run"):
        runaway.train(str(tmp_path), steps=5, clip=1.1)
    assert len(runaway.train(str(tmp_path), steps=5)) == 5  # who has ended, well or badly, lets go


def test_what_was_seen_is_reported_with_all_before_it():
    said = []
    model, batches = line()
    look = {"evaluate": lambda model: 2.0, "every": 3}
    simple(model, batches, report=lambda history: said.append(len(history.evaluations)), **look)
    assert said == [1, 2, 3]


def test_the_bar_goes_to_where_errors_go(capfd):
    model, batches = line()
    simple(model, batches, progress=True)
    out, err = capfd.readouterr()
    assert out == "" and "7/7" in err and "loss" in err


def test_attention_that_looks_at_all_keys_alike_has_the_entropy_of_their_number():
    model = runaway.model().eval()
    tokens = torch.randint(0, 13, (3, 7), generator=torch.manual_seed(0))
    spread = attention_entropy(model, tokens)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name:
                parameter.zero_()
    uniform = sum(math.log(i) for i in range(1, 8)) / 7  # query i sees i keys
    assert attention_entropy(model, (tokens, None)) == pytest.approx([uniform] * 2, rel=1e-5)
    assert all(0 < each < uniform for each in spread)


# --- what it refuses --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_that_is_no_number_ends_the_run_before_the_weights_are_touched(value, where):
    model, batches = line()
    before = []

    def loss(model, batch):
        found = squares(model, batch)
        if len(before) == 2:
            # The root has an infinite slope at 0, where it is 0.
            wrong = (found - found.detach()).abs().sqrt()
            return found * value if where == "loss" else found + wrong
        before.append(None)
        return found

    kept = []

    def schedule(step):
        kept.append(weights(model))
        return 1.0

    with pytest.raises(FloatingPointError, match=f"the .*{where} is .* at step 2"):
        simple(model, batches, loss=loss, schedule=schedule)
    assert equal(weights(model), kept[2])


@pytest.mark.untyped
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nothing_that_is_no_number_is_trained_on_or_kept(tmp_path, value):
    """A rate, the loss of an evaluation, weights: each ends the run, the checkpoint stays."""
    lost = {
        f"learning rate must be finite, got {value} at step 3": {
            "schedule": lambda step: value if step == 3 else 1.0
        },
        f"loss of the evaluation is {value} after 3 steps": {
            "evaluate": lambda model: value if model.steps == 3 else 1.0,
            "every": 1,
        },
        "a weight of .* is not finite after 4 steps": {"hurt": 4},
    }
    for number, (message, choices) in enumerate(lost.items()):
        model, hurt = runaway.model(), choices.pop("hurt", None)
        model.steps = 0

        class Counting(torch.optim.SGD):
            def step(self, closure=None, model=model, hurt=hurt):
                super().step(closure)
                model.steps += 1
                if model.steps == hurt:
                    torch.nn.init.constant_(next(model.parameters()), value)

        folder = str(tmp_path / str(number))
        make = {"model": model, "optimizer": lambda model: Counting(model.parameters(), lr=0.01)}
        with pytest.raises((ValueError, FloatingPointError), match=message):
            runaway.train(folder, steps=4, **make, **choices)
        assert steps_in(folder) == [2]
        kept = last_checkpoint(folder)
        assert all(x.isfinite().all() for x in kept.model.values())


def test_a_loss_that_is_no_number_is_never_the_best():
    best, model = Best(patience=3), torch.nn.Linear(1, 1)
    for step, loss in enumerate([math.nan, 2.0, math.nan, 1.0, 1.5]):
        best.see(step, loss, model)
    assert (best.loss, best.step, best.waited) == (1.0, 3, 1)


@pytest.mark.untyped
@pytest.mark.parametrize(
    "message, choices",
    [
        ("steps must be at least 1, got 0", {"steps": 0}),
        ("accumulate must be at least 1, got 0", {"accumulate": 0}),
        ("clip must be finite and above 0, got 0", {"clip": 0}),
        ("precision must be one of float32, bfloat16, got 'half'", {"precision": "half"}),
        ("every must be at least 1", {"every": 0}),
        ("every must be at least 1", {"folder": "run", "save_every": 0}),
        ("keep must be at least 1", {"folder": "run", "keep": 0}),
        ("resume must be True or False, got str", {"folder": "run", "resume": "yes"}),
        ("folder must be a path, got int", {"folder": 5}),
        ("patience must be at least 1", {"patience": 0, "evaluate": len}),
        ("patience waits for .* evaluate", {"patience": 2}),
        ("evaluate must be a function of the model, got float", {"evaluate": 0.5}),
        ("monitors must be functions by name, a dictionary, got list", {"monitors": [len]}),
        ("shard must be True or False, got int", {"shard": 1}),
        ("progress must be True or False, got int", {"progress": 1}),
        ("optimizer must be an optimizer or a function", {"optimizer": 0.1}),
        ("optimizer must hold parameters of the model", {"optimizer": sgd(line()[0])}),
        ("schedule must be a function .* got float", {"schedule": 0.5}),
        ("loss must return a tensor.* got float", {"loss": lambda model, batch: 0.5}),
        (r"loss must return one .* \(7, 3\)", {"loss": lambda model, batch: model(batch[0])}),
        ("must depend on the weights", {"loss": lambda model, batch: torch.tensor(1.0)}),
        ("at least one term, got none at step 0", {"loss": lambda m, b: (counted(m, b)[0], 0)}),
        ("shard=True takes optimizer= as a function", {"shard": True, "optimizer": None}),
        ("shard=True cuts weights .* and there is one", {"shard": True}),
        ("model must be a module, got str", {"model": "gpt2"}),
        ("batches must hold at least one", {"batches": []}),
        ("batches must be a list, a function .* got int", {"batches": 5}),
        ("the place in the data must be known.* got generator", {"batches": iter([1]), "here": 1}),
        ('"loss" among', {"patience": 1, "evaluate": lambda model: {"accuracy": 1.0}, "every": 1}),
    ],
)
def test_bad_arguments_are_refused(tmp_path, message, choices):
    model, batches = line()
    choices = dict(choices)
    if "optimizer" in choices and choices["optimizer"] is None:
        choices["optimizer"] = sgd(model)
    if choices.pop("here", None):
        choices |= {"folder": tmp_path, "batches": (batch for batch in batches)}
    model, batches = choices.pop("model", model), choices.pop("batches", batches)
    with pytest.raises((TypeError, ValueError), match=message):
        simple(model, batches, **choices)


@pytest.mark.untyped
@pytest.mark.parametrize(
    "message, choices",
    [
        ("execution must be of class Execution, got str", {"execution": "bfloat16"}),
        ("monitoring must be of class Monitoring, got dict", {"monitoring": {}}),
        ("checkpointing must be of class Checkpointing, got str", {"checkpointing": "run"}),
        ("unexpected keyword argument 'checkpoint'", {"checkpoint": "run"}),
    ],
)
def test_groups_of_choices_are_no_plain_values(message, choices):
    model, batches = line()
    with pytest.raises(TypeError, match=message):
        fit(model, batches, loss=squares, optimizer=sgd, steps=1, progress=False, **choices)


@pytest.mark.untyped
def test_a_model_without_attention_has_no_entropy():
    with pytest.raises(TypeError, match="attention_weights.*, which Linear has not"):
        attention_entropy(torch.nn.Linear(2, 3), torch.zeros(1, 2))


def test_the_functional_reference_is_the_loss_that_is_trained():
    model, tokens = runaway.model(0.0), next(iter(runaway.Loader()))
    with torch.no_grad():
        logits, _ = model(tokens[:, :-1])
    wanted = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()
    found = runaway.train(None, steps=1, model=model, accumulate=1)
    assert found.losses == pytest.approx([wanted], rel=1e-6)
