"""Text to tokens and back: `tokenizers` files, Jinja chat templates, incremental detokenization."""

from headway.adapters.tokenizer.chat_template import TemplateError
from headway.adapters.tokenizer.detokenizer import Detokenizer
from headway.adapters.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "TemplateError", "Tokenizer"]
