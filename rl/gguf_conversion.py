"""``python -m rl.gguf_conversion SOURCE.gguf FOLDER``: one GGUF file in, a stock model folder in bfloat16 out.

A process of its own: unpacking needs several times the memory of the model, and the importing costs seconds.
"""

import sys
from pathlib import Path


def convert_gguf(source: Path, folder: Path) -> None:
    """Write config, tokenizer, chat template and bfloat16 safetensors of the model in ``source`` into ``folder``."""
    import torch  # heavy imports stay inside, so that importing this module costs nothing
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
