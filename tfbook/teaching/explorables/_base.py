"""What all explorables share: their mime bundle, their link to the browser, checks of input."""

import html
import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tfbook.teaching.boxes import box
from tfbook.teaching.explorables._asked import ASKED

FOLDER = Path(__file__).parent
NAMES = (
    "alignment_viewer",
    "attention_steps",
    "byte_pairs",
    "cache_growth",
    "compute_budget",
    "continuous_batching",
    "cost_calculator",
    "debugging_dashboard",
    "delta_rule",
    "encoding_wavelengths",
    "expert_routing",
    "explain",
    "float_bits",
    "head_viewer",
    "induction_head",
    "live_model",
    "live_training",
    "live_translator",
    "next_token_sampling",
    "one_average",
    "optimizer_paths",
    "patching_grid",
    "pipeline_schedule",
    "predict",
    "quantisation_error",
    "quiz",
    "relative_bias_shapes",
    "rollout_stepper",
    "roofline",
    "rope_rotation",
    "scan_tree",
    "schedule_designer",
    "shape_tracer",
    "soft_lookup_plane",
    "softmax_temperature",
    "sparsity_designer",
    "stepper",
    "training_planner",
)
# What is asked and answered; everything else is moved.
QUESTIONS = ("quiz", "predict", "explain")
# What modules import, each from those before it.
HELPERS = (
    "shared", "asking", "shades", "maps", "workers", "tensors", "language_model",
    "translation_model", "training_model", "kept_model",
)  # fmt: skip


@cache
def module_source(name: str) -> str:
    """Return the JavaScript of one explorable as a self-contained ES module.

    NAME.js imports its helpers from shared.js, and a question from asking.js too; here they are put
    in place of the imports, since a module that is loaded from a blob has no neighbours. What the
    figure asks stands before it all.

    Raises:
        ValueError: if there is no explorable of that name, or NAME.js imports anything else.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    source = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
    for helper in reversed(HELPERS):
        line = rf'^import \{{[^}}]*\}} from "\./{helper}\.js";\n'
        source, imports = re.subn(line, "", source, flags=re.M)
        if imports:
            text = (FOLDER / f"{helper}.js").read_text(encoding="utf-8")
            source = re.sub(r"^export (?=const |function )", "", text, flags=re.M) + source
        elif helper == "shared":
            raise ValueError(f"{name}.js must import from ./shared.js")
    if re.search(r"^import ", source, flags=re.M):
        raise ValueError(f"{name}.js must import from {', '.join(HELPERS)} and from nothing else")
    if name in ASKED:
        source = f"const ASKED = {json.dumps(ASKED[name], ensure_ascii=False)};\n{source}"
    return source


@cache
def style_source() -> str:
    """Return the style sheet that all explorables share."""
    return (FOLDER / "explorables.css").read_text(encoding="utf-8")


class Explorable:
    """A figure with controls, or a quiz, that a notebook cell displays.

    The values of its controls are attributes that can be read and set; in a live notebook they
    follow the browser and the browser follows them. What the figure computes from them can be
    read too. `dir(figure)` lists both, `figure.widget` is the live widget (for `observe`).

    Raises:
        AttributeError: on a name that is neither a control nor a result.
        TypeError: when a control is set to a value of another kind.
        ValueError: when a control is set to a value out of range.
    """

    def __init__(
        self,
        module: str,
        *,
        data: Mapping,
        state: Mapping,
        checks: Mapping[str, Callable],
        results: Callable[[dict], dict],
        text: Callable[[dict], str],
        body: str | None = None,
    ):
        """Keep constants, controls with a check each, results, and the text alternative.

        `text` gives the text form for the present values: a title, an empty line, paragraphs.
        `body` is the same as HTML; by default its paragraphs.
        """
        assert set(state) == set(checks)
        own = {
            "module": module, "data": dict(data), "_state": dict(state), "_checks": dict(checks),
            "_results": results, "_text": text, "_body": body, "_widget": None,
        }  # fmt: skip
        self.__dict__.update(own)

    @property
    def widget(self):
        """The live widget, made when it is first asked for.

        Raises:
            ImportError: if anywidget is not installed.
        """
        if self._widget is None:
            self.__dict__["_widget"] = _widget_class(self.module, tuple(self._state))(
                data=self.data, **self._state
            )
        return self._widget

    def results(self) -> dict:
        """Return what the figure computes from the present values of its controls."""
        return self._results(self._now())

    def __getattr__(self, name: str):
        if not name.startswith("_"):
            now = self._now()
            if name in now:
                return now[name]
            results = self._results(now)
            if name in results:
                return results[name]
        known = f"{', '.join([*self._state, *self.results()])}" if "_state" in self.__dict__ else ""
        raise AttributeError(f"this {type(self).__name__} has no {name!r}; it has {known}")

    def __setattr__(self, name: str, value) -> None:
        if name not in self._checks:
            raise AttributeError(
                f"only controls can be set ({', '.join(self._checks)}), got {name!r}"
            )
        value = self._checks[name](value)
        self._state[name] = value
        if self._widget is not None:
            setattr(self._widget, name, value)

    def __dir__(self):
        return [*super().__dir__(), *self._state, *self.results()]

    def __repr__(self) -> str:
        return self._text(self._now())

    def _now(self) -> dict:
        if self._widget is None:
            return dict(self._state)
        return {name: getattr(self._widget, name) for name in self._state}

    def _html(self) -> str:
        # "<" would let a text end the script element.
        payload = json.dumps({"data": self.data, **self._now()}, ensure_ascii=False)
        payload = payload.replace("<", "\\u003c")
        # Said in a notebook that was not run; the page, where the figure lives, hides it.
        run = (
            "To answer, run the imports at the top and then this cell (Shift+Enter)."
            if self.module in QUESTIONS
            else "To move the figure, run the notebook up to here."
        )
        return (
            f'<div class="tfbook-explorable" data-module="{self.module}">\n'
            f'<script type="application/json">{payload}</script>\n'
            f'<div class="tfx-text" style="{box("blue")}">\n'
            f"{self._body or _paragraphs(repr(self))}\n"
            f'<p class="tfx-run" style="opacity: 0.75">{run}</p>\n</div>\n</div>'
        )

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        bundle = {"text/plain": repr(self), "text/html": self._html()}
        if _live():
            try:
                view = self.widget._repr_mimebundle_()
            except ImportError:
                view = None  # without anywidget the notebook shows the text alternative
            # anywidget answers with the bundle alone or with its metadata beside it.
            view = view[0] if isinstance(view, tuple) else view
            key = "application/vnd.jupyter.widget-view+json"
            if view and key in view:
                bundle[key] = view[key]
        return bundle


class LazyExplorable(Explorable):
    """A figure that needs a file of numbers, which it gets when the reader asks for it.

    The page has the file beside the modules; in JupyterLab Python hands it over, as `file` among
    the data, once the control `asked` is true.
    """

    def __init__(self, module: str, *, file: Callable[[], Any], **given):
        """Keep what makes the file, and all that a figure has."""
        super().__init__(module, **given)
        self.__dict__["_file"] = file

    @property
    def widget(self):
        """The live widget, made when it is first asked for."""
        first = self._widget is None
        made = super().widget
        if first:
            made.observe(self._hand_over, "asked")
            self._hand_over({"new": self._state["asked"]})
        return made

    def _hand_over(self, change: Mapping) -> None:
        if change["new"] and "file" not in self._widget.data:
            self._widget.data = {**self.data, "file": self._file()}


def _live() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


@cache
def _widget_class(module: str, controls: tuple[str, ...]):
    import anywidget
    import traitlets

    members = {name: traitlets.Any().tag(sync=True) for name in (*controls, "data")}
    members |= {"_esm": module_source(module), "_css": style_source()}
    return type("ExplorableWidget", (anywidget.AnyWidget,), members)


def wrapped(text: str) -> str:
    """Return the paragraphs of a text in lines of at most 88 characters."""
    return "\n\n".join(textwrap.fill(" ".join(p.split()), 88) for p in text.split("\n\n"))


def _paragraphs(text: str) -> str:
    title, *rest = text.split("\n\n")
    parts = [f"<p><strong>{html.escape(title)}</strong></p>"]
    return "\n".join(parts + [f"<p>{html.escape(' '.join(p.split()))}</p>" for p in rest])


# ------------------------------------------------------------------------------- checks of input


def number(name: str, low: float = -math.inf, high: float = math.inf) -> Callable:
    """Return a check that lets numbers from `low` to `high` through, as float."""

    def check(value):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            if not hasattr(value, "item") or getattr(value, "ndim", 0):
                raise TypeError(f"{name} must be a number, got {type(value).__name__}")
            value = value.item()
        if not low <= value <= high or not math.isfinite(value):
            raise ValueError(f"{name} must be between {low:g} and {high:g}, got {value}")
        return float(value)

    return check


def whole(name: str, low: int, high: int) -> Callable:
    """Return a check that lets whole numbers from `low` to `high` through."""

    def check(value):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, got {type(value).__name__}")
        if not low <= value <= high:
            raise ValueError(f"{name} must be between {low} and {high}, got {value}")
        return value

    return check


def boolean(name: str) -> Callable:
    """Return a check that lets True and False through."""

    def check(value):
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {type(value).__name__}")
        return value

    return check


def one_of(name: str, *options: str) -> Callable:
    """Return a check that lets one of the options through."""

    def check(value):
        if value not in options:
            raise ValueError(f"{name} must be one of {', '.join(options)}, got {value!r}")
        return value

    return check


def vector(name: str, size: int | None, low: float = -1e6, high: float = 1e6) -> Callable:
    """Return a check that lets a sequence of `size` numbers through, as a list of floats."""
    entry = number(f"an entry of {name}", low, high)

    def check(value):
        if hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{name} must be a list of numbers, got {type(value).__name__}")
        if len(value) != size if size is not None else not value:
            raise ValueError(f"{name} must have {size or 'at least 1'} numbers, got {len(value)}")
        return [entry(x) for x in value]

    return check


def matrix(name: str, rows: int | None, cols: int | None = None) -> Callable:
    """Return a check that lets rows of numbers of one length through, as lists of floats."""

    def check(value):
        if hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, (list, tuple)) or not value:
            raise TypeError(f"{name} must be a list of rows, got {type(value).__name__}")
        if rows is not None and len(value) != rows:
            raise ValueError(f"{name} must have {rows} rows, got {len(value)}")
        first = vector(f"{name} row 0", cols)(value[0])
        return [first] + [
            vector(f"{name} row {i}", len(first))(row) for i, row in enumerate(value[1:], start=1)
        ]

    return check
