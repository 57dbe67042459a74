"""Connects Hugging Face's Trainer and TRL's trainers to the controller."""
