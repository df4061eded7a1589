#!/bin/bash
cat > /tmp/env.yaml <<EOF
working_dir: ./
excludes: ["/.git/"]
env_vars:
  NOTE: "it's only a text"
EOF
MODEL=Qwen/Qwen2.5-3B-Instruct
MB=8
nvidia-smi || { echo "no GPU"; exit 1; }
ray job submit --address="${RAY_ADDRESS:-http://127.0.0.1:8265}" --runtime-env=/tmp/env.yaml \
  -- env PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  actor_rollout_ref.actor.policy_loss.loss_mode=cispo \
  actor_rollout_ref.actor.clip_ratio_low=1.0 \
  actor_rollout_ref.actor.clip_ratio_high=4.0 \
  data.train_files=$HOME/data/math/train.parquet \
  data.val_files=$HOME/data/math/test.parquet \
  data.train_batch_size=$((MB * 32)) \
  data.max_prompt_length=1024 data.max_response_length=2048 \
  actor_rollout_ref.model.path=$MODEL \
  actor_rollout_ref.actor.ppo_mini_batch_size=$((MB ** 2)) \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=$MB \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  trainer.n_gpus_per_node=8 trainer.nnodes=${NNODES:-1} \
  'trainer.logger=["console"]' \
  trainer.save_freq=-1 trainer.total_epochs=2
