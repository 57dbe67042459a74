"""The knobs that a Hugging Face or TRL trainer has: settings that it reads again at every step."""
