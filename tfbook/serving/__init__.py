"""One model that serves many: a cache in pages, a batch made anew for every token, a server.

Explained in: chapters/17_hardware, section "Serving many".
"""

from tfbook.serving.answering import Handler
from tfbook.serving.batching import Server, ServerStats, Streamed
from tfbook.serving.completions import (
    BadRequest,
    CompletionRequest,
    error_body,
    read_completion,
)
from tfbook.serving.endings import Until
from tfbook.serving.endpoint import Endpoint
from tfbook.serving.engine import Engine, Overloaded, Stopped, Ticket
from tfbook.serving.invariance import (
    BatchDifferences,
    BatchInvariant,
    batch_differences,
    tiled_linear,
    tree_linear,
)
from tfbook.serving.listening import Listener, is_loopback
from tfbook.serving.paged import PagedCache, RaggedKVState
from tfbook.serving.pages import OutOfPages, PageTable
from tfbook.serving.waste import StaticBatches, paged_waste, static_batches

__all__ = [
    "OutOfPages",
    "PageTable",
    "PagedCache",
    "RaggedKVState",
    "BatchDifferences",
    "BatchInvariant",
    "batch_differences",
    "tiled_linear",
    "tree_linear",
    "Server",
    "ServerStats",
    "Streamed",
    "StaticBatches",
    "paged_waste",
    "static_batches",
    "Until",
    "Engine",
    "Overloaded",
    "Stopped",
    "Ticket",
    "BadRequest",
    "CompletionRequest",
    "error_body",
    "read_completion",
    "Listener",
    "is_loopback",
    "Handler",
    "Endpoint",
]
