"""Fine-tuning by backpropagation: reconstruction, classification or regression."""

from syncpretrain.finetuning.call import finetune

__all__ = ["finetune"]
