"""Hugging Face's Trainer fits a small BERT that classifies whether a text has more 1s than 2s.

python text_classifier.py, or torchrun --nproc-per-node 2 text_classifier.py
"""

import numpy as np
import transformers

TEXTS = np.random.default_rng(0).integers(1, 3, (1200, 15))
ROWS = [{"input_ids": text, "labels": int((text == 1).sum() > 7)} for text in TEXTS]


def accuracy(found: transformers.EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


def main() -> None:
    arguments = transformers.TrainingArguments(
        learning_rate=1e-3,
        per_device_train_batch_size=32,
        num_train_epochs=5,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    transformers.set_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=3, num_hidden_layers=1, **sizes)
    model = transformers.BertForSequenceClassification(config)
    data = {"train_dataset": ROWS[:1000], "eval_dataset": ROWS[1000:]}
    trainer = transformers.Trainer(model, arguments, **data, compute_metrics=accuracy)
    trainer.train()
    if arguments.process_index == 0:
        print(trainer.state.log_history[-2])  # the last evaluation


if __name__ == "__main__":
    main()
