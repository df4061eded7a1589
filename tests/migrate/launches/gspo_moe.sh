#!/usr/bin/env bash
set -xeuo pipefail
HOME_DIR=$HOME
loss_mode=gspo
loss_agg_mode="seq-mean-token-mean"
MODEL=Qwen/Qwen2.5-3B-Instruct
clip_low=3e-4
clip_high=4e-4
train_batch_size=512
ppo_mini_batch_size=$((train_batch_size / 4))
n_resp=16

CMD="python3 -m verl.trainer.main_ppo"
DATA_ARGS="data.train_files=${HOME_DIR}/data/math/train.parquet data.val_files=${HOME_DIR}/data/math/test.parquet"
$CMD $DATA_ARGS \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.actor.policy_loss.loss_mode=${loss_mode} \
    actor_rollout_ref.actor.loss_agg_mode=${loss_agg_mode} \
    data.train_batch_size=${train_batch_size} \
    data.max_prompt_length=2048 \
    data.max_response_length=8192 \
    actor_rollout_ref.model.path=$MODEL \
    actor_rollout_ref.actor.ppo_mini_batch_size=${ppo_mini_batch_size} \
    actor_rollout_ref.actor.use_dynamic_bsz=true \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32768 \
    actor_rollout_ref.actor.clip_ratio_low=$clip_low \
    actor_rollout_ref.actor.clip_ratio_high=$clip_high \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.05 \
    actor_rollout_ref.actor.optim.lr_scheduler_type=cosine \
    actor_rollout_ref.actor.optim.min_lr_ratio=0.1 \
    actor_rollout_ref.rollout.n=${n_resp} \
    actor_rollout_ref.rollout.name=sglang \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.calculate_log_probs=True \
    algorithm.rollout_correction.rollout_is=token \
    algorithm.rollout_correction.rollout_is_threshold=3.0 \
    trainer.logger=console \
    trainer.experiment_name=gspo/qwen \
    trainer.n_gpus_per_node=4 \
    trainer.total_epochs=10 \
    trainer.save_freq=20 trainer.test_freq=10 trainer.max_actor_ckpt_to_keep=2
