"""The machinery: everything that knows Ray, vLLM, torch or DeepSpeed. Adapters for the protocols of `coevo.ports`; no method."""
