export HYDRA_FULL_ERROR=1 VLLM_USE_V1=1
export N_GPUS=8
export NNODES=2
export BASE_MODEL="Qwen/Qwen2.5-3B-Instruct"
export DATA_DIR="$HOME/data/gsm8k"
export ROLLOUT_TP_SIZE=2
export EXPERIMENT_NAME="remax-adaptive"

python3 -u -m verl.trainer.main_ppo \
  algorithm.adv_estimator=remax \
  algorithm.use_kl_in_reward=True \
  algorithm.kl_penalty=low_var_kl \
  algorithm.kl_ctrl.type=adaptive \
  algorithm.kl_ctrl.target_kl=0.05 \
  algorithm.kl_ctrl.kl_coef=0.01 \
  data.train_files=["$DATA_DIR/train.parquet"] \
  data.val_files=["$DATA_DIR/test.parquet"] \
  data.train_batch_size=128 data.max_prompt_length=256 data.max_response_length=512 \
  data.seed=42 \
  actor_rollout_ref.model.path=$BASE_MODEL \
  actor_rollout_ref.model.use_remove_padding=True \
  actor_rollout_ref.actor.optim.lr=5e-7 \
  actor_rollout_ref.actor.ppo_mini_batch_size=128 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
  actor_rollout_ref.actor.ppo_epochs=2 \
  actor_rollout_ref.actor.fsdp_config.fsdp_size=8 \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.tensor_model_parallel_size=$ROLLOUT_TP_SIZE \
  actor_rollout_ref.rollout.n=4 \
  actor_rollout_ref.rollout.val_kwargs.n=8 \
  trainer.logger=['console'] \
  trainer.experiment_name=$EXPERIMENT_NAME \
  trainer.n_gpus_per_node=$N_GPUS \
  trainer.nnodes=$NNODES \
  trainer.save_freq=10 trainer.test_freq=10 trainer.total_epochs=1 &> $EXPERIMENT_NAME.log
