"""From a model to text: choosing tokens, the loop, beams, drafts.

Explained in: chapters/12_generation.
"""

from tfbook.generation.beam import Hypothesis, beam_search
from tfbook.generation.decoding import (
    Generation,
    TableModel,
    TableState,
    generate,
    perplexity,
    score,
    stream,
)
from tfbook.generation.prompts import (
    LanguageModel,
    Prompt,
    Stop,
    check_model,
    check_room,
    context_of,
    device_of,
    make_generator,
    pad,
    read_prompts,
    read_stop,
    start_state,
    stop_count,
)
from tfbook.generation.sampling import (
    draw,
    greedy,
    min_p,
    repetition_penalty,
    temperature,
    top_k,
    top_p,
    warp,
)
from tfbook.generation.speculative import (
    FirstLayers,
    NGramDraft,
    NGramState,
    Speculation,
    accept_probability,
    residual_distribution,
    speculative_generate,
)

__all__ = [
    "LanguageModel",
    "Prompt",
    "Stop",
    "check_model",
    "check_room",
    "context_of",
    "device_of",
    "make_generator",
    "pad",
    "read_prompts",
    "read_stop",
    "start_state",
    "stop_count",
    "draw",
    "greedy",
    "min_p",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
    "warp",
    "Generation",
    "TableModel",
    "TableState",
    "generate",
    "perplexity",
    "score",
    "stream",
    "Hypothesis",
    "beam_search",
    "FirstLayers",
    "NGramDraft",
    "NGramState",
    "Speculation",
    "accept_probability",
    "residual_distribution",
    "speculative_generate",
]
