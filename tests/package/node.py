"""The JavaScript of the figures as one module, and Node with the `evaluate` of a browser's page."""

import json
import re
import shutil
import subprocess

from tfbook.teaching.explorables import _base

NODE = shutil.which("node")
# A line in asks for {code, given}, a line out answers {value} or {error}.
SERVE = """
globalThis.window = globalThis;
require('node:readline').createInterface({ input: process.stdin }).on('line', async (line) => {
  const { code, given } = JSON.parse(line);
  let answer;
  try {
    const value = (0, eval)(`(${code})`);
    answer = { value: (await (typeof value === 'function' ? value(given) : value)) ?? null };
  } catch (error) {
    answer = { error: String(error?.stack ?? error) };
  }
  process.stdout.write(JSON.stringify(answer) + '\\n');
});
"""


def library(names, edits=()):
    """The text of some files of the figures as one module, with edits: (file, old, new)."""
    text = ""
    for name in names:
        part = (_base.FOLDER / f"{name}.js").read_text(encoding="utf-8")
        for file, old, new in edits:
            if file == name:
                assert part.count(old) == 1, f"{old!r} stands {part.count(old)} times in {name}.js"
                part = part.replace(old, new)
        text += re.sub(r"^import .*\n", "", part, flags=re.M)
    return text


class NodePage:
    """What a page of a browser can compute, without one."""

    def __init__(self):
        """Start Node."""
        self.process = subprocess.Popen(
            [NODE, "-e", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            encoding="utf-8",
        )  # fmt: skip

    def evaluate(self, code, given=None):
        """Return what an expression gives, or a function of the given value."""
        self.process.stdin.write(json.dumps({"code": code, "given": given}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def close(self):
        """End it."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
