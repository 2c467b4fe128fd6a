"""What attention costs, as plain numbers: parameters, floating-point operations, bytes.

Nothing here allocates or computes a tensor, but for :func:`measure_machine`, which times some; the
numbers equal those counted from real modules.
One multiplication with its addition counts as 2 FLOPs. Adding a bias, rotating, scaling and the
softmax are left out, as PyTorch's ``torch.utils.flop_counter`` leaves them out: they grow with the
number of entries, not with the size of a product. Scaling laws say what loss so many parameters
and tokens bring, and are fitted with small tensors.

Explained in: chapters/03_multi_head, section "What heads cost".
"""

from tfbook.costs.budgets import (
    compute_optimal,
    forward_flops,
    isoflop_minimum,
    serving_optimal,
    training_days,
    training_flops,
)
from tfbook.costs.caches import kv_cache_bytes, latent_cache_bytes
from tfbook.costs.heads import attention_flops, attention_flops_parts, attention_parameters
from tfbook.costs.latent import latent_flops, latent_flops_parts, latent_parameters
from tfbook.costs.machines import (
    MACHINES,
    Machine,
    Work,
    attention_work,
    linear_intensity,
    measure_machine,
)
from tfbook.costs.networks import (
    convolution_flops,
    convolution_parameters,
    path_length,
    recurrent_flops,
    recurrent_parameters,
    sequential_steps,
)
from tfbook.costs.power_laws import (
    BESIROGLU,
    HOFFMANN,
    KAPLAN,
    KAPLAN_JOINT,
    MUENNIGHOFF,
    ChinchillaLaw,
    DataConstrainedLaw,
    KaplanLaw,
    PowerLaw,
    bootstrap,
    fit_chinchilla,
    fit_power_law,
    interval,
)

__all__ = [
    "kv_cache_bytes",
    "latent_cache_bytes",
    "attention_flops",
    "attention_flops_parts",
    "attention_parameters",
    "latent_flops",
    "latent_flops_parts",
    "latent_parameters",
    "MACHINES",
    "Machine",
    "Work",
    "attention_work",
    "linear_intensity",
    "measure_machine",
    "convolution_flops",
    "convolution_parameters",
    "path_length",
    "recurrent_flops",
    "recurrent_parameters",
    "sequential_steps",
    "BESIROGLU",
    "HOFFMANN",
    "KAPLAN",
    "KAPLAN_JOINT",
    "MUENNIGHOFF",
    "ChinchillaLaw",
    "DataConstrainedLaw",
    "KaplanLaw",
    "PowerLaw",
    "bootstrap",
    "fit_chinchilla",
    "fit_power_law",
    "interval",
    "compute_optimal",
    "forward_flops",
    "isoflop_minimum",
    "serving_optimal",
    "training_days",
    "training_flops",
]
