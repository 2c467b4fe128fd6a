"""From a model to text: choosing tokens, the loop, beams, drafts, grammars.

Explained in: chapters/12_generation.
"""

from tfbook.generation.beam import Hypothesis, beam_search
from tfbook.generation.conversation import Conversation, converse
from tfbook.generation.decoding import Generation, generate, stream
from tfbook.generation.grammar import Grammar, Guide
from tfbook.generation.prompts import (
    Asked,
    LanguageModel,
    Prompt,
    Stop,
    TextModel,
    check_model,
    check_room,
    context_of,
    device_of,
    forgets,
    make_generator,
    make_generators,
    pad,
    read_asked,
    read_prompts,
    read_stop,
    start_state,
    stop_count,
)
from tfbook.generation.sampling import (
    GREEDY,
    Sampling,
    check_sampling,
    draw,
    greedy,
    log_prob_of,
    min_p,
    repetition_penalty,
    temperature,
    top_k,
    top_p,
)
from tfbook.generation.scoring import perplexity, score
from tfbook.generation.speculative import (
    FirstLayers,
    NGramDraft,
    NGramState,
    Speculation,
    accept_probability,
    residual_distribution,
    speculative_generate,
)
from tfbook.generation.streaming import pieces
from tfbook.generation.tables import TableModel, TableState

__all__ = [
    "pieces",
    "Asked",
    "LanguageModel",
    "Prompt",
    "Stop",
    "TextModel",
    "check_model",
    "check_room",
    "context_of",
    "device_of",
    "forgets",
    "make_generator",
    "make_generators",
    "pad",
    "read_asked",
    "read_prompts",
    "read_stop",
    "start_state",
    "stop_count",
    "GREEDY",
    "Sampling",
    "check_sampling",
    "draw",
    "greedy",
    "log_prob_of",
    "min_p",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
    "TableModel",
    "TableState",
    "perplexity",
    "score",
    "Generation",
    "generate",
    "stream",
    "Conversation",
    "converse",
    "Hypothesis",
    "beam_search",
    "FirstLayers",
    "NGramDraft",
    "NGramState",
    "Speculation",
    "accept_probability",
    "residual_distribution",
    "speculative_generate",
    "Grammar",
    "Guide",
]
