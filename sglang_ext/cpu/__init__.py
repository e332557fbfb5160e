"""SGLang's layers on the operators of kernels/cpu/: what platform.py installs where there is no accelerator."""
