"""The bench that checks that `attach` works next to other versions of TRL, transformers and Lightning."""
