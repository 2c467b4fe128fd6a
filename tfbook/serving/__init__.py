"""One model that serves many: a cache in pages, and a batch that is made anew for every token.

Explained in: chapters/17_hardware, section "Serving many".
"""

from tfbook.serving.batching import Server, ServerStats, Streamed
from tfbook.serving.paged import PagedCache, RaggedKVState
from tfbook.serving.pages import OutOfPages, PageTable
from tfbook.serving.waste import StaticBatches, paged_waste, static_batches

__all__ = [
    "OutOfPages",
    "PageTable",
    "PagedCache",
    "RaggedKVState",
    "Server",
    "ServerStats",
    "Streamed",
    "StaticBatches",
    "paged_waste",
    "static_batches",
]
