"""Ways through the depth of a stack other than x + f(x): scaled sums, streams, and attention.

* :func:`with_deep_norm` weighs the sum so that post-norm trains at any depth;
* :func:`with_layer_scale` lets every sublayer begin small and learn how much it adds;
* :class:`HyperStack` carries several streams that sublayers read, write and mix;
* :class:`AttentionStack` lets each sublayer attend over what all earlier ones wrote.

Explained in: chapters/08_architectural_variants_deeper.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import check_bool, check_float, check_module, check_number, check_scale
from tfbook.attention import MultiHeadAttention
from tfbook.blocks.blocks import Block, Stack
from tfbook.blocks.feed_forward import FeedForward
from tfbook.blocks.residual import Residual
from tfbook.blocks.states import BlockState, Trace

__all__ = [
    "AttentionStack",
    "DeepNorm",
    "HyperConnection",
    "HyperStack",
    "ScaledResidual",
    "deep_norm",
    "draw_deep_norm",
    "sinkhorn",
    "with_deep_norm",
    "with_layer_scale",
]

PLACES = ("pre", "inside", "both", "none")  # where what a sublayer adds can be told from the sum


class DeepNorm(NamedTuple):
    """The two numbers of DeepNorm for one stack.

    Attributes:
        alpha: factor on x in y = norm(α x + f(x)).
        beta: factor on the first weights of the feed-forward part, the values and the outputs.

    Explained in: chapters/08_architectural_variants_deeper, section "Let a deep model begin small".
    """

    alpha: float
    beta: float


def deep_norm(n_encoder: int = 0, n_decoder: int = 0) -> dict[str, DeepNorm]:
    """Return α and β of DeepNorm for the stacks of a model of so many layers.

    One stack of N layers: α = (2N)^(1/4), β = (8N)^(−1/4). An encoder of N beside a decoder of M:
    α = 0.81 (N⁴M)^(1/16), β = 0.87 (N⁴M)^(−1/16) and α = (3M)^(1/4), β = (12M)^(−1/4).

    Args:
        n_encoder: N; 0 without an encoder.
        n_decoder: M; 0 without a decoder.

    Returns:
        :class:`DeepNorm` by "encoder" and "decoder", those that there are.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if one is negative, or both are 0.

    Example:
        >>> deep_norm(n_decoder=8)["decoder"].alpha
        2.0

    Source: [wang2022deepnet], figure 2
    Explained in: chapters/08_architectural_variants_deeper, section "Let a deep model begin small".
    """
    check_number("n_encoder", n_encoder, 0, whole=True)
    check_number("n_decoder", n_decoder, 0, whole=True)
    if not (n_encoder or n_decoder):
        raise ValueError("n_encoder or n_decoder must be at least 1, got 0 and 0")
    if n_encoder and n_decoder:
        both = (n_encoder**4 * n_decoder) ** (1 / 16)
        return {
            "encoder": DeepNorm(0.81 * both, 0.87 / both),
            "decoder": DeepNorm((3 * n_decoder) ** 0.25, (12 * n_decoder) ** -0.25),
        }
    name, n = ("encoder", n_encoder) if n_encoder else ("decoder", n_decoder)
    return {name: DeepNorm((2 * n) ** 0.25, (8 * n) ** -0.25)}


def with_deep_norm(config: object) -> object:
    """Return a config whose layers compute norm(α x + f(x)), α of :func:`deep_norm`.

    A norm does not see the size of what it normalises, so norm(α x + f(x)) with ε is norm(x +
    f(x) / α) with ε / α²: post-norm with a multiplier. First weights are drawn by
    :func:`draw_deep_norm`, on the model that is built.

    Args:
        config: a :class:`tfbook.models.TransformerConfig`; its layers become post-norm.

    Raises:
        TypeError: if it is no config.
        ValueError: for layers with a multiplier of their own, or parallel ones that share a norm.

    Source: [wang2022deepnet]
    Explained in: chapters/08_architectural_variants_deeper, section "Let a deep model begin small".
    """
    stacks = {name: getattr(config, name, None) for name in ("encoder", "decoder")}
    if any(not isinstance(each, tuple) for each in stacks.values()):
        raise TypeError(f"config must be a TransformerConfig, got {type(config).__name__}")
    values = deep_norm(len(stacks["encoder"]), len(stacks["decoder"]))
    changed = {}
    for name, (alpha, _) in values.items():
        if any(layer.multiplier != 1 for layer in stacks[name]):
            raise ValueError("config must have no multiplier, DeepNorm brings its own")
        changed[name] = tuple(
            replace(
                layer,
                place="post",
                multiplier=1 / alpha,
                norm=replace(layer.norm, eps=layer.norm.eps / alpha**2),
            )
            for layer in stacks[name]
        )
    return replace(config, **changed)


def draw_deep_norm(stack: Stack, beta: float) -> None:
    """Draw first weights, Xavier normal: times β where a sublayer's answer grows with them.

    These are all linear maps of feed-forward parts, and values and outputs of attention; queries
    and keys are drawn without β. Biases become 0, other weights stay.

    Args:
        stack: the encoder or the decoder of a model.
        beta: its β.

    Raises:
        TypeError: if stack is no stack, or beta no number.
        ValueError: if beta is not positive.

    Source: [wang2022deepnet], figure 2
    Explained in: chapters/08_architectural_variants_deeper, section "Let a deep model begin small".
    """
    _check_stack(stack)
    check_scale("beta", beta)
    for part in stack.modules():
        gains = {}
        if isinstance(part, FeedForward):
            gains = {"up_proj": beta, "gate_proj": beta, "down_proj": beta}
        elif isinstance(part, MultiHeadAttention):
            gains = {"q_proj": 1.0, "k_proj": 1.0, "v_proj": beta, "out_proj": beta}
        for name, gain in gains.items():
            linear = getattr(part, name)
            if linear is not None:
                nn.init.xavier_normal_(linear.weight, gain=gain)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)


class ScaledResidual(nn.Module):
    """The wiring of a sublayer, with a learned factor on what the sublayer adds.

    LayerScale: one factor for each feature, small at first. ReZero: one for all, 0 at first.

    Args:
        inner: the wiring.
        gain: the factors at first, (d_model,) or ().

    Attributes:
        gain: the factors, a parameter.

    Source: [touvron2021going], [bachlechner2021rezero]
    Explained in: chapters/08_architectural_variants_deeper, section "Let a deep model begin small".
    """

    def __init__(self, inner: Residual, gain: Float[Tensor, "..."]):
        """Keep both."""
        super().__init__()
        if not isinstance(inner, Residual):
            raise TypeError(f"inner must be a Residual, got {type(inner).__name__}")
        check_float("gain", gain)
        self.inner, self.gain = inner, nn.Parameter(gain)

    def enter(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return what the sublayer gets to see of x."""
        return self.inner.enter(x)

    def leave(self, x: Float[Tensor, "*B D"], y: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Add what the sublayer found, times the factors, to the x that came in."""
        return self.inner.leave(x, y * self.gain)


def with_layer_scale(stack: Stack, d_model: int | None, start: float) -> Stack:
    """Put a learned factor on what each sublayer of a stack adds, and return the stack.

    y = x + λ ⊙ f(norm(x)) with λ = ``start`` at first. It changes the stack, which then has more
    parameters than its config counts.

    Args:
        stack: of :class:`tfbook.blocks.Block`.
        d_model: size of a row, for LayerScale; None for ReZero, one factor a sublayer.
        start: λ at first: 10⁻⁵ or so for LayerScale, 0 for ReZero.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, or a stack that has such factors already.

    Source: [touvron2021going], [bachlechner2021rezero]
    Explained in: chapters/08_architectural_variants_deeper, section "Let a deep model begin small".
    """
    _check_stack(stack)
    shape = ()
    if d_model is not None:
        check_number("d_model", d_model, 1, whole=True)
        shape = (d_model,)
    check_number("start", start, -1e18, 1e18)
    like = next(stack.parameters())
    for block in dict.fromkeys(stack.blocks):  # a shared one once
        if not isinstance(block, Block):
            raise TypeError(f"stack must hold Blocks, got {type(block).__name__}")
        for name in _sublayers(block):
            wiring = getattr(block, f"{name}_residual")
            if isinstance(wiring, ScaledResidual):
                raise ValueError("stack must have no factors yet, got one that has them")
            scaled = ScaledResidual(wiring, like.new_full(shape, start).detach())
            setattr(block, f"{name}_residual", scaled)
    return stack


def sinkhorn(logits: Float[Tensor, "*B N N"], steps: int = 20) -> Float[Tensor, "*B N N"]:
    """Return a matrix whose rows and columns sum to 1, near exp(logits).

    Columns and rows of exp(logits) are divided by their sums in turn, in logarithms; rows come
    last, so that they sum to 1 to the last digit, and columns the better the more steps.

    Args:
        logits: (..., n, n).
        steps: how often both are divided.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if logits is not square, or steps is below 1.

    Example:
        >>> mixing = sinkhorn(torch.tensor([[3.0, 0.0], [1.0, 2.0]]))
        >>> torch.allclose(mixing.sum(-1), torch.ones(2)), mixing.shape
        (True, torch.Size([2, 2]))

    Source: [sinkhorn1967concerning], [xie2025mhc]
    Explained in: chapters/08_architectural_variants_deeper, section
    "Several streams in place of one".
    """
    check_float("logits", logits, min_dims=2)
    check_number("steps", steps, 1, 10_000, whole=True)
    if logits.shape[-1] != logits.shape[-2] or not logits.shape[-1]:
        raise ValueError(f"logits must have shape (..., n, n), got {tuple(logits.shape)}")
    for _ in range(steps):
        logits = logits - logits.logsumexp(-2, keepdim=True)
        logits = logits - logits.logsumexp(-1, keepdim=True)
    return logits.exp()


class HyperConnection(nn.Module):
    """How a sublayer f reads n streams, writes into them, and how they mix.

    For the streams H (n, d): h = Σ_i r_i H_i is what f sees, and H′_i = Σ_j M_ij H_j + w_i f(h)
    what comes out. The numbers r, w and M are learned; where they are dynamic, each row of a
    sequence adds to them what a small linear map finds in its streams, at first 0.

    Free: r = r₀ + s tanh(·) and so on; at first r₀ picks stream ``number`` mod n, w = 1, and M is
    the identity. Constrained: r = σ(·), w = 2σ(·), and M is made doubly stochastic by
    :func:`sinkhorn`, so that mixing can neither blow up nor lose what the streams hold together.

    While all streams are equal, either begins as x + f(x) in each of them.

    Args:
        d_model: d.
        n_streams: n.
        number: which sublayer of the stack this is.
        constrained: whether M is doubly stochastic.
        dynamic: whether rows move the numbers.

    Attributes:
        read_bias, write_bias, mix_bias: r₀, w₀ (n,) and M₀ (n, n), before any squashing.
        proj: the map to the n + n + n² dynamic numbers; None if there are none.
        factors: three numbers s on them, for r, w and M, 0.01 at first.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Cost: about n · d FLOPs a row for each of reading and writing and n² · d for mixing; dynamic
        numbers take 2 (2 + n) n · d free and 2 (2 + n) n² · d constrained.

    Source: [zhu2025hyper], constrained: [xie2025mhc]
    Explained in: chapters/08_architectural_variants_deeper, section
    "Several streams in place of one".
    """

    def __init__(
        self,
        d_model: int,
        n_streams: int,
        number: int = 0,
        *,
        constrained: bool = False,
        dynamic: bool = True,
    ):
        """Begin as a plain residual connection."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        check_number("n_streams", n_streams, 1, whole=True)
        check_number("number", number, 0, whole=True)
        check_bool("constrained", constrained)
        check_bool("dynamic", dynamic)
        n = n_streams
        self.n_streams, self.constrained = n, constrained
        if constrained:  # σ(b) = 1/n each, 2σ(0) = 1, and a matrix close to the identity
            read = torch.full((n,), -math.log(n - 1) if n > 1 else 30.0)
            write, mix = torch.zeros(n), 8 * torch.eye(n)
        else:
            read, write, mix = torch.eye(n)[number % n], torch.ones(n), torch.eye(n)
        self.read_bias, self.write_bias = nn.Parameter(read), nn.Parameter(write)
        self.mix_bias, self.proj, self.factors = nn.Parameter(mix), None, None
        if dynamic:
            # Free: each stream by itself finds its own numbers; constrained: from all at once.
            sizes = (n * d_model, 2 * n + n * n) if constrained else (d_model, 2 + n)
            self.proj = nn.Linear(*sizes, bias=False)
            nn.init.zeros_(self.proj.weight)
            self.factors = nn.Parameter(torch.full((3,), 0.01))

    def numbers(
        self, streams: Float[Tensor, "*B n D"]
    ) -> tuple[Float[Tensor, "*B n"], Float[Tensor, "*B n"], Float[Tensor, "*B n n"]]:
        """Return r, w and M for each row of the streams (..., n, d)."""
        n, lead = self.n_streams, streams.shape[:-2]
        read, write, mix = self.read_bias, self.write_bias, self.mix_bias
        if self.proj is not None:
            read_own, write_own, mix_own = self._dynamic(streams)
            one, two, three = self.factors.unbind()
            read, write, mix = read + one * read_own, write + two * write_own, mix + three * mix_own
        if self.constrained:
            read, write, mix = torch.sigmoid(read), 2 * torch.sigmoid(write), sinkhorn(mix)
        return read.expand(*lead, n), write.expand(*lead, n), mix.expand(*lead, n, n)

    def _dynamic(self, streams):
        """Return what each row adds to r, w and M."""
        n = self.n_streams
        if self.constrained:
            whole = streams.flatten(-2)  # (..., n d)
            found = self.proj(functional.rms_norm(whole, whole.shape[-1:]))
            read, write, mix = found.split([n, n, n * n], dim=-1)
            return read, write, mix.unflatten(-1, (n, n))
        found = torch.tanh(self.proj(functional.layer_norm(streams, streams.shape[-1:])))
        read, write, mix = found.split([1, 1, n], dim=-1)  # of stream j: its column of M
        return read.squeeze(-1), write.squeeze(-1), mix.mT

    def extra_repr(self) -> str:
        """Show the choices."""
        return f"n_streams={self.n_streams}, constrained={self.constrained}"


class _Wired(Stack):
    """A stack that uses the sublayers of blocks without their sums."""

    def __init__(self, stack: Stack, d_model: int):
        _check_streams(stack)
        check_number("d_model", d_model, 1, whole=True)
        super().__init__(list(stack.blocks), stack.final_norm, shared=stack.shared)
        self.layer_drop, self.d_model = stack.layer_drop, d_model

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: Sequence[BlockState] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], tuple[BlockState, ...]]:
        """Pass x through all blocks; arguments, result and errors as for a stack."""
        passed = list(self._passed(x, state, mask))
        return self.finish(passed[-1][0]), tuple(after for _, after in passed[1:])

    def encode(
        self, x: Float[Tensor, "B N D"], *, mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "B N D"]:
        """Return y alone; arguments and errors as for a stack."""
        for rows, _ in self._passed(x, None, mask):
            last = rows
        return self.finish(last)

    def trace(
        self,
        x: Float[Tensor, "B N D"],
        state: Sequence[BlockState] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        weights: bool = False,
    ) -> Trace:
        """Return what could leave behind each block, x first, without weights.

        Raises:
            ValueError: if weights are asked for.
        """
        check_bool("weights", weights)
        if weights:
            raise ValueError("weights are not for this stack; ask a block's mixer for them")
        return Trace([rows for rows, _ in self._passed(x, state, mask)], [], [])

    def _passed(
        self, x: Tensor, state: Sequence[BlockState] | None, mask: Tensor | None
    ) -> Iterator[tuple[Tensor, BlockState | None]]:
        """Yield what could leave behind each block, x first, and the block's state."""
        raise NotImplementedError


class HyperStack(_Wired):
    """A stack with n streams in the place of one: hyper-connections.

    Rows enter as n equal streams; each sublayer reads and writes them by a
    :class:`HyperConnection`; what leaves is the mean of the streams, through the last norm. (The
    papers take the sum, which the norm cannot tell from it.) It is called like any other
    :class:`tfbook.blocks.Stack`, whose blocks it takes; each is used without its own sum.

    Args:
        stack: whose blocks, last norm and shared parts are used; not copied.
        d_model: size of a row.
        n_streams: n.
        constrained, dynamic: as for :class:`HyperConnection`.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, or blocks that are parallel or post-norm.

    Example:
        >>> from tfbook.attention import MultiHeadAttention
        >>> blocks = [
        ...     Block(MultiHeadAttention(8, n_heads=2), FeedForward(8, 32), place="pre")
        ...     for _ in range(2)
        ... ]
        >>> plain = Stack(blocks)
        >>> streams = HyperStack(plain, 8, 4)
        >>> x = torch.randn(1, 5, 8)
        >>> torch.allclose(streams(x)[0], plain(x)[0], atol=1e-5)
        True

    Source: [zhu2025hyper], constrained: [xie2025mhc]
    Explained in: chapters/08_architectural_variants_deeper, section
    "Several streams in place of one".
    """

    def __init__(
        self,
        stack: Stack,
        d_model: int,
        n_streams: int,
        *,
        constrained: bool = False,
        dynamic: bool = True,
    ):
        """Make a connection for each sublayer."""
        super().__init__(stack, d_model)
        choices, made = {"constrained": constrained, "dynamic": dynamic}, nn.ModuleList()
        number, like = 0, next(stack.parameters())
        for block in self.blocks:
            own = nn.ModuleDict()
            for name in _sublayers(block):
                own[name] = HyperConnection(d_model, n_streams, number, **choices).to(like)
                number += 1
            made.append(own)
        self.connections, self.n_streams = made, n_streams

    def _passed(
        self, x: Tensor, state: Sequence[BlockState] | None, mask: Tensor | None
    ) -> Iterator[tuple[Tensor, BlockState | None]]:
        """Yield what leaves each block, x first, and its state."""
        _check_width(x, self.d_model)
        yield x, None
        streams = x.unsqueeze(-2).expand(*x.shape[:-1], self.n_streams, -1)  # (B, N, n, d)
        with self._one_pass():
            states = self._read_state(state)
            for block, own, before in zip(self.blocks, self.connections, states, strict=True):
                after = BlockState() if before is None else before
                if not self._left_out():
                    steps, after = _Steps(block, before, mask), None
                    for name in _sublayers(block):
                        read, write, mix = own[name].numbers(streams)
                        y = steps(name, (read.unsqueeze(-2) @ streams).squeeze(-2))
                        streams = mix @ streams + write.unsqueeze(-1) * y.unsqueeze(-2)
                    after = steps.after
                yield streams.mean(-2), after


class AttentionStack(_Wired):
    """A stack whose sublayers attend over depth: attention residuals.

    v_0 = x and v_i is what sublayer i wrote. Sublayer l reads h_l = Σ_{i<l} α_il v_i with α_l =
    softmax_i(w_l · rms(v_i)): every row weighs the layers by itself, by one learned query w_l a
    sublayer and a norm with weights. One more query reads what leaves. Queries begin at 0, so that
    each sublayer first reads the mean of all before it.

    In blocks of S sublayers, those of one block are added up as in a residual stream, and what is
    attended to are x, the sums of finished blocks and that of the running one; S = 1 is the full
    form. Memory and reading then grow with the number of blocks.

    Args:
        stack: whose blocks, last norm and shared parts are used; not copied.
        d_model: size of a row.
        block_size: S.

    Attributes:
        queries: w, one for each sublayer and one for the end, (L + 1, d_model).
        key_weights: the weights γ of the norms, (L + 1, d_model).

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, or blocks that are parallel or post-norm.

    Source: [kimi2026attention]
    Explained in: chapters/08_architectural_variants_deeper, section
    "Which earlier parts are read?".
    """

    def __init__(self, stack: Stack, d_model: int, block_size: int = 1):
        """Make the queries."""
        super().__init__(stack, d_model)
        check_number("block_size", block_size, 1, whole=True)
        n, like = 1 + sum(len(_sublayers(block)) for block in self.blocks), next(stack.parameters())
        self.queries = nn.Parameter(like.new_zeros(n, d_model).detach())
        self.key_weights = nn.Parameter(like.new_ones(n, d_model).detach())
        self.block_size = block_size

    def depth_weights(
        self, sources: Float[Tensor, "M B N D"], number: int
    ) -> Float[Tensor, "M B N"]:
        """Return how much sublayer ``number`` takes from each of M sources (M, B, N, D)."""
        keys = functional.rms_norm(sources, (self.d_model,), self.key_weights[number])
        return torch.softmax(keys @ self.queries[number], dim=0)

    def _read(self, sources: list[Tensor], number: int) -> Tensor:
        stacked = torch.stack(sources)
        return (self.depth_weights(stacked, number)[..., None] * stacked).sum(0)

    def _passed(
        self, x: Tensor, state: Sequence[BlockState] | None, mask: Tensor | None
    ) -> Iterator[tuple[Tensor, BlockState | None]]:
        """Yield what is read behind each block, x first, and its state."""
        _check_width(x, self.d_model)
        yield x, None
        done, running, number = [x], [], 0  # sources, and what the running block has written
        with self._one_pass():
            for block, before in zip(self.blocks, self._read_state(state), strict=True):
                after = BlockState() if before is None else before
                if self._left_out():
                    number += len(_sublayers(block))
                else:
                    steps = _Steps(block, before, mask)
                    for name in _sublayers(block):
                        h = self._read([*done, *([sum(running)] if running else [])], number)
                        running.append(steps(name, h))
                        if len(running) == self.block_size:
                            done, running = [*done, sum(running)], []
                        number += 1
                    after = steps.after
                # The next sublayer's query, or the one for the end.
                yield self._read([*done, *([sum(running)] if running else [])], number), after


class _Steps:
    """One pass through a block, sublayer by sublayer, without the sums."""

    def __init__(self, block: Block, state: BlockState | None, mask: Tensor | None):
        self.block, self.mask, self.after = block, mask, block._read_state(state)

    def __call__(self, name: str, x: Tensor) -> Tensor:
        """Return what a sublayer would add to x."""
        part, wiring = getattr(self.block, name), getattr(self.block, f"{name}_residual")
        seen = wiring.enter(x)
        if name == "ffn":
            y = part(seen)
        elif name == "cross":
            y, cross = part(seen, self.after.cross)
            self.after = self.after._replace(cross=cross)
        else:
            y, mixer = part(seen, self.after.mixer, mask=self.mask)
            self.after = self.after._replace(mixer=mixer)
        return wiring.leave(torch.zeros_like(y), y)


def _sublayers(block: Block) -> tuple[str, ...]:
    return ("mixer", "ffn") if block.cross is None else ("mixer", "cross", "ffn")


def _check_stack(stack: object) -> None:
    check_module("stack", stack)
    if not isinstance(stack, Stack):
        raise TypeError(f"stack must be a Stack, got {type(stack).__name__}")


def _check_streams(stack: object) -> None:
    """Raise an error unless what each sublayer adds can be told from the sum."""
    _check_stack(stack)
    for block in stack.blocks:
        if not isinstance(block, Block):
            raise TypeError(f"stack must hold Blocks, got {type(block).__name__}")
        wiring = block.mixer_residual
        place = getattr(wiring, "inner", wiring).place
        if block.parallel or place not in PLACES:
            raise ValueError(
                f"stack must hold blocks of the places {', '.join(PLACES)}, not parallel, got "
                f"place {place!r} and parallel {block.parallel}"
            )


def _check_width(x: object, d_model: int) -> None:
    check_float("x", x)
    if x.ndim != 3 or x.shape[-1] != d_model:
        raise ValueError(f"x must have shape (B, N, {d_model}), got {tuple(x.shape)}")
