#!/bin/bash
# Usage: bash rloo_function.sh [model] [n_gpus]

launch() {
    local model="$1"
    local gpus=$2
    shift 2
    python3 -m verl.trainer.main_ppo \
        algorithm.adv_estimator=rloo \
        algorithm.use_kl_in_reward=True \
        algorithm.kl_penalty=kl \
        algorithm.kl_ctrl.kl_coef=0.001 \
        data.train_files="$DATA/train.parquet" \
        data.val_files="$DATA/test.parquet" \
        data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=1024 \
        data.filter_overlong_prompts=True data.truncation=error \
        actor_rollout_ref.model.path="$model" \
        actor_rollout_ref.actor.ppo_mini_batch_size=256 \
        actor_rollout_ref.actor.ppo_micro_batch_size=160 \
        actor_rollout_ref.actor.use_kl_loss=False \
        actor_rollout_ref.rollout.name=vllm \
        actor_rollout_ref.rollout.tensor_model_parallel_size=$TP \
        actor_rollout_ref.rollout.n=5 \
        trainer.logger='[console,wandb]' trainer.project_name=rloo trainer.experiment_name="$NAME" \
        trainer.n_gpus_per_node=$gpus trainer.nnodes=1 trainer.save_freq=-1 trainer.test_freq=5 \
        "$@"
}

DATA=~/data/gsm8k
NAME=rloo_$(basename "${1:-Qwen/Qwen2-7B-Instruct}")
if [ "${2:-8}" -ge 8 ]; then
    TP=2
else
    TP=1
fi
launch "${1:-Qwen/Qwen2-7B-Instruct}" "${2:-8}" trainer.total_epochs=3 2>&1 | tee "$NAME.log"
