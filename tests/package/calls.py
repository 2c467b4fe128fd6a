"""Calls that are right, of functions whose docstrings have no example; the tests alter them."""

import copy

import torch

from tfbook import (
    attention,
    blocks,
    costs,
    data,
    efficient,
    generation,
    hardware,
    interpret,
    metrics,
    models,
    optimization,
    parallel,
    positions,
    practice,
    pretrained,
    recurrent,
    serving,
    training,
)

# What may be anything: data that only the caller's own function reads, a state that only the model
# knows, options of a variant, and how often something is to be done, however long that takes.
ANYTHING = {
    ("training.fit", "batches"),
    ("training.fit", "steps"),
    ("efficient.attend_nystrom", "steps"),
    ("efficient.newton_inverse", "steps"),
    ("attention.register", "options"),
    ("parallel.run_pipeline", "targets"),
    ("generation.generate", "state"),
    ("recurrent.MambaState", "conv"),
    ("recurrent.MambaState", "h"),
    ("recurrent.S4DState", "h"),
    ("recurrent.S4DState", "seen"),
    ("generation.stream", "state"),
    ("generation.score", "state"),
    ("generation.beam_search", "state"),
    ("generation.generate", "max_new_tokens"),
    ("generation.stream", "max_new_tokens"),
    ("generation.beam_search", "max_new_tokens"),
    ("generation.speculative_generate", "max_new_tokens"),
}
# Steps between functions of the package, which get what was checked before them; and what works on
# files and processes, whose faults have tests of their own.
LEFT_OUT = {
    "interpret": "indirect_object_prompts",
    "parallel": "launch",
    "serving": "read_completion",
    "practice": "save_adapter load_adapter read_examples make_tuning holds_tuning write_tuning "
    "read_tuning check_tuning load_tuned",
    "positions": "places_for check_base",
    "attention": "restrict log_sum_exp mix multiply_shared at_least_float32 masked_scores "
    "attend_explicit scores_of join_key_masks read_mask with_head_axis make_empty fill keep_heads "
    "pack_torch unpack_torch attention_with",
    "recurrent": "hidden gradient_norms heads_of",
    "blocks": "initialise can_join check_parallel check_router",
    "models": "fold table make_stack",
    "hardware": "attend_triton softmax_triton",
    "pretrained": "check_sha256 find_package check_package keep read_checkpoint read_gguf "
    "read_safetensors pack_rows read_rows config_from fill_model weights_from weights_to load "
    "load_directory",
    "generation": "check_model check_room context_of device_of pad read_prompts read_stop "
    "start_state stop_count check_sampling forgets read_asked converse make_generators",
    "training": "last_checkpoint read_checkpoint steps_in write_checkpoint new_folder read_json "
    "write_bytes write_text get_random seed_all set_random check_finite mean_gradients "
    "sum_gradients evaluating check_choices check_memory make_optimizer make_task check_data "
    "check_empty holds_run lengthen load_run read_choices write_choices device_of move",
    "data": "word_vectors",
}
LEFT_OUT = {f"{room}.{name}" for room, names in LEFT_OUT.items() for name in names.split()}


def fresh(value):
    """Return a value of which a call may change what it likes; what cannot be copied stays."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    try:
        return copy.deepcopy(value)
    except (RuntimeError, TypeError, ValueError):
        return value


def numbers(*shape):
    return torch.randn(shape, generator=torch.manual_seed(0))


def calls():
    """Yield the name of each call, what is called, and its arguments."""
    for room, made in ROOMS.items():
        for name, function, args, kwargs in made():
            yield name if "." in name else f"{room}.{name}", function, args, kwargs


def of(room, name, *args, **kwargs):
    home = room.__name__.rsplit(".", 1)[-1]
    return f"{home}.{name}", getattr(room, name), args, kwargs


def of_data():
    yield of(data, "seeded", 3, 5)
    yield of(data, "Windows", torch.arange(100), 4, batch_size=2, seed=0)
    yield of(data, "Loader", "abcde", lambda g: [[0, 1], [2]], collate=list, seed=0)
    yield of(data, "rows", torch.arange(8), 3)


def of_costs():
    sizes = {"m": 7, "batch": 2}
    yield of(costs, "attention_flops_parts", 5, 12, 3, n_kv_heads=1, d_head=4, d_value=5, **sizes)
    yield of(costs, "latent_flops", 5, 12, 3, d_latent=4)
    yield of(costs, "latent_flops_parts", 5, 12, 3, d_latent=4, d_rope=2, d_head=4, **sizes)
    yield of(costs, "latent_parameters", 12, 3, d_latent=4, d_rope=2, d_head=4, d_value=5)


def of_metrics():
    yield of(metrics, "perplexity", 100.0, 20)
    yield of(metrics, "bits_per_byte", 100.0, 20)


def of_positions():
    yield of(positions, "shift_matrix", 3.0, 6, base=100.0)
    yield of(positions, "interpolate_grid", numbers(3, 5, 2), 4, 7, mode="bilinear")
    yield of(positions, "sinusoidal_encoding_2d", 3, 5, 8, base=100.0)
    yield of(positions, "half_to_interleaved", numbers(3, 12), dim=-1, n_heads=3)
    yield of(positions, "rotary_table", torch.arange(5), numbers(3).abs(), amplitude=1.5)
    x = numbers(2, 5, 3)
    yield of(positions, "transformer_xl_scores", x, x, numbers(5, 3), numbers(3), numbers(3))


def of_attention():
    q, k, v = numbers(2, 3, 5), numbers(2, 7, 5), numbers(2, 7, 11)
    masked = {"mask": torch.ones(3, 7, dtype=torch.bool), "bias": numbers(3, 7), "scale": 0.5}
    for name in ("attend", "attend_rows", "attend_online", "attend_sdpa"):
        yield of(attention, name, q, k, v, causal=True, return_lse=True, **masked)
    yield of(attention, "attend_rows", q, k, v, rows=2)
    yield of(attention, "attend_online", q, k, v, rows=2, cols=3)
    yield of(attention, "attend_topk", q, k, v, top=2, **masked)
    yield of(attention, "dot_scores", q, k)
    yield of(attention, "scaled_dot_scores", q, k, scale=0.5)
    yield of(attention, "bilinear_scores", q, k, numbers(5, 5))
    yield of(attention, "additive_scores", q, k, numbers(3, 5), numbers(3, 5), numbers(3))
    yield of(attention, "soft_lookup", q, k, v, temperature=0.5, return_weights=True)
    yield of(attention, "merge_partials", [v, v], [v[..., 0], v[..., 0]])
    yield of(attention, "merge_heads", numbers(2, 3, 5, 7))
    yield of(attention, "register", "of a test", attention.attend, lacks={}, parameters={})
    yield of(attention, "MultiHeadAttention", 12, 3, n_kv_heads=1, d_head=4, bias=True)
    near = numbers(5, 3), numbers(5, 3), numbers(5, 4)
    yield of(efficient, "attend_dilated", *near, window=2, dilation=2)
    yield of(efficient, "attend_bigbird", *near, block=2)
    yield of(efficient, "attend_strided", *near, stride=2)
    yield of(efficient, "attend_features", *near, n_features=8, causal=True)
    yield of(efficient, "attend_nystrom", *near, landmarks=2, steps=3)
    held = {"log_decay": -numbers(2, 5).abs(), "state": numbers(2, 3, 4)}
    pieces = numbers(2, 5, 3), numbers(2, 5, 3), numbers(2, 5, 4)
    yield of(efficient, "state_recurrent", *pieces, **held)
    yield of(efficient, "state_chunked", *pieces, chunk=2, **held)
    heads = attention.MultiHeadAttention(12, 3)
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    yield "MultiHeadAttention()", heads.forward, (numbers(2, 5, 12),), {"mask": mask}


def of_recurrent():
    x = numbers(2, 5, 3)
    tail = recurrent.ConvState(torch.zeros(1, 3, 4), 0)
    yield of(recurrent, "MambaState", tail, torch.zeros(1, 4, 5))
    yield of(recurrent, "S4DState", torch.zeros(1, 2, 3, dtype=torch.complex64), 0)
    cell = recurrent.GRUCell(3, 4)
    yield of(recurrent, "unroll", cell, x, mask=torch.ones(2, 5, dtype=torch.bool), truncate=2)
    yield of(recurrent, "step_jacobians", cell, x)
    yield of(recurrent, "jacobian_products", numbers(2, 5, 3, 3))


def of_models():
    yield of(blocks, "make_norm", "rms", 5, eps=1e-5)
    ffn = blocks.FeedForward(5, 7)
    up, _, down = blocks.to_conv1d(ffn)
    yield of(blocks, "from_conv1d", up, down, kind="relu")
    yield of(blocks, "to_conv1d", ffn)
    yield of(blocks, "FeedForward", 5, 7, kind="relu", bias=True, dropout=0.1)
    yield of(blocks, "LayerNorm", 5, eps=1e-5)
    yield "FeedForward()", ffn.forward, (numbers(2, 3, 5),), {}
    yield "LayerNorm()", blocks.LayerNorm(5).forward, (numbers(2, 3, 5),), {}
    yield "RMSNorm()", blocks.RMSNorm(5).forward, (numbers(2, 3, 5),), {}
    yield "DecoderOnly()", decoder().forward, (torch.arange(6).view(2, 3),), {}
    layer = models.Layer(models.Attention(2), models.FFN(7))
    yield of(models, "TransformerConfig", 13, 8, decoder=[layer] * 2, max_len=11)
    for name in ("LinearAttention", "DeltaNet", "GatedDeltaNet"):
        yield of(models, name, 2)
    yield of(models, "RWKVChannels")
    config = models.TransformerConfig(11, 8, decoder=[layer] * 2)
    yield of(blocks, "with_deep_norm", config)
    yield of(blocks, "draw_deep_norm", models.build(config).stack, 0.5)
    yield of(blocks, "with_layer_scale", models.build(config).stack, 8, 1e-4)
    yield of(models, "preset", "gpt2", n_layers=2, vocab_size=13)


def decoder():
    layer = models.Layer(models.Attention(2, position=models.Rotary()), models.FFN(7))
    config = models.TransformerConfig(13, 8, decoder=[layer] * 2, max_len=11)
    return models.build(config).eval()


def of_generation():
    table = generation.TableModel(numbers(5, 5))
    yield of(generation, "make_generator", 3)
    yield of(generation, "greedy", numbers(2, 5))
    yield of(generation, "draw", numbers(2, 5), torch.tensor([0.2, 0.7]))
    penalty = {"tokens": torch.tensor([[1, 2]]), "penalty": 2.0}
    seen = torch.tensor([[True, False]])
    yield of(generation, "repetition_penalty", numbers(1, 5), *penalty.values(), mask=seen)
    yield of(generation, "Sampling", temperature=0.5, top_k=3, top_p=0.5, min_p=0.1)
    yield of(generation, "generate", table, [1, 2], max_new_tokens=3, stop=[4], seed=1)
    yield of(generation, "score", table, [0, 3, 1], context=2, stride=1)
    yield of(generation, "perplexity", table, [0, 3, 1], context=2, stride=1)
    beams = {"n_beams": 2, "max_new_tokens": 3, "length_penalty": 0.5, "stop": [4]}
    yield of(generation, "beam_search", table, [1, 2], **beams)
    guesses = {"max_new_tokens": 3, "n_draft": 2, "stop": [4], "seed": 1}
    yield of(generation, "speculative_generate", table, table, [1, 2], **guesses)


def of_training():
    net, tokens = decoder(), torch.arange(6).view(2, 3)
    yield of(training, "causal_loss", net, tokens, mask=tokens >= 0, label_smoothing=0.1)
    logits, _ = net(tokens)
    bartlett = {"generator": torch.Generator()}
    yield of(optimization, "gauss_newton_bartlett", logits, list(net.head.parameters()), **bartlett)
    logits = logits.detach()
    counted = tokens >= 0
    task = training.Example(tokens, tokens)
    yield of(training, "masked_loss", lambda ids, **choices: net(ids)[0], task)
    read = lambda source, target, **choices: net(target)[0]  # noqa: E731
    yield of(training, "translation_loss", read, (tokens, tokens), pad_id=9, label_smoothing=0.1)
    yield of(training, "distillation", logits, logits, temperature=2.0, mask=counted)
    yield of(training, "cross_entropy", logits, tokens, label_smoothing=0.1)
    yield of(training, "info_nce", numbers(3, 5), numbers(3, 5), temperature=0.1, symmetric=True)
    drawn = {"generator": torch.Generator()}
    yield of(training, "delete_tokens", [5, 6, 7], share=0.2, **drawn)
    yield of(training, "infill", [5, 6, 7], mask_id=3, share=0.3, mean_length=2.0, **drawn)
    masked = {"mask_id": 3, "vocab_size": 13, "special": [0], "share": 0.2}
    yield of(training, "mask_tokens", tokens, **masked, **drawn)
    yield of(training, "permute_sentences", [5, 1, 6, 1], end_id=1, **drawn)
    yield of(training, "rotate", [5, 6, 7], **drawn)
    yield of(optimization, "muon_groups", net, lr=0.1, adamw_lr=0.1, not_hidden=["head"])
    yield of(optimization, "decay_groups", net, 0.1)
    yield of(training, "keep_layers", net.stack, [0])
    yield of(training, "layer_drop", net, 0.1)
    yield of(training, "stochastic_depth", net, 0.1, growing=True)
    yield of(training, "attention_entropy", net, tokens)
    yield of(training, "Monitoring", evaluate=len, every=3, patience=2)
    yield of(training, "Execution", accumulate=2, precision="float32")
    yield of(training, "Checkpointing", "run", every=3, keep=2)
    yield of(training, "choose_device", "cpu")


def of_interpret():
    net, tokens, other = decoder(), torch.arange(6).view(2, 3), torch.arange(6, 12).view(2, 3)
    stream, head = interpret.Site("stack.blocks.1.resid_post"), interpret.head_site(0, 1)
    with torch.no_grad(), interpret.capture(net, head.tap) as seen:
        net(tokens)
    losses = lambda model: model(tokens)[0].square().mean((1, 2))  # noqa: E731
    loss = lambda model: losses(model).mean().item()  # noqa: E731
    metric = lambda logits: (logits[..., 1] - logits[..., 2]).sum().item()  # noqa: E731
    yield of(interpret, "unembed", net, numbers(1, 2, 8))
    yield of(interpret, "fit_tuned_lens", net, [tokens, other])
    yield of(interpret, "head_effects", net, loss, how="mean", reference=other)
    yield of(interpret, "head_importance", net, losses)
    yield of(interpret, "pruned", net, [(0, 1)])
    yield of(interpret, "patch_sites", net, [head], {head.tap: seen[head.tap]})
    places = {"control": other}
    yield of(interpret, "activation_patching", net, tokens, other, metric, [head], **places)
    yield of(interpret, "path_patching", net, tokens, other, metric, [head], [stream])
    yield of(interpret, "random_heads", net, 2, without=[(0, 0)])
    yield of(interpret, "previous_token_scores", net, tokens)
    yield of(interpret, "duplicate_token_scores", net, torch.tensor([[1, 2, 1, 2, 3]]))
    for name in ("qk_circuit", "ov_circuit"):
        yield of(interpret, name, net, 0, 1)
    for name in ("token_qk", "token_ov"):
        yield of(interpret, name, net, 0, 1, torch.tensor([1, 2]))
    yield of(interpret, "composition_scores", net, "q")
    rows, labels = numbers(40, 3), torch.arange(40) % 2
    kinds = {"texts": torch.arange(40) // 4, "types": torch.arange(40) % 6, "share": 0.5}
    yield of(interpret, "probe", rows, labels, **kinds)
    words = torch.arange(32).view(8, 4)
    yield of(interpret, "probe_layers", numbers(2, 8, 4, 3), words % 2, types=words % 6)
    yield of(interpret, "nullspace", rows, labels, steps=2)
    wide, sparse = numbers(12, 8), interpret.SparseDictionary(8, 16, 4)
    yield of(interpret, "fit_dictionary", sparse, wide, steps=2, batch=4)
    yield of(interpret, "dictionary_rows", net, tokens, 0)
    yield of(interpret, "spliced", net, sparse, 0)
    yield of(interpret, "recovered_loss", net, sparse, tokens, 0)
    wanted = torch.arange(13) == 1
    tap = "stack.blocks.0.resid_post"
    yield of(interpret, "steering_effects", net, tokens, tap, wide[0], [0.0, 1.0], wanted)


def of_parallel():
    group, net = parallel.Group(), decoder()
    q = numbers(2, 4, 3)
    yield of(parallel, "attend_ring", q, q, q, group, causal=True, order="plain", scale=0.5)
    yield of(parallel, "attend_ulysses", q, q, q, group, causal=True, scale=0.5)
    yield of(parallel, "average_gradients", net.parameters(), group, bucket_bytes=99, weight=0.5)
    yield of(parallel, "timeline", parallel.gpipe(2, 2), forward=1.0, backward=2.0)
    yield of(parallel, "schedule_table", parallel.gpipe(2, 2), forward=2, backward=3)
    layer = models.Layer(models.Attention(2), models.FFN(16))
    config = models.TransformerConfig(16, 8, decoder=[layer] * 2)
    cluster = parallel.Cluster(costs.MACHINES["A100 80GB SXM"], 2)
    yield of(parallel, "estimate", config, parallel.Split(2), cluster, 4, 8, efficiency=0.5)
    yield of(parallel, "plans", config, cluster, 4, 8, headroom=0.2, micro_batches=[1, 2])
    yield of(parallel, "stage_accounts", config, parallel.Split(2), 4, 8)
    account = parallel.stage_accounts(config, parallel.Split(2), 4, 8)[0]
    yield of(parallel, "step_traffic", account, parallel.Split(2), 4)
    yield of(parallel, "Link", "wire", 1e-5, 1e9)
    yield of(parallel, "Split", data=2, tensor=2, recompute="full", flash=False)
    yield of(parallel, "ZeroOptimizer", net.parameters(), torch.optim.SGD, group, stage=1)
    yield of(parallel, "Stage", net, 2, 1)
    yield of(parallel, "PartialSum", net.stack.blocks[0].ffn, None, group)


def of_serving():
    yield of(serving, "Server", decoder(), n_pages=4, page_size=2, max_running=2)
    yield of(serving, "PageTable", 4, 2, share=False)
    yield of(serving, "error_body", serving.BadRequest("zz", 404, param="n", code="zz"))
    for name in ("tree_linear", "tiled_linear"):
        yield of(serving, name, numbers(3, 5), numbers(2, 5), numbers(2))
    yield of(serving, "batch_differences", decoder(), torch.arange(6).view(3, 2))
    yield of(serving, "BatchInvariant", rows=3)
    yield of(serving, "is_loopback", "127.0.0.1")
    yield of(serving, "Until", ["zz", "z"], ["z"])


def of_practice():
    net, tokens = decoder(), torch.arange(12).view(2, 6)
    with_lora, bent, chain = decoder(), decoder(), torch.nn.Sequential(torch.nn.Linear(3, 3))
    practice.add_lora(with_lora, 2)
    practice.add_bottlenecks(bent, 2)
    seed = {"generator": torch.Generator()}
    yield of(practice, "layer_rates", net, 0.1, decay=0.5, weight_decay=0.1)
    yield of(practice, "thaw", chain)
    yield of(practice, "dense_weight", torch.nn.Linear(3, 2))
    yield of(practice, "LoraLinear", torch.nn.Linear(3, 5), 2, alpha=3.0, dropout=0.1, **seed)
    yield of(practice, "add_lora", net, 2, alpha=3.0, where=["*.q_proj"], dropout=0.1, **seed)
    yield of(practice, "add_bottlenecks", net, 3, where=["*.out_proj"], **seed)
    for name in ("lora_layers", "merge_lora", "unmerge_lora", "bake_lora", "adapter_tensors"):
        yield of(practice, name, with_lora)
    for name in ("bottlenecks", "remove_adapters"):
        yield of(practice, name, bent)
    yield of(practice, "Prefix", net, 3, **seed)
    items = [("a", "x"), ("b", "y")]
    yield of(practice, "split_examples", practice.Examples("labels", items, ("x", "y"), ""), 3)
    letters = data.char_tokenizer("abcdefghijklm")
    found = pretrained.Pretrained("tiny", net, letters, net.config)
    talk = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
    letters = data.char_tokenizer("abcdefghijkl\n")
    yield of(practice, "answer_ids", pretrained.Pretrained("t", net, letters, net.config), talk)
    reader = models.build(models.preset("bert-base", vocab_size=13, d_model=8, n_layers=1,
                                        n_heads=2, d_ff=16, max_len=8))  # fmt: skip
    found = pretrained.Pretrained("tiny", reader, letters, reader.config)
    yield of(practice, "classifier_from", found, 3)
    classes = lambda ids, mask: numbers(2, 3)  # noqa: E731
    yield of(practice, "class_loss", classes, (tokens, tokens >= 0, torch.tensor([0, 2])))
    answers = training.Example(tokens, tokens)
    yield of(practice, "answer_loss", net, answers)
    yield of(practice, "resolve_tuning", {"data": "mine.txt"}, "text")
    choices = practice.resolve_tuning({"data": "mine.txt"}, "text")
    yield of(practice, "tuning_groups", net, choices)
    a, b, logits = numbers(3), numbers(3) + 1, numbers(2, 6, 13)
    yield of(practice, "bradley_terry_loss", a, b, margin=0.1)
    yield of(practice, "dpo_loss", a, b, b, a, beta=0.2, label_smoothing=0.1)
    yield of(practice, "preference_loss", net, (answers, answers), reference=net, beta=0.2)
    yield of(practice, "reference_drift", logits, logits + 1, tokens > 2)
    yield of(practice, "token_log_probs", logits, tokens)
    yield of(practice, "sequence_log_probs", logits, tokens)
    yield of(practice, "RewardModel", net)
    zeros = torch.zeros(2, 6)
    made = practice.Rollout(tokens, tokens, zeros, zeros[:, 0], zeros[:, 0] + 1)
    yield of(practice, "on_policy_distillation", net, made, teacher=net)
    yield of(practice, "group_advantages", numbers(3, 4), by_std=True)
    more = {"clip": (0.1, 0.2), "length": 5, "kl_weight": 0.1}
    yield of(practice, "grpo_loss", zeros, made, form="first", reference=zeros, **more)
    yield of(practice, "k3", a, b)
    yield of(practice, "rollout_loss", net, made, form="corrected", reference=net, **more)
    worth = lambda i, new: float(len(new))  # noqa: E731
    few = {"group": 2, "max_new_tokens": 2, "stop": [3], "seed": 1}
    yield of(practice, "sample_rollout", net, [[1, 2]], worth, **few)
    yield of(practice, "sums", 3, largest=5, **seed)
    given = {"rule": "any", "draws": 3, "seed": 1}
    yield of(practice, "accuracy_curve", [["a", "b"]], ["a"], [1, 2], **given)
    some = {"confidence": 0.9, "draws": 7, "seed": 1}
    yield of(practice, "bootstrap_interval", [1.0, 2.0, 4.0], **some)
    yield of(practice, "paired_interval", [1.0, 2.0], [2.0, 4.0], **some)
    yield of(practice, "wilson_interval", 3, 7, confidence=0.9)
    yield of(practice, "checklist", net, tokens)
    for name in ("dead_heads", "entropy_collapse"):
        yield of(practice, name, net, tokens, share=0.01)
    yield of(practice, "forgotten_eval", net, tokens)
    yield of(practice, "leaks", net, tokens, mask=tokens > 0, tolerance=0.1)
    loss = lambda model: training.causal_loss(model, tokens)  # noqa: E731
    yield of(practice, "gradient_flow", net, loss, low=0.1, high=9.0)
    yield of(practice, "start_loss", net, loss, 13, tolerance=0.2)
    yield of(practice, "stuck_on_one_batch", net, loss, steps=2, lr=0.1, share=0.5)
    yield of(practice, "rate_spikes", training.History([1.0] * 5, [1.0] * 5, [1.0] * 5), window=3)
    yield of(practice, "seen_tests", ["a b c"], ["b c d"], n=2)
    yield of(practice, "silent_broadcasts", torch.nn.functional.mse_loss, a, b)
    yield of(practice, "wrong_padding", tokens > 2, wanted="left")
    yield of(practice, "wrong_shift", tokens, tokens)


def of_hardware():
    forms, drawn = hardware.FORMATS, {"generator": torch.Generator()}
    yield of(hardware, "encode", numbers(3, 5), forms["e4m3"], saturate=True)
    yield of(hardware, "round_to", numbers(3, 5), forms["fp16"], stochastic=True, **drawn)
    yield of(hardware, "decode", torch.arange(16), forms["int4"])
    yield of(hardware, "FloatFormat", "e3m2", 3, 2, bias=3, special="none")
    yield of(hardware, "IntFormat", "int5", 5)
    blocks = hardware.encode_blocks(numbers(2, 32), "nvfp4")
    yield of(hardware, "decode_blocks", blocks)
    scaler = hardware.LossScaler(8.0, growth=2.0, backoff=0.5, interval=3)
    yield of(hardware, "LossScaler", 8.0, growth=2.0, backoff=0.5, interval=3)
    yield "LossScaler()", scaler.scaled, (numbers(1)[0],), {}
    layer, x = models.Layer(models.Attention(2), models.FFN(7)), numbers(3, 8).requires_grad_()
    config = models.TransformerConfig(11, 8, decoder=[layer] * 4, max_len=13)
    yield of(hardware, "run_checkpointed", [torch.sin] * 4, x, every=2)
    yield of(hardware, "checkpointed_bytes", config, 5, 2, every=2)
    yield of(hardware, "training_memory", config, 5, 2, precision="mixed", every=2)
    yield of(hardware, "largest_batch", config, 1e7, 5, optimizer="sgd", every=1)
    yield of(hardware, "quantise", numbers(4, 6), 4, shared=3, symmetric=False)
    yield of(hardware, "restore", hardware.quantise(numbers(4, 6)))
    yield of(hardware, "pack", hardware.quantise(numbers(16, 32), 4, shared=32))
    net = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.Linear(16, 4))
    yield of(hardware, "quantise_model", net, 4, shared=4, skip=["1"])
    yield of(hardware, "pack_model", net, 8, skip=["1"])
    yield of(hardware, "linear_outliers", numbers(3, 6), numbers(4, 6), threshold=1.0)
    for name in ("gptq", "awq"):
        yield of(hardware, name, numbers(4, 6), numbers(7, 6), 3, shared=3, symmetric=False)


ROOMS = {
    "data": of_data,
    "metrics": of_metrics,
    "costs": of_costs,
    "positions": of_positions,
    "attention": of_attention,
    "recurrent": of_recurrent,
    "models": of_models,
    "generation": of_generation,
    "training": of_training,
    "interpret": of_interpret,
    "hardware": of_hardware,
    "parallel": of_parallel,
    "serving": of_serving,
    "practice": of_practice,
}
