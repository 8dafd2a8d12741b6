"""How long a prompt is for the text encoders of a pipeline, and what they cut off."""

from collections.abc import Sequence

from headway.core.artifacts import PromptRead
from headway.engines.diffusion.families.protocol import Reader
from headway.engines.diffusion.rows import Row


def tokens_of(reader: Reader, prompt: str) -> int:
    """Tokens of the whole prompt, the reader's special ones included."""
    found = reader.tokenizer(reader.worded(prompt), truncation=False, verbose=False)
    return len(found.input_ids) - reader.dropped


def read_by(readers: Sequence[Reader], row: Row) -> PromptRead:
    """What the readers saw of a row's words; the first of them gives the transformer its text."""
    said = row.request.content
    words = {"prompt": said.prompt}
    if row.negative is not None and said.negative_prompt:
        words["negative_prompt"] = said.negative_prompt
    counts = {(name, reader): tokens_of(reader, text) for name, text in words.items() for reader in readers}
    cut = [
        f"`{name}` has {count} tokens; the text encoder {reader.name} read only the first {reader.most}."
        for (name, reader), count in counts.items()
        if count > reader.most
    ]
    return PromptRead(min(counts["prompt", readers[0]], readers[0].most), tuple(cut))
