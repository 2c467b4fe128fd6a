"""debugging_dashboard: four traces of a run with a planted fault, which the reader is to name."""

from collections.abc import Mapping
from functools import partial

from tfbook.teaching.explorables._base import Explorable, boolean, one_of, whole, wrapped

TITLE = "Which fault has this run?"
TRACES = {
    "loss": "loss, nats a letter",
    "norm": "gradient norm",
    "entropy": "entropy of attention, share of even",
    "score": "largest attention score",
}
# Which run is called by which letter.
RUNS = dict(zip("ABCDEFG", "gradients mask scores frozen rate shift head".split(), strict=True))
# What is wrong, the trace that gives it away, how, and the check of tfbook.practice for it.
FAULTS = {
    "rate": (
        "The learning rate is 50 times too high.", "score",
        "The scores begin small, as they should, and grow to thousands within a few steps; the "
        "loss jumps up first and then stays where letters are told by their frequency.",
        "entropy_collapse",
    ),
    "mask": (
        "The causal mask is missing.", "loss",
        "The loss falls far below that of the healthy run, and attention becomes as sharp as in "
        "it: the answer is there to be looked up, behind the place that asks.", "leaks",
    ),
    "shift": (
        "The targets are the inputs themselves.", "entropy",
        "The loss falls to 0 almost at once while attention stays even: no other place is needed "
        "for an answer that stands where it is asked for.", "wrong_shift",
    ),
    "scores": (
        "Queries and keys are drawn much too large.", "entropy",
        "Attention is sharp, and the scores in the hundreds, from the first step on, before "
        "anything was learned.", "entropy_collapse",
    ),
    "gradients": (
        "The gradients are never set to 0.", "norm",
        "The gradient grows with every step, because each is added to all before it.", None,
    ),
    "frozen": (
        "The layers are frozen.", "entropy",
        "Attention stays as even as it was drawn and its scores do not move: only what stands "
        "before and behind the layers learns, and the loss stops early.", "gradient_flow",
    ),
    "head": (
        "The head is drawn 30 times too large.", "loss",
        "The first loss is many times that of knowing nothing, ln 63 = 4.14, and it takes long to "
        "come down; the other traces begin as they should.", "start_loss",
    ),
}  # fmt: skip


def debugging_dashboard(
    log: Mapping, run: str = "A", *, healthy: bool = True, step: int = 295, answer: str = ""
) -> Explorable:
    """Return a figure of a real run with a planted fault, beside one without: what is wrong?

    A decoder of two layers learns to predict the next letter of Shakespeare. The reader sees its
    loss, the length of its gradient, the entropy of its attention and its largest score over 300
    steps, and names the fault.

    Args:
        log: What the experiment "traced_faults" wrote down.
        run: "A" to "G".
        healthy: Whether the run without a fault is drawn too.
        step: Where the traces are read, 0 to 295, to the last multiple of 5.
        answer: What the reader says: "rate", "mask", "shift", "scores", "gradients", "frozen" or
            "head"; "" before that.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range, or the log is of something else.

    Example:
        >>> from tfbook import experiments
        >>> log = experiments.log("traced_faults")
        >>> figure = debugging_dashboard(log, "A", answer="rate")
        >>> figure.right, figure.norm > 50 * figure.healthy_norm
        (False, True)
        >>> figure.answer = "gradients"
        >>> figure.right, figure.tells
        (True, 'norm')

    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    data = _data(log)
    checks = {
        "run": one_of("run", *RUNS),
        "healthy": boolean("healthy"),
        "step": whole("step", 0, data["every"] * (data["points"] - 1)),
        "answer": one_of("answer", "", *FAULTS),
    }
    given = {"run": run, "healthy": healthy, "step": step, "answer": answer}
    state = {name: check(given[name]) for name, check in checks.items()}
    return Explorable(
        "debugging_dashboard", data=data, state=state, checks=checks,
        results=partial(_results, data), text=partial(_text, data),
    )  # fmt: skip


def _data(log: Mapping) -> dict:
    """What the page shows of the log: the runs of its first seed."""
    if not isinstance(log, Mapping):
        raise TypeError(f"log must be a mapping, got {type(log).__name__}")
    if not {"none", *FAULTS} <= set(log.get("runs", ())):
        raise ValueError('log must be that of the experiment "traced_faults", got another one')
    runs = {
        name: {trace: found[trace][0] for trace in TRACES} for name, found in log["runs"].items()
    }
    return {
        "title": TITLE, "traces": TRACES, "runs": RUNS, "every": log["every"], "values": runs,
        "points": len(runs["none"]["loss"]), "even": log["even"],
        "faults": {
            name: {
                "label": label, "trace": trace, "sign": sign, "check": check,
                "found": log["found"][name][:2] if check else None,
            }
            for name, (label, trace, sign, check) in FAULTS.items()
        },
    }  # fmt: skip


def _results(data: dict, now: dict) -> dict:
    fault = RUNS[now["run"]]
    at = now["step"] // data["every"]
    read = {trace: data["values"][fault][trace][at] for trace in TRACES}
    beside = {f"healthy_{trace}": data["values"]["none"][trace][at] for trace in TRACES}
    right = now["answer"] == fault if now["answer"] else None
    return {**read, **beside, "right": right, "tells": FAULTS[fault][1] if right else None}


def _text(data: dict, now: dict) -> str:
    fault = RUNS[now["run"]]

    def along(name, trace):
        values = data["values"][name][trace]
        return ", ".join(f"{values[i]:.3g}" for i in (0, 2, 10, 30, -1))

    lines = "; ".join(
        f"{label}: {along(fault, trace)} (healthy: {along('none', trace)})"
        for trace, label in TRACES.items()
    )
    said = ""
    if now["answer"]:
        label, _, sign, _ = FAULTS[now["answer"]]
        verdict = "Yes" if now["answer"] == fault else "No"
        said = f"\n\nYour answer: {label} {verdict}. Its sign: {sign}"
    return wrapped(f"""{TITLE}

    Run {now["run"]} of a small decoder, at steps 0, 10, 50, 150 and 295. {lines}.

    Its fault is one of these: {" ".join(label for label, *_ in FAULTS.values())}{said}

    In the page the traces are drawn, you choose the fault, and are told which trace gives it
    away.""")
