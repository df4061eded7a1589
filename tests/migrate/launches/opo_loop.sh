for seed in 1 2 3; do
  for lr in 1e-6 5e-6; do
    name="opo_s${seed}_lr${lr}"
    # skip what is there
    if [ -d "checkpoints/$name" ]; then
      continue
    fi
    python3 -m verl.trainer.main_ppo \
      algorithm.adv_estimator=opo \
      data.train_files=$HOME/data/math/train.parquet \
      data.val_files=$HOME/data/math/test.parquet \
      data.train_batch_size=256 data.max_prompt_length=1024 data.max_response_length=1024 \
      data.seed=$seed \
      actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct \
      actor_rollout_ref.actor.optim.lr=$lr \
      actor_rollout_ref.actor.ppo_mini_batch_size=256 \
      actor_rollout_ref.actor.use_dynamic_bsz=True \
      actor_rollout_ref.actor.use_kl_loss=False \
      actor_rollout_ref.rollout.name=vllm \
      actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
      actor_rollout_ref.rollout.n=8 \
      trainer.n_gpus_per_node=4 \
      trainer.logger=console \
      trainer.experiment_name=$name \
      trainer.total_training_steps=50 trainer.save_freq=50 trainer.test_freq=0 \
      trainer.default_local_dir=checkpoints/$name || echo "$name failed" >> failed.txt
  done
done
