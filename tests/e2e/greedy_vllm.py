"""Run by test_two_steps.py: greedy token ids of a model folder from vLLM, as JSON. argv: folder, prompts as JSON."""

import json
import os
import sys

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}

from vllm import LLM, SamplingParams

if __name__ == "__main__":
    model = LLM(sys.argv[1], dtype="float32", max_model_len=256, enforce_eager=True)
    messages = [[{"role": "user", "content": prompt}] for prompt in json.loads(sys.argv[2])]
    answers = model.chat(messages, SamplingParams(temperature=0.0, max_tokens=24), use_tqdm=False)
    print("RESULT " + json.dumps([list(answer.outputs[0].token_ids) for answer in answers]), flush=True)
    os._exit(0)
