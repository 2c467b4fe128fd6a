"""What attention costs, as plain numbers: parameters, floating-point operations, bytes.

Nothing here allocates or computes a tensor; the numbers equal those counted from real modules.
One multiplication with its addition counts as 2 FLOPs. Adding a bias, rotating, scaling and the
softmax are left out, as PyTorch's ``torch.utils.flop_counter`` leaves them out: they grow with the
number of entries, not with the size of a product.

Explained in: chapters/03_multi_head, section "What heads cost".
"""

from tfbook.costs.caches import kv_cache_bytes, latent_cache_bytes
from tfbook.costs.heads import attention_flops, attention_flops_parts, attention_parameters
from tfbook.costs.latent import latent_flops, latent_flops_parts, latent_parameters

__all__ = [
    "kv_cache_bytes",
    "latent_cache_bytes",
    "attention_flops",
    "attention_flops_parts",
    "attention_parameters",
    "latent_flops",
    "latent_flops_parts",
    "latent_parameters",
]
