#!/bin/bash
set -x

# usage: bash rpp_function.sh [extra hydra overrides]
# REINFORCE++-baseline on Llama 3.2 3B, math

die() { echo "ERROR: $*" >&2; exit 1; }

get_lr() {
  # small models can take more
  case "$1" in
    *1B*|*3B*) echo 2e-6 ;;
    *) echo 1e-6 ;;
  esac
}

MODEL_NAME="Llama-3.2-3B-Instruct"
MODEL_PATH="$HOME/models/${MODEL_NAME}"
[ -n "$MODEL_PATH" ] || die "no model"

N_GPUS=${N_GPUS:-8}
BSZ=$((N_GPUS * 32))
MINI=$((BSZ / 4))
LR=$(get_lr "$MODEL_NAME")
KL=${KL:-1e-3}

RUN="rpp_baseline_${MODEL_NAME,,}_bs${BSZ}_lr${LR}_kl${KL}"

run_train() {
  python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=reinforce_plus_plus_baseline \
    algorithm.use_kl_in_reward=True \
    algorithm.kl_penalty=kl \
    algorithm.kl_ctrl.kl_coef=$KL \
    data.train_files=$HOME/data/math/train.parquet \
    data.val_files=$HOME/data/math/test.parquet \
    data.train_batch_size=$BSZ \
    data.max_prompt_length=1024 \
    data.max_response_length=2048 \
    data.filter_overlong_prompts=True \
    data.truncation=error \
    actor_rollout_ref.model.path=$MODEL_PATH \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.optim.lr=$LR \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.03 \
    actor_rollout_ref.actor.ppo_mini_batch_size=$MINI \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.fsdp_config.param_offload=False \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=False \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.temperature=0.9 \
    actor_rollout_ref.rollout.top_p=0.95 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.7 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    trainer.critic_warmup=0 \
    trainer.logger=[console,swanlab] \
    trainer.project_name="REINFORCE++ math" \
    trainer.experiment_name="$RUN" \
    trainer.n_gpus_per_node=$N_GPUS \
    trainer.nnodes=1 \
    trainer.save_freq=50 \
    trainer.test_freq=25 \
    trainer.max_actor_ckpt_to_keep=3 \
    trainer.total_epochs=5 "$@"
}

run_train "$@" 2>&1 | tee -a "$RUN.log"
