"""Does GPTQ, which halves the error of each matrix, help the whole model, and on which text?

All linear maps of SmolLM2-135M are rounded to whole numbers of a few bits with a scale for each
row: to the nearest ones, by AWQ, and by GPTQ. The last two see what each map is multiplied with in
help pages: in a few long windows, or in many short ones with each token brought to the same size,
so that the first token of a window, which most heads look at, counts. All inputs are those of the
model before any rounding. What is read afterwards is what `few_bits` reads.

Explained in: chapters/17_hardware_deeper, section "Second order and rotation".
"""

import torch
from torch import Tensor, nn

from tfbook import data, pretrained
from tfbook.experiments.few_bits import losses, maps_of, texts
from tfbook.hardware import Quantised, awq, quantise, restore

__all__ = ["SMOKE", "gptq_in_blocks", "inputs_of", "run"]

SMOKE = {"windows": 1, "length": 8, "layers": 1, "tokens": 64}
CARD = {
    "model": "SmolLM2-135M as its package brings it, 134,515,008 parameters",
    "data": "calibrated on up to {tokens:,} tokens, two texts of {windows} windows of {length} "
    "tokens read afterwards",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}
#: Method, bits, and what it sees: "few" windows, or "many" of them.
ROUNDED = (
    *(("nearest", bits, "") for bits in (3, 5)),
    ("gptq", 4, "few"),
    ("awq", 4, "many"),
    *(("gptq", bits, "many") for bits in (4, 5)),
)
FEW = 128  # tokens that AWQ tries its powers on


def gptq_in_blocks(weight: Tensor, hessian: Tensor, bits: int, *, size: int = 64) -> Quantised:
    """Do what :func:`tfbook.hardware.gptq` does, sooner.

    The errors of a block of columns wait until its end and reach the columns behind it as one
    product. Which numbers come out is the same but for the order of sums.
    """
    codes, scale, zero, _ = quantise(weight, bits)
    left, step = weight.double(), scale[:, 0].double()
    step = step.where(step > 0, 1.0)
    half, columns = 2 ** (bits - 1), weight.shape[1]
    ridge = 0.01 * hessian.diagonal().mean()
    inverse = torch.cholesky_inverse(
        torch.linalg.cholesky(hessian + ridge * torch.eye(columns, dtype=torch.float64))
    )
    factor = torch.linalg.cholesky(inverse, upper=True)
    for start in range(0, columns, size):
        end = min(start + size, columns)
        block, inner = left[:, start:end].clone(), factor[start:end, start:end]
        errors = torch.zeros_like(block)
        for j in range(end - start):
            code = (block[:, j] / step).round().clamp(1 - half, half - 1)  # (N,)
            codes[:, start + j] = code.to(torch.int8)
            errors[:, j] = (block[:, j] - step * code) / inner[j, j]
            block[:, j + 1 :] -= errors[:, j, None] * inner[j, j + 1 :]
        left[:, end:] -= errors @ factor[start:end, end:]
    return Quantised(codes, scale, zero, bits)


def calibration(language: pretrained.Pretrained, tokens: int, length: int) -> Tensor:
    """Return tokens of help pages to calibrate on, in windows."""
    pairs = data.english_french("train")
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    text = " ".join(pairs[i][0] for i in order)
    return language.encode(text[: 12 * tokens])[0, :tokens].view(-1, length)


@torch.inference_mode()
def inputs_of(model: nn.Module, maps: dict[str, nn.Module], ids: Tensor) -> dict[str, Tensor]:
    """Return what each map is multiplied with, (M, D)."""
    seen: dict[str, Tensor] = {}

    def watch(name: str):
        def hook(part: nn.Module, given: tuple[Tensor]) -> None:
            seen[name] = given[0].flatten(0, -2)

        return hook

    hooks = [part.register_forward_pre_hook(watch(name)) for name, part in maps.items()]
    model(ids)
    for hook in hooks:
        hook.remove()
    return seen


def rounded(method: str, weight: Tensor, inputs: Tensor | None, bits: int) -> Tensor:
    """Return what a matrix becomes."""
    if method == "nearest":
        return restore(quantise(weight, bits))
    if method == "awq":
        return awq(weight, inputs[:FEW], bits, steps=5).matrix()
    wide = inputs.double()
    return restore(gptq_in_blocks(weight, wide.T @ wide, bits))


def run(
    windows: int = 8, length: int = 64, layers: int = 30, tokens: int = 2048
) -> tuple[dict, None]:
    """Return the losses of all ways and texts, by window."""
    language = pretrained.load("smollm2-135m")
    model = language.model.requires_grad_(False)
    read, maps = texts(language, windows, length), maps_of(model, layers)
    exact = {name: part.weight for name, part in maps.items()}
    log = {"windows": windows, "length": length, "tokens": tokens, "losses": {}}
    for given in ("", "few", "many"):
        for name, weight in exact.items():
            maps[name].weight = nn.Parameter(weight, requires_grad=False)
        seen = {}
        if given == "few":
            seen = inputs_of(model, maps, calibration(language, tokens // 2, tokens // 16))
        if given == "many":
            seen = inputs_of(model, maps, calibration(language, tokens, tokens // 64))
            sizes = {name: x.square().mean(1, keepdim=True).sqrt() for name, x in seen.items()}
            seen = {name: x / sizes[name] for name, x in seen.items()}  # tokens count alike
        for method, bits, own in ROUNDED:
            if own != given:
                continue
            for name, weight in exact.items():
                new = rounded(method, weight, seen.get(name), bits)
                maps[name].weight = nn.Parameter(new, requires_grad=False)
            way = f"{method}, {bits} bits" + (f", {given} windows" if given else "")
            log["losses"][way] = losses(model, read)
    return log, None
