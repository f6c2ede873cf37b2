"""One worker: a device, a model, the request table, the KV tensors; driven by scheduler outputs."""
