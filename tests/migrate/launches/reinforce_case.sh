#!/bin/bash
SIZE=${SIZE:-7b}
ESTIMATOR=reinforce_plus_plus
[[ "$SIZE" == *b ]] || { echo "a size such as 7b"; exit 1; }

case "$SIZE" in
  0.5b|1.5b)
    MODEL=Qwen/Qwen2.5-0.5B-Instruct; GPUS=1; TP=1; MICRO=16 ;;
  3b)
    MODEL=Qwen/Qwen2.5-3B-Instruct; GPUS=4; TP=1; MICRO=8 ;;
  *)
    MODEL=Qwen/Qwen2-7B-Instruct
    GPUS=8
    TP=2
    MICRO=4
    ;;
esac

OVERRIDES=""
OVERRIDES+=" algorithm.adv_estimator=$ESTIMATOR algorithm.gamma=0.99"
OVERRIDES+=" data.train_files=$HOME/data/math/train.parquet data.val_files=$HOME/data/math/test.parquet"
OVERRIDES+=" data.train_batch_size=500 data.max_prompt_length=1024 data.max_response_length=3072"
OVERRIDES+=" actor_rollout_ref.actor.ppo_mini_batch_size=125"
OVERRIDES+=" actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=$MICRO"
if [ $GPUS -gt 4 ]; then
  OVERRIDES+=" actor_rollout_ref.actor.fsdp_config.optimizer_offload=True"
fi

python3 -m verl.trainer.main_ppo $OVERRIDES \
  actor_rollout_ref.model.path=$MODEL \
  actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=mse \
  actor_rollout_ref.actor.clip_ratio=0.2 \
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=$TP \
  actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.max_num_seqs=512 \
  actor_rollout_ref.rollout.enforce_eager=False \
  actor_rollout_ref.rollout.max_model_len=$((1024+3072)) \
  trainer.n_gpus_per_node=$GPUS trainer.total_training_steps=100 \
  trainer.logger=tensorboard trainer.save_freq=25 trainer.test_freq=25
