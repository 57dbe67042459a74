"""The GRPO trainee: a small policy that sorts digits, judged by a committee of three."""
