#!/bin/bash
SCRIPT_DIR="$( cd "$( dirname "${BASH_SOURCE[0]}" )" &> /dev/null && pwd )"
PARENT_DIR="$(dirname "$SCRIPT_DIR")"
cd "$PARENT_DIR"
echo "Switched to parent directory: $PARENT_DIR"

export PYTHONPATH="$PARENT_DIR"/verl_arpo_entropy:$PYTHONPATH
PROJECT_NAME="reasoning_tasks" # Modify experiment group
EXPERIMENT_NAME="ARPO_global_16_init_8_beam_2"
CONFIG_PATH="$SCRIPT_DIR/config"
CONFIG_NAME="arpo_trainer.yaml"
NNODES=1
N_GPUS_PER_NODE=8
MAX_PROMPT_LENGTH=1536              # Maximum prompt length
MAX_RESPONSE_LENGTH=4096            # Maximum response length
ACTOR_MODEL_PATH="Qwen/Qwen2-7B-Instruct"
SAVE_PATH="$HOME/ckpts/reasoning/${EXPERIMENT_NAME}"
if [ "$WANDB_API_KEY" != "" ]; then
    wandb login --relogin $WANDB_API_KEY
    mkdir -p wandb/${PROJECT_NAME}/${EXPERIMENT_NAME}
fi
if [ ! -d "$SAVE_PATH" ]; then
    mkdir -p $SAVE_PATH
fi
python3 -m verl.trainer.main_ppo \
    --config-path=$CONFIG_PATH \
    --config-name=$CONFIG_NAME \
    algorithm.adv_estimator=grpo \
    algorithm.kl_ctrl.kl_coef=0.0 \
    data.train_files=$HOME/data/arpo/train.parquet \
    data.val_files=["$HOME/data/arpo/valid.parquet"] \
    data.prompt_key=prompt \
    data.train_batch_size=128 \
    data.max_prompt_length=${MAX_PROMPT_LENGTH} \
    data.max_response_length=${MAX_RESPONSE_LENGTH} \
    actor_rollout_ref.model.path=${ACTOR_MODEL_PATH} \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((2*(MAX_PROMPT_LENGTH+MAX_RESPONSE_LENGTH))) \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.0 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.mode=sync_with_tool \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.7 \
    actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.initial_rollouts=8 \
    actor_rollout_ref.rollout.beam_size=2 \
    actor_rollout_ref.rollout.branch_probability=0.5 \
    actor_rollout_ref.rollout.entropy_weight=0.2 \
    ++actor_rollout_ref.rollout.tools.tool_instances.search.params.cache_file=$PARENT_DIR/search_cache.json \
    actor_rollout_ref.rollout.multi_turn.enable=${ENABLE_MULTI_TURN} \
    reward_model.reward_manager="naive" \
    custom_reward_function.path="$PARENT_DIR/verl_arpo_entropy/verl/utils/reward_score/deep_research.py" \
    custom_reward_function.name="compute_score" \
    trainer.critic_warmup=0 \
    trainer.logger="[console, wandb]" \
    trainer.project_name=${PROJECT_NAME} \
    trainer.experiment_name=${EXPERIMENT_NAME} \
    trainer.n_gpus_per_node=${N_GPUS_PER_NODE} \
    trainer.nnodes=${NNODES} \
    trainer.save_freq=5 \
    trainer.test_freq=5 \
    trainer.total_epochs=2 \
    trainer.default_local_dir=${SAVE_PATH} \
    trainer.val_before_train=False \
    hydra.run.dir=$SAVE_PATH/outputs 2>&1 | tee ${SAVE_PATH}/run.log
