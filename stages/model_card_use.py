"""How a model of each objective is used: the lines of code that its card shows."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.stage import Json

PRETRAINED = "pretrained"

PIPELINES = {
    "classification": "text-classification",
    "regression": "text-classification",
    "tagging": "token-classification",
    "answers": "question-answering",
    PRETRAINED: "fill-mask",
}
"""Names of Hugging Face's tasks."""

_COMMANDS = {
    "classification": "clozeline predict classify FOLDER 'a text'",
    "regression": "clozeline predict pair FOLDER 'a text' 'another text'",
    "tagging": "clozeline predict tag FOLDER 'a text'",
    "answers": "clozeline predict answer FOLDER 'a question?' 'the text that answers it'",
    PRETRAINED: "clozeline predict fill-mask FOLDER 'a text with a [MASK] in it'",
}
_PIPELINE = """\
from transformers import pipeline

ask = pipeline("{task}", model="FOLDER"{options})
ask("{example}")"""
_ANSWERS = """\
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForQuestionAnswering.from_pretrained("FOLDER").eval()
row = tokenizer("a question?", "the text that answers it", return_tensors="pt")
with torch.no_grad():
    scores = model(**row)
start, end = scores.start_logits.argmax(), scores.end_logits.argmax()
tokenizer.decode(row["input_ids"][0, start : end + 1])"""
_ONNX = """\
import onnxruntime
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
session = onnxruntime.InferenceSession("FOLDER/model.onnx")
row = tokenizer({example}, return_tensors="np")
session.run(None, {{name: row[name] for name in row}})"""


def use(described: Mapping[str, Json], onnx: bool) -> str:
    """Markdown: with transformers, on the command line and, where it is there, by ONNX Runtime."""
    objective = str(described["objective"])
    parts = [_code("python", _transformers(objective)), _code("sh", _COMMANDS[objective])]
    if onnx:
        example = '"a question?", "a text"' if objective == "answers" else '"a text"'
        parts.append(_code("python", _ONNX.format(example=example)))
    parts.append("FOLDER is the folder that this file lies in.")
    return "\n\n".join(parts)


def _transformers(objective: str) -> str:
    if objective == "answers":
        # transformers 5 has no pipeline for it.
        return _ANSWERS
    options = ', aggregation_strategy="first"' if objective == "tagging" else ""
    example = "a text with a [MASK] in it" if objective == PRETRAINED else "a text"
    return _PIPELINE.format(task=PIPELINES[objective], options=options, example=example)


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"
