"""What a supervised run costs besides its models."""
