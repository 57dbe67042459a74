"""The knobs of a Hugging Face or TRL trainer. They are settings that it reads again at every step."""
