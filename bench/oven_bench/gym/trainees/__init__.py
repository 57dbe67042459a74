"""The trainees: small training jobs that a fault can act on and an arm can steer, one module for each kind."""
