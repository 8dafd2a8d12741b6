"""Talks to OpenAI-compatible servers: vLLM, SGLang, llama.cpp, TGI, another Headway."""
