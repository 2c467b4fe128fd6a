"""Practice: fine-tuning with few weights or all, preferences, checkers, honest numbers, debugging.

Adapters (LoRA, DoRA, over quantised layers; bottlenecks; prefixes) and their files; classification
and instruction tuning of pretrained models; DPO and reward models; GRPO and distillation on the
model's own samples; pass@k, intervals, contamination; a checklist of faults that finds them.

Explained in: chapter 18.
"""

from tfbook.practice.adapter_files import adapter_tensors, load_adapter, save_adapter
from tfbook.practice.adapters import (
    Bottleneck,
    Prefix,
    Prefixed,
    add_bottlenecks,
    bottlenecks,
    remove_adapters,
)
from tfbook.practice.finetuning import (
    TrainedOnly,
    answer_batch,
    answer_ids,
    answer_loss,
    class_loss,
    classifier_from,
)
from tfbook.practice.freezing import Trained, count_trained, freeze, layer_rates, matching, thaw
from tfbook.practice.lora import (
    LinearLike,
    LoraLinear,
    RoundedLinear,
    add_lora,
    bake_lora,
    dense_weight,
    lora_layers,
    merge_lora,
    unmerge_lora,
)
from tfbook.practice.reading import KINDS, Examples, read_examples, split_examples
from tfbook.practice.tuning_runs import (
    TUNING,
    Tuned,
    check_tuning,
    holds_tuning,
    load_tuned,
    make_tuning,
    read_tuning,
    resolve_tuning,
    tuning_groups,
    write_tuning,
)

__all__ = [
    "Trained",
    "count_trained",
    "freeze",
    "layer_rates",
    "matching",
    "thaw",
    "LinearLike",
    "LoraLinear",
    "RoundedLinear",
    "add_lora",
    "bake_lora",
    "dense_weight",
    "lora_layers",
    "merge_lora",
    "unmerge_lora",
    "Bottleneck",
    "Prefix",
    "Prefixed",
    "add_bottlenecks",
    "bottlenecks",
    "remove_adapters",
    "adapter_tensors",
    "load_adapter",
    "save_adapter",
    "KINDS",
    "Examples",
    "read_examples",
    "split_examples",
    "TrainedOnly",
    "answer_batch",
    "answer_ids",
    "answer_loss",
    "class_loss",
    "classifier_from",
    "TUNING",
    "Tuned",
    "check_tuning",
    "holds_tuning",
    "load_tuned",
    "make_tuning",
    "read_tuning",
    "resolve_tuning",
    "tuning_groups",
    "write_tuning",
]
