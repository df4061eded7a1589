#!/usr/bin/env bash
set -euxo pipefail
declare -A LENGTHS=([short]=4096 [long]=16384)
declare -i SP=2
readonly MAX_PROMPT=2048 MAX_RESPONSE=16384
declare -a ACTOR=(
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.ulysses_sequence_parallel_size=$SP
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(((MAX_PROMPT + MAX_RESPONSE) / SP))
  actor_rollout_ref.actor.fsdp_config.param_offload=True
  actor_rollout_ref.actor.entropy_from_logits_with_chunking=True
  actor_rollout_ref.actor.ppo_mini_batch_size=32
)
ROLLOUT=(
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.mode=async
  actor_rollout_ref.rollout.n=8
  actor_rollout_ref.rollout.tensor_model_parallel_size=4
  actor_rollout_ref.rollout.max_model_len=$((MAX_PROMPT + MAX_RESPONSE))
  actor_rollout_ref.rollout.gpu_memory_utilization=0.7
  actor_rollout_ref.rollout.val_kwargs.do_sample=True
  actor_rollout_ref.rollout.val_kwargs.temperature=0.6
  actor_rollout_ref.rollout.val_kwargs.n=4
)
ARGS=("${ACTOR[@]}" "${ROLLOUT[@]}")
ARGS+=(+data.apply_chat_template_kwargs.enable_thinking=True)
[[ -n "${RESUME:-}" ]] && ARGS+=(trainer.resume_mode=resume_path "trainer.resume_from_path=$RESUME")

torchrun --standalone --nproc_per_node=1 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  data.train_files=$HOME/data/dapo-math-17k.parquet data.val_files=$HOME/data/aime-2024.parquet \
  data.train_batch_size=128 data.max_prompt_length=$MAX_PROMPT data.max_response_length=$MAX_RESPONSE \
  actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct \
  "${ARGS[@]}" \
  trainer.n_gpus_per_node=8 trainer.logger=console trainer.total_epochs=1 trainer.test_freq=4 trainer.save_freq=8
