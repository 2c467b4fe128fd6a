"""The arithmetic of a figure's module in Node, without a page, and with planted bugs."""

import json

from tests.package.node import NodePage
from tfbook.teaching import explorables


class Figures:
    """Functions of the modules, called from Python."""

    def __init__(self):
        """Start Node."""
        self.page = NodePage()
        self.loaded = {}

    def load(self, name, functions, edits=()):
        """Read a module, with edits (old, new), and keep some of its functions."""
        if self.loaded.get(name) == (functions, edits):
            return
        source = explorables.module_source(name)
        for old, new in edits:
            assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {name}.js"
            source = source.replace(old, new)
        source = source.replace("export default", "const figure =")
        self.page.evaluate(
            f"(() => {{ {source}\nglobalThis.{name} = {{ {functions} }}; return true; }})()"
        )
        self.loaded[name] = functions, edits

    def call(self, name, function, *given):
        """Return what a function of a module gives; infinity and NaN stay what they are."""
        kept = "(_, x) => typeof x === 'number' && !Number.isFinite(x) ? `number ${x}` : x"
        text = self.page.evaluate(
            f"(given) => JSON.stringify({name}.{function}(...given), {kept})", list(given)
        )
        return _numbers(text)

    def close(self):
        """End Node."""
        self.page.close()


def _numbers(text):
    words = {"number NaN": float("nan"), "number Infinity": float("inf")}
    words["number -Infinity"] = -float("inf")

    def read(value):
        if isinstance(value, dict):
            return {key: read(each) for key, each in value.items()}
        if isinstance(value, list):
            return [read(each) for each in value]
        return words.get(value, value) if isinstance(value, str) else value

    return read(json.loads(text))
