"""The knobs of a Hugging Face or TRL trainer, which are settings that it reads again at every step."""
