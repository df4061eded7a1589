#!/bin/bash
# quick run in the background: REMAX on qwen3 1.7b, 2 gpus
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-6,7}"
export RAY_TMPDIR=/tmp/ray_$USER
NUM_GPUS=$(echo $CUDA_VISIBLE_DEVICES | tr ',' '\n' | wc -l)
EXP="remax-qwen3-1.7b-$(date +%m%d_%H%M)"
OUT=$HOME/runs/$EXP
mkdir -p $OUT

nohup python3 -u -m verl.trainer.main_ppo \
  algorithm.adv_estimator=remax \
  algorithm.use_kl_in_reward=True algorithm.kl_penalty=kl algorithm.kl_ctrl.kl_coef=0.001 \
  data.train_files=$HOME/data/gsm8k/train.parquet data.val_files=$HOME/data/gsm8k/test.parquet \
  data.train_batch_size=$((NUM_GPUS*64)) data.max_prompt_length=512 data.max_response_length=1024 \
  actor_rollout_ref.model.path=Qwen/Qwen3-1.7B \
  actor_rollout_ref.model.enable_gradient_checkpointing=True \
  actor_rollout_ref.model.use_remove_padding=True \
  actor_rollout_ref.actor.strategy=fsdp2 \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.ppo_mini_batch_size=$((NUM_GPUS*64)) \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
  actor_rollout_ref.actor.use_kl_loss=False \
  ++actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16 \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=1 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \
  actor_rollout_ref.rollout.enforce_eager=True \
  actor_rollout_ref.rollout.free_cache_engine=False \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16 \
  ~actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space \
  trainer.logger=[console] \
  trainer.project_name=scratch trainer.experiment_name=$EXP \
  trainer.default_local_dir=$OUT/ckpt \
  trainer.n_gpus_per_node=$NUM_GPUS trainer.nnodes=1 \
  trainer.save_freq=-1 trainer.test_freq=5 trainer.total_epochs=1 \
  trainer.resume_mode=disable \
  > $OUT/train.log 2>&1 &

echo "pid $! log $OUT/train.log"
