#!/usr/bin/env bash
HERE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
source "$HERE/config/common.sh"

DEBUG=${DEBUG:-0}
if [ "$DEBUG" = "1" ]; then
  BATCH=8
  LOGGER="['console']"
else
  BATCH=320
  LOGGER="['console','tensorboard']"
fi

run_ppo \
  data.train_batch_size=$BATCH \
  trainer.logger="$LOGGER" \
  trainer.experiment_name="grpo-${MODEL_NAME//./_}-${BATCH}" \
  +trainer.validation_data_dir=val
