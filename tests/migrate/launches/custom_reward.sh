cd $(dirname $0)
GPUS=(0 1 2 3)
export CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${GPUS[*]}")
TRAIN=("$HOME/data/mine/a.parquet" "$HOME/data/mine/b.parquet")
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
    data.train_files="[${TRAIN[0]},${TRAIN[1]}]" \
    data.val_files=$HOME/data/mine/a.parquet \
    data.reward_fn_key=kind \
    data.train_batch_size=64 data.max_prompt_length=512 data.max_response_length=512 \
    custom_reward_function.path=$HOME/my_reward.py \
    custom_reward_function.name=score_it \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.entropy_coeff=0.001 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.n=8 \
    trainer.n_gpus_per_node=${#GPUS[@]} \
    trainer.logger=console \
    trainer.total_epochs=4
