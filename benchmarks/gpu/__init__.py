"""What an accelerator gives, and what of it attention, training and decoding reach.

``python -m benchmarks.gpu --device cuda --out gpu.json`` on a machine with a GPU; on a processor
``--device cpu`` runs everything at tiny sizes, to see that the harness works. No result is shipped.
"""
