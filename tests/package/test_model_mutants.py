"""The checks of layers, blocks and models proved by planted bugs, each caught by one of them."""

import fresh
import pytest
from fresh import Mutant
from model_properties import CHECKS, PARITY, Kit

MUTANTS = [
    Mutant(
        "variance divided by d − 1",
        "tfbook.blocks.norms",
        "variance = (x - mean).square().mean(-1, keepdim=True)",
        "variance = (x - mean).square().sum(-1, keepdim=True) / (x.shape[-1] - 1)",
        "test_layer_norm_gives_mean_0_and_variance_1",
    ),
    Mutant(
        "ε added behind the root",
        "tfbook.blocks.norms",
        "y = (x - mean) / torch.sqrt(variance + eps)",
        "y = (x - mean) / (torch.sqrt(variance) + eps)",
        "test_epsilon_stands_under_the_root",
    ),
    Mutant(
        "normalised over the positions too",
        "tfbook.blocks.norms",
        "y = x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)",
        "y = x / torch.sqrt(x.square().mean((-1, -2), keepdim=True) + eps)",
        "test_rms_norm_gives_mean_square_1_and_keeps_the_mean",
    ),
    Mutant(
        "the norm's own ε forgotten",
        "tfbook.blocks.norms",
        "functional.rms_norm(x, (self.d_model,), self.weight, self.eps)",
        "functional.rms_norm(x, (self.d_model,), self.weight, 1e-5)",
        "test_norms_with_weights_are_the_functions",
    ),
    Mutant(
        "the activation on the wrong half of the gate",
        "tfbook.blocks.feed_forward",
        "self.activation(self.gate_proj(x)) * self.up_proj(x)",
        "self.gate_proj(x) * self.activation(self.up_proj(x))",
        "test_a_feed_forward_network_is_its_formula",
    ),
    Mutant(
        "the tanh approximation in the place of exact GELU",
        "tfbook.blocks.feed_forward",
        '"gelu": functional.gelu,  # x Φ(x), exact',
        '"gelu": gelu_tanh,',
        "test_a_feed_forward_network_is_its_formula",
    ),
    Mutant(
        "ReGLU's gate never closes",
        "tfbook.blocks.feed_forward",
        '"reglu": "relu"',
        '"reglu": "silu"',
        "test_a_feed_forward_network_is_its_formula",
    ),
    Mutant(
        "the convolution keeps its own bias",
        "tfbook.blocks.feed_forward",
        "                conv.bias.copy_(linear.bias)\n",
        "                pass\n",
        "test_a_feed_forward_network_is_two_convolutions_of_width_one",
    ),
    Mutant(
        "pre-norm normalises the sum as well",
        "tfbook.blocks.residual",
        'return self.norm(x) if self.place == "post" else x',
        'return x if self.place == "none" else self.norm(x)',
        "test_the_norm_stands_where_the_place_says",
    ),
    Mutant(
        "a norm inside the branch sees the sum",
        "tfbook.blocks.residual",
        'if self.place in ("inside", "both"):',
        'if self.place == "both":',
        "test_the_norm_stands_where_the_place_says",
    ),
    Mutant(
        "the first norm used twice on both sides",
        "tfbook.blocks.residual",
        "y = (self.norm_after or self.norm)(y)",
        "y = self.norm(y)",
        "test_the_norm_stands_where_the_place_says",
    ),
    Mutant(
        "the parallel branch reads what the mixer added",
        "tfbook.blocks.blocks",
        "entered if self.parallel else x",
        "x",
        "test_parallel_branches_read_the_same_rows",
    ),
    Mutant(
        "the shared norm forgotten",
        "tfbook.blocks.blocks",
        "        if not self.one_norm:\n            seen =",
        "        if True:\n            seen =",
        "test_parallel_branches_read_the_same_rows",
    ),
    Mutant(
        "segments forgotten unless they are given",
        "tfbook.blocks.embeddings",
        "return self.segments.weight[0]",
        "return 0",
        "test_an_embedding_stands_alone",
    ),
    Mutant(
        "dropout on the sum and not on what is added",
        "tfbook.blocks.residual",
        "x = x + drop(self, y)",
        "x = drop(self, x + y)",
        "test_dropout_falls_on_what_a_sublayer_adds_not_on_x",
    ),
    Mutant(
        "dropout works in evaluation",
        "tfbook.blocks.residual",
        "if not (module.training and module.dropout):",
        "if not module.dropout:",
        "test_dropout_falls_on_what_a_sublayer_adds_not_on_x",
    ),
    Mutant(
        "the feed-forward network comes before the memory",
        "tfbook.blocks.blocks",
        "        if self.cross is not None:\n"
        "            y, memory = self.cross(self.cross_residual.enter(x), memory)\n"
        "            x = self.cross_residual.leave(x, y)\n"
        "        if not self.one_norm:\n"
        "            seen = self.ffn_residual.enter(entered if self.parallel else x)\n"
        "        y = self.ffn(seen)\n"
        "        x = self.resid_post(self.ffn_residual.leave(x, y))\n",
        "        if not self.one_norm:\n"
        "            seen = self.ffn_residual.enter(entered if self.parallel else x)\n"
        "        y = self.ffn(seen)\n"
        "        x = self.resid_post(self.ffn_residual.leave(x, y))\n"
        "        if self.cross is not None:\n"
        "            y, memory = self.cross(self.cross_residual.enter(x), memory)\n"
        "            x = self.cross_residual.leave(x, y)\n",
        "test_a_block_mixes_then_looks_up_then_treats_each_row",
    ),
    Mutant(
        "no residual around the feed-forward network",
        "tfbook.blocks.blocks",
        "x = self.resid_post(self.ffn_residual.leave(x, y))",
        "x = self.resid_post(y)",
        "test_taps_show_the_residual_stream",
    ),
    Mutant(
        "the state of the mixer is not handed on",
        "tfbook.blocks.blocks",
        "return x, BlockState(after, memory)",
        "return x, BlockState(before, memory)",
        "test_any_way_to_cut_a_text_gives_the_whole",
    ),
    Mutant(
        "what layers share is kept beyond the pass",
        "tfbook.blocks.blocks",
        "self._running, self._asked, self._bias = False, None, None\n\n",
        "self._running = False\n\n",
        "test_shared_positions_are_computed_once_a_pass_and_never_stale",
    ),
    Mutant(
        "what layers share is computed by each of them",
        "tfbook.blocks.blocks",
        "if not self._running:",
        "if True:",
        "test_shared_positions_are_computed_once_a_pass_and_never_stale",
    ),
    Mutant(
        "states of a batch chosen in the mixer only",
        "tfbook.blocks.states",
        "counts = None if self.counts is None else self.counts[rows]",
        "counts = self.counts",
        "test_a_chosen_state_goes_on_as_its_sequence",
    ),
    Mutant(
        "the encoder hides the future too",
        "tfbook.models.architectures",
        "self._own(entrance, make_stack(config, config.encoder, causal=False))",
        "self._own(entrance, make_stack(config, config.encoder, causal=True))",
        "test_an_encoder_sees_everything_from_everywhere",
    ),
    Mutant(
        "the decoder sees the future",
        "tfbook.models.architectures",
        "        decoder = make_stack(config, config.decoder, causal=True)",
        "        decoder = make_stack(config, config.decoder, causal=False)",
        "test_later_tokens_do_not_change_earlier_logits",
    ),
    Mutant(
        "positions count padding",
        "tfbook.blocks.embeddings",
        "steps = start + padded.cumsum(-1)",
        "steps = start + torch.ones_like(padded).cumsum(-1)",
        "test_padding_on_either_side_changes_nothing",
    ),
    Mutant(
        "positions begin again with every piece",
        "tfbook.blocks.embeddings",
        "        elif seen:\n"
        "            places = torch.arange(seen, seen + n, device=tokens.device)\n",
        "",
        "test_any_way_to_cut_a_text_gives_the_whole",
    ),
    Mutant(
        "a continued batch forgets how many tokens each sequence had",
        "tfbook.blocks.embeddings",
        "places = before[:, None] + torch.arange(n, device=tokens.device)",
        "places = torch.arange(seen, seen + n, device=tokens.device)",
        "test_a_padded_batch_can_be_continued",
    ),
    Mutant(
        "the decoder looks at the padding of the source",
        "tfbook.models.architectures",
        "layers = self.decoder.remember(memory, keys)",
        "layers = self.decoder.remember(memory)",
        "test_padding_on_either_side_changes_nothing",
    ),
    Mutant(
        "the norm behind the encoder left out of the memory",
        "tfbook.blocks.blocks",
        "  # and its state is gone before the next\n        return self.finish(x)",
        "\n        return x",
        "test_every_decoder_layer_reads_the_last_output_of_the_encoder",
    ),
    Mutant(
        "embeddings scaled by d and not by its root",
        "tfbook.models.ends",
        "scale=math.sqrt(d) if",
        "scale=d if",
        "test_what_enters_the_first_block_is_scaled_placed_and_normalised",
    ),
    Mutant(
        "positions added behind the norm of the embeddings",
        "tfbook.blocks.embeddings",
        "        x = x if self.position is None else self.position(x, places)\n"
        "        x = x if self.embed_norm is None else self.embed_norm(x)\n",
        "        x = x if self.embed_norm is None else self.embed_norm(x)\n"
        "        x = x if self.position is None else self.position(x, places)\n",
        "test_what_enters_the_first_block_is_scaled_placed_and_normalised",
    ),
    Mutant(
        "a tied head that has weights of its own",
        "tfbook.blocks.heads",
        "self.weight = None if tied else _table(d_model, vocab_size)\n"
        "        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias",
        "self.weight = _table(d_model, vocab_size)\n        self.tied = False\n"
        "        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias",
        "test_a_tied_head_is_the_embedding",
    ),
    Mutant(
        "the last logits are those of the first column",
        "tfbook.models.architectures",
        "logits = self.head(x[:, -1:] if last else x, self.embed.weight)",
        "logits = self.head(x[:, :1] if last else x, self.embed.weight)",
        "test_the_last_logits_can_be_asked_for_alone",
    ),
    Mutant(
        "post-norm models get a norm behind the last block",
        "tfbook.models.config",
        "last.place in BEFORE",
        "True",
        "test_logits_are_the_head_on_the_last_states",
    ),
    Mutant(
        "the window is forgotten",
        "tfbook.models.layers",
        '"window": self.window,',
        '"window": None,',
        "test_a_window_bounds_what_a_layer_sees",
    ),
    Mutant(
        "T5's cross-attention divided by √d",
        "tfbook.models.layers",
        "scale = 1.0 if self.scale is None and unscaled else self.scale  # T5",
        "scale = self.scale  # T5",
        "test_t5_divides_by_the_root_of_d_nowhere",
    ),
    Mutant(
        "the encoder's bias tells no future from the past",
        "tfbook.models.placements",
        "bidirectional=not site.causal",
        "bidirectional=site.causal",
        "test_all_layers_of_a_stack_share_the_t5_bias",
    ),
    Mutant(
        "the pooler without its tanh",
        "tfbook.models.architectures",
        "return first if self.pooler is None else torch.tanh(self.pooler(first))",
        "return first if self.pooler is None else self.pooler(first)",
        "test_heads_of_encoders_are_their_formulas",
    ),
    Mutant(
        "patches counted column by column",
        "tfbook.blocks.embeddings",
        "patches.permute(0, 2, 4, 1, 3, 5)",
        "patches.permute(0, 4, 2, 1, 3, 5)",
        "test_patches_are_squares_of_the_image_row_by_row",
    ),
    Mutant(
        "a gate's parameters counted once",
        "tfbook.models.layers",
        'for inner in ("gate_proj", "up_proj") if gated else ("up_proj",):',
        'for inner in ("up_proj",):',
        "test_counts_are_those_of_the_model",
    ),
    Mutant(
        "every block's weights into the residual stream drawn as wide as the others",
        "tfbook.blocks.initial",
        "0.02 / math.sqrt(2 * depth) if writes else 0.02",
        "0.02",
        "test_first_weights_have_the_spread_that_the_scheme_says",
    ),
    Mutant(
        "T5's queries drawn like its keys",
        "tfbook.blocks.initial",
        "std = (d_model * above.d_head) ** -0.5",
        "std = d_model**-0.5",
        "test_first_weights_have_the_spread_that_the_scheme_says",
    ),
    Mutant(
        "dropout of the weights forgotten",
        "tfbook.models.layers",
        '"scale": self.scale,\n            "dropout": self.dropout',
        '"scale": self.scale,\n            "dropout": 0.0',
        "test_dropout_of_a_model_falls_on_embeddings_sublayers_and_weights",
    ),
]


def kit_of(package, edits=None):
    """Copy the modules, with edits, and return them as a kit."""
    fresh.copies(package, ["tfbook.models"], edits)
    return Kit(*(fresh.copy_of(package, name) for name in Kit.MODULES))


def test_a_copy_without_a_bug_passes():
    kit = kit_of("whole_models")
    for name in ("test_taps_show_the_residual_stream", "test_a_tied_head_is_the_embedding"):
        CHECKS[name](kit)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.bug.replace(" ", "-"))
def test_a_planted_bug_is_caught(mutant):
    kit = kit_of("bent_models", mutant.edits)
    with pytest.raises(AssertionError):
        CHECKS[mutant.caught_by](kit)


def test_most_bugs_fall_to_properties():
    assert all(mutant.caught_by in CHECKS for mutant in MUTANTS)
    assert sum(mutant.caught_by not in PARITY for mutant in MUTANTS) >= 0.6 * len(MUTANTS)
