"""The method: harness evolution and on-policy correction, in pure Python.

Imports none of ray, vllm, torch, deepspeed, transformers, boto3.
"""

__version__ = "0.1.0"
