"""The diffusion engine: denoise plans in, pictures and videos out, through the components of a diffusers pipeline.

Stage by stage and step by step; a pipeline is never called as a whole, because calls can be neither batched with others
nor interrupted, saved or resumed.
"""

import os

# Read when OpenMP is loaded with torch: waiting threads sleep, as in `engines.llm`.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# transformers prints about a hundred lines at import where torchvision is missing, as it must be beside a CPU torch.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
