"""Names of hyperparameters and statistics in other libraries, and Everstep's names for them.

Errors about unknown names suggest them. A colon after Everstep's name begins a note on how to
convert the value. Of several names of Everstep's, the first that is valid in that place is
suggested.
"""

from typing import Any

_RETURN = "episodes/return_mean_100"
_LENGTH = "episodes/length_mean"
_MINIBATCHES = "sgd_minibatch_size: num_envs * horizon / minibatches"
_LR_SCHEDULE = "lr_schedule: linear, a function, or points such as [[0, 3e-4], [1_000_000, 0]]"
_REWARDS = "normalize_rewards: running"
_VF_CLIP = "vf_clip_param: a distance, or null for no clipping"
_ACTIVATION = "model_config.activation_fn"

#: What Everstep has for methods and attributes of other libraries' trainers.
METHODS: dict[str, str] = {
    "learn": "run(total_env_steps=…)",
    "train": "run(total_env_steps=…)",
    "fit": "run(total_env_steps=…)",
    "predict": "algorithm.policy.predict(obs)",
    "policy": "algorithm.policy",
    "model": "algorithm.policy.model",
    "env": "algorithm.env",
    "evaluate": "eval()",
    "save_model": "save()",
    "load": "load_checkpoint(path)",
    "config": "algorithm.config",
    "get_env": "algorithm.env",
    "num_timesteps": "state['env/steps']",
    "get_parameters": "state_dict()",
    "set_parameters": "load_state_dict(state)",
}

#: What Everstep has for classes and functions of other libraries, by their names.
CLASSES: dict[str, str] = {
    "PPO": "everstep.Trainer('CartPole-v1', …) trains PPO",
    "A2C": "everstep.Trainer('CartPole-v1', objective='a2c') trains A2C",
    **dict.fromkeys(
        ("SAC", "TD3", "DDPG", "DQN", "TRPO", "HER", "QRDQN"),
        "everstep.Trainer('CartPole-v1', …) trains PPO and A2C; off-policy methods are not here",
    ),
    "RecurrentPPO": "everstep.RecurrentTrainer('CartPole-v1', …) trains PPO with memory",
    "PPOConfig": "everstep.AlgorithmConfig(…) has the hyperparameters of PPO",
    "Agent": "everstep.Trainer('CartPole-v1', …) trains PPO, everstep.Policy acts",
    "OnPolicyRunner": "everstep.Trainer('CartPole-v1', …) trains PPO",
    "ActorCriticPolicy": "everstep.Policy acts; models are in everstep.models",
    "evaluate_policy": "everstep.evaluate(policy, env, episodes=10)",
    "make_vec_env": "everstep.make('CartPole-v1', num_envs)",
    "make_vec": "everstep.make('CartPole-v1', num_envs)",
    "DummyVecEnv": "everstep.make('CartPole-v1', num_envs)",
    "SubprocVecEnv": "everstep.make('CartPole-v1', num_envs, vectorization_mode='async')",
    "VecNormalize": "the hyperparameters normalize_observations and normalize_rewards",
    "VecFrameStack": "everstep.make('ale:pong', num_envs, stack_num=4), or wrappers=[…]",
    "VecMonitor": "statistics of episodes are always recorded",
    "Monitor": "statistics of episodes are always recorded",
    "EvalCallback": "the arguments eval_env and best of everstep.Trainer, steps_per_eval of run",
    "CheckpointCallback": "the argument checkpoint_every of everstep.Trainer",
    "BaseCallback": "everstep.callbacks.Callback",
    "Callback": "everstep.callbacks.Callback",
    "load": "everstep.Policy.load(path), or everstep.Trainer.load(run_dir)",
    "train": "everstep.Trainer('CartPole-v1').run(total_env_steps=…)",
}

#: What other libraries have and Everstep has under no name, with the way out.
ABSENT: dict[str, str] = {
    "verbose": "progress is always shown; in Python `progress=False` hides it",
    "progress_bar": "progress is always shown; in Python `progress=False` hides it",
    "callback": "the trainer takes it: `everstep.Trainer(…, callbacks=[…])`",
    "callbacks": "the trainer takes them: `everstep.Trainer(…, callbacks=[…])`",
    "log_interval": "every train step is logged: drop it",
    "stats_window_size": "means are of the last 100 episodes: drop it",
    "reset_num_timesteps": "a run counts on; another trainer begins at 0: drop it",
    "framework": "Everstep is written in PyTorch: drop it",
    "use_gae": "advantages are always GAE's; `gae_lambda=1` is returns minus values: drop it",
    "use_critic": "there is always a critic: drop it",
    "batch_mode": "rollouts are cut at `horizon`, and values bootstrapped there: drop it",
    "use_kl_loss": "PPO clips here; `target_kl_div` ends an update early",
    "kl_coeff": "PPO clips here; `target_kl_div` ends an update early",
    "rollout_buffer_class": "rollouts have one class: drop it",
    "use_lstm": "`everstep.RecurrentTrainer`, or `recurrent: true` in a file, has an LSTM",
    "torch_deterministic": "`seed` alone repeats a run: drop it",
    "wandb_entity": "options of trackers are theirs: `loggers=[{'wandb': {'entity': …}}]`",
    "normalize": "write `normalize_observations` and `normalize_rewards`",
    "save_model": "the policy is always saved, in `run_dir`: drop it",
    "_init_setup_model": "drop it",
    "config": "its fields are arguments: `gamma=…`; or `Trainer(config.build(env))`",
    "vec_env_cls": "an option of the environment: `env_kwargs={'vectorization_mode': 'async'}`",
    "frame_stack": "an option of the environment: `env_kwargs` with `wrappers`, or ALE's own",
    "env_wrapper": "an option of the environment: `env_kwargs` with `wrappers`",
}

#: Everstep's name, by the other.
SYNONYMS: dict[str, str | tuple[str, ...]] = {
    # stable-baselines3
    "learning_rate": "lr",
    "n_steps": "horizon: env steps in each environment",
    "n_envs": "num_envs",
    "batch_size": "sgd_minibatch_size",
    "n_epochs": "num_sgd_iters",
    "ent_coef": "entropy_coeff",
    "vf_coef": "vf_coeff",
    "clip_range": "clip_param",
    "clip_range_vf": _VF_CLIP,
    "normalize_advantage": "normalize_advantages",
    "target_kl": "target_kl_div",
    "policy_kwargs": "model_config",
    "ortho_init": "model_config.ortho_init",
    "log_std_init": "model_config.log_std_init",
    "use_sde": "model_config.use_sde",
    "sde_sample_freq": "model_config.sde_sample_freq",
    "net_arch": "model_config.hiddens",
    "features_extractor_class": "model_cls",
    "policy": "model_cls: a class; without it, one that fits the environment",
    "total_timesteps": "total_env_steps",
    "tensorboard_log": "loggers: tensorboard, which writes into run_dir",
    "tb_log_name": "run_name",
    "callback": "callbacks: a list",
    "callback_after_eval": "callbacks: a list",
    "n_timesteps": "total_env_steps",
    "env": "env_cls",
    "norm_obs": "normalize_observations",
    "norm_reward": _REWARDS,
    "clip_reward": "clip_rewards",
    "clip_obs": "clip_observations",
    "max_ep_len": "env_kwargs.max_episode_steps: env steps",
    "time_limit": "env_kwargs.max_episode_steps: env steps",
    "episode_limit": "env_kwargs.max_episode_steps: env steps",
    "eval_freq": "steps_per_eval: train steps",
    "n_eval_episodes": ("eval_episodes", "episodes"),
    # CleanRL
    "env_id": "env_cls",
    "exp_name": "experiment_name",
    "wandb_project_name": "experiment_name",
    "num_steps": "horizon: env steps in each environment",
    "update_epochs": "num_sgd_iters",
    "num_minibatches": _MINIBATCHES,
    "minibatch_size": "sgd_minibatch_size",
    "clip_coef": "clip_param",
    "clip_vloss": _VF_CLIP,
    "norm_adv": "normalize_advantages",
    "anneal_lr": _LR_SCHEDULE,
    "cuda": "device: cuda",
    "capture_video": "video_every: train steps",
    "num_iterations": "total_env_steps: iterations * num_envs * horizon",
    # rsl_rl
    "num_learning_epochs": "num_sgd_iters",
    "num_mini_batches": _MINIBATCHES,
    "num_steps_per_env": "horizon",
    "max_iterations": "total_env_steps: iterations * num_envs * horizon",
    "entropy_coef": "entropy_coeff",
    "value_loss_coef": "vf_coeff",
    "use_clipped_value_loss": _VF_CLIP,
    "desired_kl": "target_kl_div",
    "schedule": "lr_schedule_kind",
    "lam": "gae_lambda",
    "empirical_normalization": "normalize_observations",
    "actor_hidden_dims": "model_config.hiddens",
    "critic_hidden_dims": "model_config.vf_hiddens",
    "obs_groups": "model_config.actor_obs and model_config.critic_obs: lists of keys",
    "activation": _ACTIVATION,
    # RLlib
    "lambda_": "gae_lambda",
    "train_batch_size": "horizon: train_batch_size / num_envs",
    "train_batch_size_per_learner": "horizon: train_batch_size / num_envs",
    "rollout_fragment_length": "horizon",
    "num_sgd_iter": "num_sgd_iters",
    "num_epochs": "num_sgd_iters",
    "vf_loss_coeff": "vf_coeff",
    "kl_target": "target_kl_div",
    "grad_clip": "max_grad_norm",
    "num_envs_per_worker": "num_envs: of all workers",
    "num_envs_per_env_runner": "num_envs: of all workers",
    "num_env_runners": "num_envs",
    "num_rollout_workers": "num_envs",
    "num_gpus": "device: cuda",
    "fcnet_hiddens": "model_config.hiddens",
    "fcnet_activation": _ACTIVATION,
    "observation_filter": "normalize_observations",
    "evaluation_interval": "steps_per_eval: train steps",
    "evaluation_duration": ("eval_episodes", "episodes"),
    # rl_games
    "normalize_input": "normalize_observations",
    "normalize_value": "normalize_values",
    "bounds_loss_coef": "bounds_loss_coeff",
    "critic_coef": "vf_coeff",
    "e_clip": "clip_param",
    "mini_epochs": "num_sgd_iters",
    "horizon_length": "horizon",
    "scale_value": "reward_scale",
    # skrl and others
    "rollouts": "horizon",
    "learning_epochs": "num_sgd_iters",
    "mini_batches": _MINIBATCHES,
    "mini_batch_size": "sgd_minibatch_size",
    "discount_factor": "gamma",
    "discount": "gamma",
    "ratio_clip": "clip_param",
    "value_clip": "vf_clip_param",
    "entropy_loss_scale": "entropy_coeff",
    "value_loss_scale": "vf_coeff",
    "grad_norm_clip": "max_grad_norm",
    "kl_threshold": "target_kl_div",
    "learning_rate_scheduler": _LR_SCHEDULE,
    "timesteps": "total_env_steps: timesteps * num_envs",
    "max_steps": "env_kwargs.max_episode_steps: env steps of an episode",
    "num_episodes": ("episodes", "eval_episodes"),
    "n_episodes": ("episodes", "eval_episodes"),
    "stochastic": "deterministic: the opposite",
    "epochs": "num_sgd_iters",
    "hidden_sizes": "model_config.hiddens",
    "hidden_size": "model_config.hidden_size",
    "hidden": "model_config.hiddens",
    "hidden_dim": "model_config.hiddens",
    "activation_fn": _ACTIVATION,
    "num_workers": "num_envs",
    "random_seed": "seed",
    "momentum": "optimizer_config.momentum",
    "eps": "optimizer_config.eps",
    "weight_decay": "optimizer_config.weight_decay",
    "max_episode_steps": "env_kwargs.max_episode_steps",
    "render_mode": "env_kwargs.render_mode",
    # Everstep's own before its release
    "transitions": "env_steps",
    "max_transitions": "max_env_steps",
    "decay_transitions": "decay_env_steps",
    # statistics
    "return": _RETURN,
    "returns": _RETURN,
    "mean_return": _RETURN,
    "return_mean": _RETURN,
    "episode_return": _RETURN,
    "episodic_return": _RETURN,
    "episode_reward": _RETURN,
    "mean_reward": _RETURN,
    "score": _RETURN,
    "ep_rew_mean": _RETURN,
    "rollout/ep_rew_mean": _RETURN,
    "charts/episodic_return": _RETURN,
    "Train/mean_reward": _RETURN,
    "reward": f"{_RETURN}, or rewards/mean of single env steps",
    "ep_len_mean": _LENGTH,
    "episode_length": _LENGTH,
    "rollout/ep_len_mean": _LENGTH,
    "charts/episodic_length": _LENGTH,
    "Train/mean_episode_length": _LENGTH,
    "global_step": "env/steps",
    "total_env_steps": "env/steps",
    "time/total_timesteps": "env/steps",
    "kl": "monitors/kl_div",
    "approx_kl": "monitors/kl_div",
    "loss": "losses/total",
    "value_loss": "losses/vf",
    "policy_loss": "losses/policy",
    "entropy": "losses/entropy",
    "explained_variance": "monitors/explained_variance",
}

#: pytorchrl's names of hyperparameters, and ours.
PYTORCHRL_FIELDS: dict[str, str] = {
    "num_epochs": "num_sgd_iters",
    "entropy_coef": "entropy_coeff",
    "value_loss_coef": "vf_coeff",
}

#: Its hyperparameters that are options of our optimizers.
PYTORCHRL_OPTIONS = ("lr", "lr_pi", "lr_v", "eps")

#: All of its names that are not ours.
PYTORCHRL_NAMES = (
    *PYTORCHRL_FIELDS,
    *PYTORCHRL_OPTIONS,
    "num_mini_batch",
    "use_clipped_value_loss",
)

# Fixed in its code, without a parameter.
_TOO: dict[str, Any] = {"vf_loss": "mse", "lr_schedule": None, "sgd_minibatch_size": None}
_TOO |= {"normalize_observations": False, "normalize_rewards": False}

_PPO: dict[str, Any] = {
    "optimizer_config": {"lr": 1e-4},
    "gamma": 0.99,
    "num_sgd_iters": 4,
    "clip_param": 0.2,
    "test_every": 1000,
    "max_grad_norm": 0.5,
    "entropy_coeff": 0.01,
    "vf_coeff": 0.5,
    "num_test_episodes": 5,
    "use_clipped_value_loss": True,
    **_TOO,
}

#: Defaults of its constructors, by what its factories call the algorithm.
PYTORCHRL_DEFAULTS: dict[str, dict[str, Any]] = {
    "PPO": _PPO,
    "RND_PPO": {**_PPO, "max_grad_norm": 2.0, "use_clipped_value_loss": False},
    "A2C": {
        "optimizer_config": {"lr_pi": 1e-4, "lr_v": 1e-4},
        "gamma": 0.99,
        "test_every": 5000,
        "max_grad_norm": 0.5,
        "num_test_episodes": 5,
        "vf_coeff": 2.0,  # of half the squared error
        "vf_clip_param": None,
        **_TOO,
    },
}
