"""What the tests of `tfbook.practice` share: the modules as a kit, and small models.

A test that takes `kit` and nothing else is put through copies with planted bugs too.
"""

import importlib
import inspect
from types import SimpleNamespace

import torch

ROOM = (
    "freezing lora adapters adapter_files reading finetuning tuning_runs preference verifiable "
    "asking evaluation findings debugging training_faults"
).split()
DOUBLE = torch.float64


def kit_of(copy_of, room=ROOM):
    """Return what the tests use, each public name once, from modules that `copy_of` finds."""
    found = {"models": copy_of("tfbook.models"), "training": copy_of("tfbook.training")}
    found["Pretrained"] = copy_of("tfbook.pretrained").Pretrained
    found["generation"] = copy_of("tfbook.generation")
    for name in room:
        module = copy_of(f"tfbook.practice.{name}")
        found |= {public: getattr(module, public) for public in module.__all__}
    return SimpleNamespace(**found)


KIT = kit_of(importlib.import_module)


def checks(names):
    """Return the tests in a namespace that need nothing but a kit."""
    return {
        name: run
        for name, run in names.items()
        if name.startswith("test_") and list(inspect.signature(run).parameters) == ["kit"]
    }


def decoder(
    kit, kind="llama", *, n_layers=2, vocab_size=19, dtype=torch.float32, seed=0, **choices
):
    """Return a small decoder with random biases and norms, in evaluation mode."""
    m = kit.models
    plain = m.Layer(m.Attention(3), m.FFN(20, "gelu"))
    llama = m.Layer(
        m.Attention(6, n_kv_heads=2, d_head=4, position=m.Rotary(), bias=False),
        m.FFN(20, "swiglu", bias=False),
        norm=m.Norm("rms"),
    )
    given = {"embedding": m.Tokens(m.Learned()), "max_len": 32} if kind == "gpt2" else {}
    layer = {"gpt2": plain, "llama": llama}[kind]
    config = m.TransformerConfig(vocab_size, 12, decoder=[layer] * n_layers, **given, **choices)
    return shaken(m.build(config), seed).to(dtype or torch.float32).eval()


def encoder(kit, n_classes=None, *, n_layers=2, vocab_size=19, seed=0):
    """Return a small encoder like BERT, with a head for classes if asked."""
    m = kit.models
    layer = m.Layer(m.Attention(3), m.FFN(20, "gelu"))
    head = None if n_classes is None else m.Classes(n_classes)
    config = m.TransformerConfig(
        vocab_size, 12, encoder=[layer] * n_layers, embedding=m.Tokens(m.Learned()), max_len=32,
        head=head, pooler=True,
    )  # fmt: skip
    return shaken(m.build(config), seed).eval()


def shaken(model, seed):
    """Draw biases and norms too, so that a forgotten one is seen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            start = 0.3 * torch.randn(weight.shape, generator=generator)
            weight.copy_(start if weight.ndim > 1 else 1 + start)
    return model


def trained(model, seed=1):
    """Draw what stands at 0, as if it had been trained."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.2 * torch.randn(weight.shape, generator=generator).to(weight))
    return model


def ids(*shape, below=19, seed=3):
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


def normal(*shape, seed=0, dtype=DOUBLE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def close(got, wanted, atol=1e-10):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)
