set -euo pipefail
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-3B-Instruct}
NUM_GPUS=${NUM_GPUS:-2}
EXP_NAME="$(basename "${MODEL_PATH,,}")-lora"
RANK=32

PARAMS=(
    algorithm.adv_estimator=grpo
    data.train_files="$HOME/data/gsm8k/train.parquet"
    data.val_files="$HOME/data/gsm8k/test.parquet"
    data.train_batch_size=16   # small, to try it out
    data.max_prompt_length=512
    data.max_response_length=1024
    data.shuffle=False
    data.train_max_samples=800
    actor_rollout_ref.model.path=$MODEL_PATH
    actor_rollout_ref.model.lora_rank=$RANK
    actor_rollout_ref.model.lora_alpha=$((RANK * 2))
    actor_rollout_ref.model.target_modules=all-linear
    actor_rollout_ref.actor.optim.lr=3e-6
    actor_rollout_ref.actor.optim.weight_decay=0.1
    actor_rollout_ref.actor.ppo_mini_batch_size=16
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8
    actor_rollout_ref.actor.use_kl_loss=False
    actor_rollout_ref.actor.kl_loss_coef=0.01
    actor_rollout_ref.actor.fsdp_config.param_offload=True
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.load_format=safetensors
    actor_rollout_ref.rollout.layered_summon=True
    actor_rollout_ref.rollout.tensor_model_parallel_size=2
    actor_rollout_ref.rollout.n=5
    actor_rollout_ref.rollout.temperature=0.9
    trainer.logger=[console]
    trainer.project_name=lora
    trainer.experiment_name=$EXP_NAME
    trainer.n_gpus_per_node=$NUM_GPUS
    trainer.nnodes=1
    trainer.save_freq=-1
    trainer.test_freq=-1
    trainer.val_before_train=False
    trainer.total_epochs=2
)

python3 -m verl.trainer.main_ppo "${PARAMS[@]}" "$@"
