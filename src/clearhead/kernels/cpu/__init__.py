"""Attention for CPUs, written in Python and compiled by Numba. Read `run` first, then `forward`, then `tile`.

| file | what it is for |
|---|---|
| `run` | what the rest of the library calls: attention, backward, observe |
| `forward`, `backward`, `decode` | the kernels |
| `observe` | what is measured while `forward` runs |
| `strip`, `logits`, `rows` | memory of a strip; from products to logits; the caller's tensors in and out |
| `tile`, `powers`, `vector` | micro-kernels; 2^x and friends; vectors as values in Numba code |
| `tasks` | how a kernel is handed out to its workers |
| `machine`, `call`, `threads`, `build` | register shapes; a call as integers; torch's threads; compiling and keeping |
"""
