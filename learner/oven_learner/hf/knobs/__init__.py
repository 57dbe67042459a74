"""The knobs of a Hugging Face or TRL trainer. They are settings that the trainer reads again at every step."""
