"""Hugging Face's Trainer under raybench: a small BERT learns whether a text has more 1s than 2s.

raybench tune own_loop.yaml --train hugging_face.py:train
"""

import numpy as np
import transformers

import raybench
from raybench import integrations

TEXTS = np.random.default_rng(0).integers(1, 3, (1200, 15))
ROWS = [{"input_ids": text, "labels": int((text == 1).sum() > 7)} for text in TEXTS]


def accuracy(found: transformers.EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


def train(run: raybench.Run) -> None:
    size = run.model["hidden_units"]
    sizes = {"hidden_size": size, "intermediate_size": size, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=3, num_hidden_layers=1, **sizes)
    callback = integrations.HuggingFace(run)
    transformers.Trainer(
        transformers.BertForSequenceClassification(config),
        transformers.TrainingArguments(
            output_dir=str(run.folder),
            learning_rate=run.learning_rate,
            per_device_train_batch_size=run.batch_size_per_worker,
            num_train_epochs=run.spec.epochs,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            report_to="none",
            seed=run.seed,
        ),
        train_dataset=ROWS[:1000],
        eval_dataset=ROWS[1000:],
        compute_metrics=accuracy,
        callbacks=[callback],
    ).train(resume_from_checkpoint=callback.checkpoint)
