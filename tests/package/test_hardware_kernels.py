"""Kernels in Triton: the numbers of the reference, on a GPU or in Triton's interpreter.

`pip install triton` (Linux) and `TRITON_INTERPRET=1`, or a GPU, and they run; else what they check
before they begin is tested alone.
"""

import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tfbook.attention import attend
from tfbook.hardware import attend_triton, kernels, softmax_triton, triton_runs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(
    not triton_runs(),
    reason="needs triton, and a GPU or TRITON_INTERPRET=1 in the environment",
)


def drawn(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def exact(q, k, v, **options):
    """The reference in float64, with the log-sum-exp of its scores."""
    return attend(q.double(), k.double(), v.double(), return_lse=True, **options)


def close(found, right, most):
    return (found.double() - right).abs().max() <= most * max(1.0, float(right.abs().max()))


@needs_triton
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "m"), [(37, 37), (1, 41), (19, 53), (64, 32), (53, 19)])
def test_attention_is_that_of_the_reference(n, m, causal):
    q, k, v = drawn(2, 3, n, 11), drawn(2, 3, m, 11, seed=1), drawn(2, 3, m, 7, seed=2)
    found, lse = attend_triton(q, k, v, causal=causal, return_lse=True, rows=16, cols=32)
    right, logs = exact(q, k, v, causal=causal)
    seen = torch.isfinite(logs)
    assert close(found, right, 5e-6) and close(lse[seen], logs[seen], 5e-6)
    assert (lse[~seen] == -torch.inf).all() and (found[~seen] == 0).all()
    assert (~seen).any() == (causal and n > m)


@needs_triton
def test_tiles_of_any_size_give_the_same():
    q, k, v = (drawn(1, 70, 16, seed=i) for i in range(3))
    first = attend_triton(q, k, v, causal=True, rows=16, cols=16)
    for rows, cols in ((16, 64), (64, 16), (128, 128)):
        other = attend_triton(q, k, v, causal=True, rows=rows, cols=cols)
        assert (first - other).abs().max() < 2e-6


@needs_triton
def test_large_scores_do_not_overflow_and_another_scale_counts():
    q, k, v = (drawn(29, 13, seed=i) for i in range(3))
    assert close(attend_triton(100 * q, k, v), exact(100 * q, k, v)[0], 2e-4)
    assert close(attend_triton(q, k, v, scale=0.9), exact(q, k, v, scale=0.9)[0], 5e-6)


@needs_triton
def test_leading_dimensions_broadcast_and_may_be_none():
    q, k, v = drawn(3, 1, 17, 8), drawn(2, 23, 8, seed=1), drawn(23, 5, seed=2)
    found = attend_triton(q, k, v)
    assert found.shape == (3, 2, 17, 5) and close(found, exact(q, k, v)[0], 5e-6)
    q = drawn(4, 31, 16).mT  # not contiguous
    assert close(attend_triton(q, q, q), exact(q, q, q)[0], 5e-6)
    assert attend_triton(q[:, :0], q, q).shape == (4, 0, 31)
    nothing = attend_triton(q, q[:, :0], q[:, :0])
    assert (nothing == 0).all() and nothing.shape == q.shape


@needs_triton
@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 2e-3), (torch.bfloat16, 1.4e-2)])
def test_half_precision_rounds_weights_and_output(dtype, most):
    q, k, v = (drawn(2, 40, 16, dtype=dtype, seed=i) for i in range(3))
    found = attend_triton(q, k, v, causal=True)
    assert found.dtype == dtype and close(found, exact(q, k, v, causal=True)[0], most)
    assert softmax_triton(q).dtype == dtype
    assert close(softmax_triton(q), q.double().softmax(-1), most)


@needs_triton
def test_softmax_is_that_of_pytorch_and_zero_where_nothing_is_allowed():
    for shape in ((5, 37), (1,), (3, 2, 64), (4, 1000), (0, 7)):
        x = 30 * drawn(*shape)
        right = x.double().softmax(-1)
        assert softmax_triton(x).shape == x.shape
        assert x.numel() == 0 or close(softmax_triton(x), right, 1e-6)
    x = drawn(3, 11)
    x[1], x[2, 4:] = -torch.inf, -torch.inf
    found = softmax_triton(x)
    assert (found[1] == 0).all() and (found[2, 4:] == 0).all()
    assert close(found[[0, 2]].sum(-1), torch.ones(2, device=DEVICE).double(), 1e-6)
    turned = drawn(9, 6).mT  # not contiguous
    assert close(softmax_triton(turned), turned.double().softmax(-1), 1e-6)


@needs_triton
def test_planted_bugs_are_caught(tmp_path):
    """Each edit of the kernels' text must show as another result."""
    import importlib.util

    from tfbook.hardware import triton_kernels

    source = Path(triton_kernels.__file__).read_text(encoding="utf-8")
    q, k, v = drawn(2, 37, 11), drawn(2, 53, 11, seed=1), drawn(2, 53, 7, seed=2)
    right = {causal: exact(q, k, v, causal=causal)[0] for causal in (False, True)}
    x = 50 * drawn(5, 37)
    mutants = {
        "no correction of the sum": ("total = total * shrink +", "total = total +"),
        "no correction of the output": ("found = found * shrink[:, None] +", "found = found +"),
        "aligned to the first key": ("<= i[:, None] + m - n", "<= i[:, None]"),
        "stops too early": ("* ROWS + m - n)", "* ROWS)"),
        "the key itself hidden": ("<= i[:, None] + m - n", "< i[:, None] + m - n"),
        "keys beyond the end": ("allowed = j[None, :] < m", "allowed = j[None, :] < m + 3"),
        "no scale": ("input_precision=EXACT) * scale", "input_precision=EXACT)"),
        "the first level for good": ("most = larger", "most = most + 0 * larger"),
        "one head for all": ("v + head * m * d_v", "v + 0 * head * m * d_v"),
        "softmax without its maximum": ("0.0, most))", "0.0, most * 0))"),
        "softmax not divided": ("parts / tl.where(total == 0, 1.0, total)", "parts"),
    }
    for number, (name, (old, new)) in enumerate([("none", ("", ""))] + list(mutants.items())):
        assert source.count(old) >= 1, name
        path = tmp_path / f"sick_{number}.py"
        path.write_text(source.replace(old, new, 1) if old else source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        sick = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sick)
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, of the overflows that are looked for
            patch.setattr(kernels, "_kernels", lambda x, sick=sick: sick)
            fits = all(
                close(attend_triton(q, k, v, causal=causal, rows=16, cols=16), right[causal], 5e-6)
                for causal in right
            )
            fits &= close(softmax_triton(x), x.double().softmax(-1), 1e-6)
        assert fits == (name == "none"), name


@pytest.mark.untyped
def test_what_the_kernels_do_not_take_is_refused():
    x = torch.zeros(2, 5, 4)
    wrong = [
        (lambda: attend_triton(x, x[:, :3], x), ValueError, "same number of rows"),
        (lambda: attend_triton(x.double(), x.double(), x.double()), TypeError, "q must be float32"),
        (lambda: attend_triton(x, x, x, rows=24), ValueError, "rows must be a power of two"),
        (lambda: attend_triton(x, x, x, cols=8), ValueError, "cols must be"),
        (lambda: attend_triton(x, x, x, scale=0.0), ValueError, "scale"),
        (lambda: attend_triton(x, x, x, return_lse=1), TypeError, "return_lse"),
        (lambda: attend_triton(x.clone().requires_grad_(), x, x), ValueError, "no backward pass"),
        (lambda: softmax_triton(x.double()), TypeError, "x must be float32"),
        (lambda: softmax_triton(x.long()), TypeError, "x must"),
        (lambda: softmax_triton(x[..., :0]), ValueError, "x must end in 1 to 65,536"),
        (lambda: softmax_triton(torch.zeros(2**16 + 1)), ValueError, "x must end in 1 to 65,536"),
    ]
    for call, kind, words in wrong:
        with pytest.raises(kind, match=words):
            call()


@pytest.mark.untyped
def test_where_no_kernel_can_run_the_error_says_what_is_missing(monkeypatch):
    x = torch.zeros(2, 4)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(kernels, "find_spec", lambda name: SimpleNamespace())
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        softmax_triton(x)
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install triton"):
        attend_triton(x, x, x)
    assert not triton_runs()


def test_opening_the_room_does_not_import_triton():
    code = "import sys, tfbook.hardware; print('triton' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
