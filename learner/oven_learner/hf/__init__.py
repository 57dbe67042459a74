"""The adapter for Hugging Face's Trainer and TRL's trainers."""
