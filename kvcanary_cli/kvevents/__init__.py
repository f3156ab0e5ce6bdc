"""KV event streams of vLLM, SGLang and Dynamo: decoded, recorded from a publisher, and audited."""
