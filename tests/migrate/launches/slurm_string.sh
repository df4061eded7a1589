#!/bin/bash
#SBATCH --job-name=dr-grpo
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8

module load cuda
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=($nodes)
head_node=${nodes_array[0]}
port=6379

srun --nodes=1 -w "$head_node" bash -c "ray start --head --port=$port --block" &
sleep 10

LR=2e-6
PROMPTS=256
srun --overlap --nodes=1 -w "$head_node" bash -c "
  source ~/venv/bin/activate
  python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=False \
    data.train_files=$HOME/data/math/train.parquet data.val_files=$HOME/data/math/test.parquet \
    data.train_batch_size=$PROMPTS data.max_prompt_length=1024 data.max_response_length=3072 \
    actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \
    actor_rollout_ref.actor.optim.lr=$LR \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm \
    actor_rollout_ref.actor.ppo_mini_batch_size=$((PROMPTS / 8)) \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    trainer.nnodes=4 trainer.n_gpus_per_node=8 \
    trainer.logger=console trainer.total_epochs=3 trainer.save_freq=11
"
