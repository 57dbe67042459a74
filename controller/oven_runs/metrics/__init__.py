"""The names of metrics: which columns of other trainers are the loss, the reward, and other standard metrics."""
