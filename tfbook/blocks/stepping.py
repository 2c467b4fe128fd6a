"""One token through many layers in few operations: the fast path of decoding.

The modules of a model are made to be read and hooked, and each call of one looks at what it is
given. For a prompt that costs nothing. For a single token the calls of thirty layers take longer
than their weights of 4 bits take to be read. So LLaMA's layer stands here once more, as bare
operations on one row for each sequence: the maps that read the same row are one map, and nothing
is asked that was asked before.

The model stays the model. A :class:`Step` belongs to a stack as it was when it was made; where a
module, a weight or a choice was changed since, it is made anew, and while any module of the layers
has a hook, or is not what stands here, :meth:`Steps.find` finds none and the modules do the work.

The sequences of a batch may have different lengths. All that is asked of a state is what each
:class:`tfbook.attention.KVState` says: where each sequence goes on (``counts``), which keys it may
see (``mask``), and itself with one key more (``append``).

Explained in: chapters/17_hardware, section "Weights in few bits".
"""

from collections.abc import Callable, Iterator, Sequence
from operator import is_

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as hooks

from tfbook.attention import KVState, MultiHeadAttention, Tap, attend_sdpa
from tfbook.blocks.blocks import Block, Stack
from tfbook.blocks.feed_forward import FeedForward
from tfbook.blocks.norms import RMSNorm
from tfbook.blocks.packed import can_join, join_rows
from tfbook.blocks.residual import Residual
from tfbook.blocks.states import BlockState
from tfbook.positions import RotaryPositions

__all__ = ["Step", "Steps"]

# The modules in a layer of LLaMA, and the choices that :class:`_Layer` has written out; those with
# dots may be any. What only training knows, such as dropout, is not among them.
LLAMA = {
    Block: {"cross": None, "parallel": False},
    Residual: {"place": "pre", "multiplier": 1.0},
    RMSNorm: {"eps": ...},
    MultiHeadAttention: {
        "is_cross": False, "causal": True, "attend": attend_sdpa, "scale": ..., "window": None,
        "q_norm": None, "k_norm": None,
    },
    RotaryPositions: {"layout": "interleaved"},
    FeedForward: {"kind": "swiglu"},
    nn.Linear: {"bias": None},
    Tap: {},
}  # fmt: skip
METHODS = ("forward", "enter", "leave")  # that an object may have been given instead of its own


class Steps:
    """Where a model keeps its :class:`Step`; copies and files of the model begin without one.

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """

    def __init__(self) -> None:
        """Begin without one."""
        self._step: Step | None = None

    def __reduce__(self) -> tuple[type["Steps"], tuple[()]]:
        """Copy and pickle as a new one."""
        return Steps, ()

    def find(
        self, stack: Stack, x: Float[Tensor, "B N D"], states: Sequence[BlockState] | None
    ) -> "Step | None":
        """Return what takes x through the stack, or None where the modules have to.

        Args:
            stack: the layers.
            x: what enters them.
            states: what they continue from.
        """
        if not (states and _is_plain_row(x)):
            return None
        step = self._step
        if step is None or not step.holds(stack):
            with torch.inference_mode(False), torch.no_grad():  # for any later use
                self._step = step = Step(stack) if _is_llama(stack) else None
        return step if step and step.takes(len(x), states) and not step.watched else None


class Step:
    """A stack of LLaMA's layers as a function of one token for each sequence.

    Args:
        stack: of layers that :data:`LLAMA` describes. Packed weights that read the same row are
            put side by side in memory, see :func:`tfbook.blocks.join_rows`.

    Cost: the operations of the layers, 14 for each but the maps, and some hundredth of them to ask
        whether the stack is still the same.

    Source: [touvron2023llama]
    Explained in: chapters/17_hardware, section "Weights in few bits".
    """

    def __init__(self, stack: Stack):
        """Write down what is needed of each layer, and what it rests on."""
        modules = list(stack.modules())
        facts = [fact for module in modules for fact in _facts(module)]
        self._owners, self._names, self._values = zip(*facts, strict=True)
        self._hooks = [vars(module)[kind] for module in modules for kind in HOOKS]
        self._layers = [_Layer(block) for block in stack.blocks]
        self._finish = stack.finish
        self._stack = stack

    def holds(self, stack: Stack) -> bool:
        """Return whether this is the stack that it was made of, and as it was then."""
        now = map(dict.get, self._owners, self._names)
        return stack is self._stack and all(map(is_, now, self._values))

    def takes(self, batch: int, states: Sequence[BlockState]) -> bool:
        """Return whether these states are caches of the layers that forget no key.

        What does not fit the modules refuse, with a word about it.
        """
        if len(states) != len(self._layers):
            return False
        first = states[0].mixer
        for layer, (state, cross) in zip(self._layers, states, strict=True):
            if not _forgets_nothing(state) or cross is not None:
                return False
            shape = (batch, layer.n_kv_heads, state.length, layer.d_head)
            if not (state.k.shape == state.v.shape == shape and _alike(state, first)):
                return False
        return (
            first.k.dtype == first.v.dtype == torch.float32
            and _is_missing_or(first.counts, (batch,), torch.int64)
            and _is_missing_or(first.mask, (batch, 1, 1, first.length), torch.bool)
        )

    @property
    def watched(self) -> bool:
        """Return whether a hook is registered on any of the modules."""
        return any(self._hooks) or bool(hooks._has_any_global_hook())

    def __call__(
        self, x: Float[Tensor, "B 1 D"], states: Sequence[BlockState]
    ) -> tuple[Float[Tensor, "B 1 D"], tuple[BlockState, ...]]:
        """Return what the stack returns for one row of each sequence."""
        x, after, first, turns = x.squeeze(1), [], states[0].mixer, {}
        places, hidden = _places(first), _hidden(first.mask)  # the same in all layers
        for layer, state in zip(self._layers, states, strict=True):
            if (kind := (layer.position, layer.heads)) not in turns:
                turns[kind] = layer.turn(places)
            x, kept = layer(x, turns[kind], hidden, state.mixer)
            after.append(BlockState(kept))
        return self._finish(x.unsqueeze(1)), tuple(after)


class _Layer:
    """A layer of LLaMA for one row of each sequence."""

    def __init__(self, block: Block):
        mixer, ffn = block.mixer, block.ffn
        self.norm, self.ffn_norm = _norm(block.mixer_residual.norm), _norm(block.ffn_residual.norm)
        self.qkv = _maps(mixer.q_proj, mixer.k_proj, mixer.v_proj)
        self.out = _maps(mixer.out_proj)
        self.gate_up, self.down = _maps(ffn.gate_proj, ffn.up_proj), _maps(ffn.down_proj)
        self.n_kv_heads, self.d_head = mixer.n_kv_heads, mixer.d_head
        self.heads = (mixer.n_heads, mixer.n_kv_heads, mixer.n_kv_heads)  # of q, k and v
        self.position, self.scale = mixer.position, mixer.scale

    def turn(self, places: range | Int[Tensor, "B 1"]) -> Complex[Tensor, "*B H P"]:
        """Return what turns the heads of q and k to a place, and leaves those of v as they are."""
        (table,) = self.position.table(places)  # (1, P), or (B, 1, P)
        *batch, _, pairs = table.shape
        turn = torch.ones(*batch, sum(self.heads), pairs, dtype=table.dtype)
        turn[..., : -self.n_kv_heads, :] = table
        return turn

    def __call__(
        self,
        x: Float[Tensor, "B D"],
        turn: Complex[Tensor, "*B H P"],
        hidden: Float[Tensor, "B 1 1 M"] | None,
        state: KVState,
    ) -> tuple[Float[Tensor, "B D"], KVState]:
        rows = self.qkv(self.norm(x)).float().view(len(x), -1, self.d_head)  # (B, H + 2 K, d)
        torch.view_as_complex(rows.unflatten(-1, (-1, 2))).mul_(turn)  # in place
        q, k, v = rows.split(self.heads, dim=1)
        state = state.append(k.unsqueeze(2), v.unsqueeze(2))  # (B, K, 1, d) each
        # The queries that share a key are the rows of one matrix, and see the same keys.
        q = q.unflatten(1, (self.n_kv_heads, -1))  # (B, K, H / K, d)
        z = functional.scaled_dot_product_attention(q, state.k, state.v, hidden, scale=self.scale)
        x = x + self.out(z.flatten(1))
        gate, up = self.gate_up(self.ffn_norm(x)).float().chunk(2, dim=-1)  # (B, d_ff) each
        return x + self.down(functional.silu(gate) * up), state


def _forgets_nothing(state: object) -> bool:
    """Return whether this is a cache that no key is ever trimmed from."""
    return isinstance(state, KVState) and type(state).trim is KVState.trim


def _alike(a: KVState, b: KVState) -> bool:
    """Return whether two layers go on at the same places and see the same keys."""
    return a.seen == b.seen and _equal(a.counts, b.counts) and _equal(a.mask, b.mask)


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def _is_missing_or(x: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    return x is None or (x.shape == shape and x.dtype == dtype)


def _places(state: KVState) -> range | Int[Tensor, "B 1"]:
    """Return where the next token stands, for all or for each."""
    return range(state.seen, state.seen + 1) if state.counts is None else state.counts[:, None]


def _hidden(mask: Bool[Tensor, "B 1 1 M"] | None) -> Float[Tensor, "B 1 1 L"] | None:
    """Return what is added to the scores of M keys and the next one: 0, or −∞; None for nothing."""
    if mask is None or mask.all():
        return None
    mask = functional.pad(mask, (0, 1), value=True)
    return torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)


def _norm(norm: RMSNorm) -> Callable[[Tensor], Tensor]:
    """Return γ ⊙ x / √(|x|² / d + ε): five operations, where PyTorch's one is made of eight."""
    share, least = norm.d_model**-0.5, torch.tensor(norm.eps, dtype=torch.float32).sqrt()

    def scaled(x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (B, 1)
        return (x * norm.weight).div_(torch.hypot(length * share, least))

    return scaled


def _maps(*linears: nn.Linear) -> Callable[[Tensor], Tensor]:
    """Return linear maps of the same row as one, x (B, D) → (B, the sum of their outputs)."""
    weights = [linear.weight for linear in linears]
    if can_join(weights):
        product = join_rows(weights).product
        return lambda x: product(x.bfloat16())  # in bfloat16: a sum with x is in float32
    if len(weights) == 1:
        return lambda x: functional.linear(x, weights[0])
    return lambda x: torch.cat([functional.linear(x, weight) for weight in weights], dim=-1)


HOOKS = ("_forward_pre_hooks", "_forward_hooks")  # of a module, called when no gradient is asked


def _is_plain_row(x: Tensor) -> bool:
    """Return whether x is one row of each sequence, in float32 on a CPU, and nobody records.

    Nor may anybody be asked about each function, as within `torch.overrides.TorchFunctionMode`:
    what replaces those that modules call does not know the products here.
    """
    return not (
        x.shape[1] != 1
        or x.dtype != torch.float32
        or x.device.type != "cpu"
        or torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
        or torch._C._len_torch_function_stack()
        or type(x) is not Tensor
        or torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def _is_llama(stack: Stack) -> bool:
    """Return whether all layers are what :class:`_Layer` computes, in weights of float32."""
    return (
        type(stack) is Stack
        and not (stack.shared or stack.training)
        and all(_fits(module) for block in stack.blocks for module in block.modules())
        and all(_turns_all(block.mixer) for block in stack.blocks)
        and all(weight.dtype == torch.float32 for weight in stack.parameters())
    )


def _turns_all(mixer: MultiHeadAttention) -> bool:
    """Return whether whole heads are turned, and are as large for values as for keys."""
    part = mixer.position
    return isinstance(part, RotaryPositions) and part.rotated == mixer.d_head == mixer.d_value


def _fits(module: nn.Module) -> bool:
    choices = LLAMA.get(type(module))
    return (
        choices is not None
        and all(value is ... or getattr(module, name) == value for name, value in choices.items())
        and not any(name in vars(module) for name in METHODS)
    )


def _facts(module: nn.Module) -> Iterator[tuple[dict[str, object], str, object]]:
    """Yield what must stay as it is: the parts, the weights, and the choices that are read."""
    for owner in (module._modules, module._parameters):
        yield from ((owner, name, value) for name, value in owner.items())
    own = vars(module)
    yield from ((own, name, None) for name in METHODS if hasattr(type(module), name))
    yield from ((own, name, own[name]) for name in LLAMA.get(type(module), ()) if name in own)
    if type(module) is Stack:
        yield own, "training", False
