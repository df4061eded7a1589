# the smallest one
MODEL=$HOME/models/tiny ; N=4
python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator="grpo" \
  data.train_files="$HOME/data/gsm8k/train.parquet" \
  data.val_files="$HOME/data/gsm8k/test.parquet" \
  data.train_batch_size=8 data.max_prompt_length=128 data.max_response_length=64 \
  data.val_max_samples=50 \
  actor_rollout_ref.model.path="$MODEL" \
  actor_rollout_ref.actor.ppo_mini_batch_size=8 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=`echo 8` \
  actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm \
  actor_rollout_ref.rollout.name=hf \
  actor_rollout_ref.rollout.n=$N \
  algorithm.norm_adv_by_std_in_grpo=False \
  trainer.n_gpus_per_node=1 trainer.nnodes=1 \
  trainer.logger=console \
  trainer.total_training_steps=20 trainer.test_freq=10
