"""Names that other trainers give to steps and metrics. All are canonical: see `metric_names.canonical`."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


RELIABLE_STEPS = _words("""
    train_global_step trainer_global_step training_global_step global_step global_steps step steps current_steps
    current_step train_step training_step total_step n_step time_total_timesteps total_timesteps num_timesteps
    timesteps_total total_env_steps env_steps num_env_steps_sampled timesteps timestep num_updates update_step
""")
"""Columns that count steps in nearly every source that has them, most reliable first."""
OTHER_COUNTERS = _words("""
    iteration iterations iter iters itr it n_iter training_iteration time_iterations train_iter global_iter update
    updates n_updates episode episodes time_episodes ep episode_number round generation epoch epochs epoch_number
    train_epoch batch batches batch_idx index idx
""")
"""Columns that may count steps, most reliable first."""
EPOCHS = frozenset(_words("epoch epochs epoch_number train_epoch"))
BATCHES = frozenset(_words("batch batches batch_idx index idx"))
CLOCKS = _words("""
    timestamp wall_time datetime date time_time_elapsed time_elapsed elapsed_time remaining_time eta eta_seconds
    percentage progress total_steps max_steps total_epochs max_epochs total_iters max_iters num_tokens total_tokens
    tokens_seen consumed_samples total_flos seed hp_metric
""")
"""Columns that tell the time, or the same in every row."""
NOT_GAUGES = frozenset(RELIABLE_STEPS + OTHER_COUNTERS + CLOCKS)
"""Columns that are not metrics."""

LOSSES = _words("""
    loss total_loss loss_total loss_step loss_epoch mean_loss loss_mean avg_loss average_loss loss_avg epoch_loss
    running_loss batch_loss lm_loss lm_loss_value ce_loss cross_entropy_loss nll_loss nll cross_entropy xent trl
    learn losses current_loss sft_loss cost
""")
"""Columns with the loss that the training minimizes, most reliable first. The word `train` is removed."""
REWARDS = _words("""
    reward rollout_ep_rew_mean critic_score_mean critic_rewards_mean ep_rew_mean mean_reward reward_mean avg_reward
    average_reward episode_reward_mean env_runners_episode_return_mean env_runners_episode_reward_mean
    episode_reward mean_episode_reward mean_episode_rewards rewards_mean_episodes episodic_return
    charts_episodic_return episode_return episode_returns mean_return return_mean average_return avg_return ep_ret
    average_ep_ret eprewmean objective_rlhf_reward episode_score ep_reward ep_return total_reward
    mean_100_episode_reward mean_100ep_reward rewards_mean rewards reward_score return returns
""")
"""Columns with the reward that the training maximizes, most reliable first. The word `train` is removed."""
WEAK_REWARDS = _words("score mean_score avg_score average_score rm r")
"""Columns with the reward if there is no loss."""
ALGORITHM_TERMS = _words("""
    value values vf v critic policy pg pi actor entropy q qf q1 q2 qf1 qf2 td alpha ent_coef surrogate surr kl
    policy_gradient value_function ppo temperature
""")
"""Terms of an RL algorithm's loss, as in `policy_loss`. Such losses do not measure how good the policy is."""
RL_SIGNS = _words("explained_variance exploration_rate n_updates ep_len_mean clip_fraction pg_clipfrac")
"""Ends of columns that RL libraries log next to the total loss, which is a sum of terms of the algorithm."""
ALIASES = {
    "learning_rate": _words("""
        learning_rate lr actor_lr current_lr current_learning_rate base_lr lr_pg0 lr_0 x_lr0 lr0 learning_rate_0
        optim_lr optimizer_lr act_lr optim_learning_rate_group0 lr_group_0 lr_group0 lr_adam lr_adamw lr_sgd lr_adam_pg1
        lr_adamw_pg1 lr_sgd_pg1
    """),
    "grad_norm": _words("""
        grad_norm gradient_norm gnorm actor_grad_norm grad_norm_total total_grad_norm norm optim_total_grad_norm
        global_grad_norm total_norm grad_2_0_norm_total
    """),
    "entropy": _words("entropy actor_entropy actor_entropy_loss policy_entropy mean_entropy"),
    "kl": _words("kl critic_kl actor_kl mean_kl"),
    "completions/mean_length": _words("completions_mean_length response_length_mean"),
    "completions/clipped_ratio": _words("completions_clipped_ratio response_length_clip_ratio"),
}
"""For each metric, columns that may have its values, most reliable first. The word `train` is removed."""

WEAK_NORMS = _words("norm total_norm")
"""Aliases of `grad_norm` that may also be another norm."""
WEAK_KLS = _words("kl mean_kl")
"""Aliases of `kl` that may also be a term of another loss than a policy's, such as a variational autoencoder's."""

HELD_OUT_PREFIXES = _words("eval evaluation val validation valid test testing dev heldout held_out holdout")
"""Words that mark held-out metrics, in order of preference."""
TRAINING_WORDS = _words("train training metrics")
"""Words that do not distinguish metrics of the training data."""
OTHER_MODELS = _words("critic value ref reference disc discriminator d q teacher")
"""Groups of metrics of models other than the one that is trained for the objective."""
SPLIT_COLUMNS = _words("mode split phase stage subset dataset_split event type kind")
"""Columns whose text says on which data a row was measured."""
AMBIGUOUS_PREFIXES = _words("valid test testing dev")
"""Words that mark held-out metrics only if the rest is the name of a metric. `valid_actions` is not held out."""
SPEED_METRICS = _words("runtime samples_per_second steps_per_second")
"""Ends of metrics that an evaluation logs in addition to the held-out ones."""
UP = _words("""
    acc accuracy f1 map bleu rouge rouge1 rouge2 rougel rougelsum auc auroc auprc dice iou miou precision recall
    reward rewards rew return score psnr ssim chrf success mcc r2 pearson spearman spearmanr meteor ndcg mrr
    specificity sensitivity kappa f1score top1 top5 hits exactmatch pass win winrate entsf sentsf scf uas las
""")
"""Last words of metrics of which higher values are better."""
DOWN = _words("""
    loss losses wer cer ppl perplexity mse mae rmse mape error nll bpb bpc fid logloss mlogloss brier ece
    crossentropy xent l1 l2 trl tel learn
""")
"""Last words of metrics of which lower values are better."""
QUALIFIERS = _words("""
    macro micro weighted binary ovr mean avg average overall total step epoch train top score rate value b m p l
    lsum 0 1 2 3 5 10 50 75 95 100
""")
"""Words after a metric's name that do not change its direction. `std`, `min` and `max` are not among them."""
STATISTICS = _words("std min max var count len length time size ratio scale weight mask")
"""Last words of names that are not the metric itself."""
