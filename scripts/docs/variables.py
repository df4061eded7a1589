"""The page of environment variables. tests/test_docs_reference.py compares it with what the code reads."""

from __future__ import annotations

# Variable -> (who sets it, what it does).
YOU, LAUNCHER, RAMET = "you", "a launcher, for its ranks", "Ramet, unless it is set"
VARIABLES = {
    "RAMET_PLUGINS": (YOU, "modules to load as plugins besides the installed packages, with commas"),
    "RAMET_BLOCK_PLUGINS": (YOU, "plugins that are not loaded, with commas"),
    "PYTHONPATH": (YOU, "where the modules of `RAMET_PLUGINS` are found; repeated in the command that resumes a run"),
    "OPENAI_API_KEY": (YOU, "key of OpenAI-compatible servers; `key_variable` of their options names another variable"),
    "BRIGHTDATA_API_KEY": (YOU, "key of the search provider `brightdata`"),
    "BRIGHTDATA_ZONE": (YOU, "zone of Bright Data, where `zone` is not set (`serp_api1`)"),
    "SERPER_API_KEY": (YOU, "key of the search provider `serper`"),
    "TAVILY_API_KEY": (YOU, "key of the search provider `tavily`"),
    "BRAVE_API_KEY": (YOU, "key of the search provider `brave`"),
    "WANDB_API_KEY": (YOU, "key of the tracker `wandb`"),
    "WANDB_IDENTITY_TOKEN_FILE": (YOU, "a token file instead of that key"),
    "WANDB_ERROR_REPORTING": (RAMET, "`false`: the tracker `wandb` sends no reports of its own errors"),
    "PATH": (YOU, "where the program of `rollout_step=command` is found; it sees this variable and few others"),
    "XDG_CACHE_HOME": (YOU, "folder of caches (`~/.cache`): pages and results of searches, compiled graphs of vLLM"),
    "NO_COLOR": (YOU, "any value: no dim text in the line that shows progress"),
    "CI": (YOU, "any value: plain lines instead of a live table"),
    "TERM": (YOU, "`dumb` or unset: no line that is rewritten"),
    "CUDA_VISIBLE_DEVICES": (YOU, "the GPUs that a process may use; Ray sets it for its workers"),
    "OMP_NUM_THREADS": (YOU, "threads of a process on the CPU; unset, Ramet shares the cores among its processes"),
    "TOKENIZERS_PARALLELISM": (RAMET, "`false`: tokenizers start no threads; SFT's workers tokenise in processes"),
    "CXX": (YOU, "the C++ compiler of `policy.compile=true` on a CPU; `g++` where it is not set, `clang++` on macOS"),
    "TORCHDYNAMO_DISABLE": (YOU, "`1`: nothing is compiled; set by Ramet for vLLM on a CPU"),
    "VLLM_LOGGING_LEVEL": (RAMET, "`ERROR`: the level from which vLLM logs"),
    "VLLM_USE_V2_MODEL_RUNNER": (RAMET, "must be `0`: the engine `vllm` refuses another value"),
    "GLOO_SOCKET_IFNAME": (RAMET, "network interface between ranks on CPUs, under Ray"),
    "NCCL_SOCKET_IFNAME": (RAMET, "network interface between ranks on GPUs, under Ray"),
    "HF_HUB_DISABLE_PROGRESS_BARS": (RAMET, "`1`: Ramet shows the progress of downloads itself"),
    "RANK": (LAUNCHER, "rank of this process in an SFT started by torchrun or Slurm"),
    "WORLD_SIZE": (LAUNCHER, "ranks of that SFT"),
    "LOCAL_RANK": (LAUNCHER, "rank on this node, which chooses its GPU"),
    "LOCAL_WORLD_SIZE": (LAUNCHER, "ranks on this node"),
    "MASTER_ADDR": (LAUNCHER, "address of rank 0"),
    "MASTER_PORT": (LAUNCHER, "port of rank 0"),
}
INTERNAL = {  # set and read by Ramet's own processes; not for users
    "RAMET_OWNER",
    "RAMET_REAPER_TAG",
    "HYDRA_FULL_ERROR",
    "DS_ACCELERATOR",
    "INSPECT_CACHE_DIR",
    "RAMET_CONFORMANCE_TAG",
}
HEAD = (
    "# Environment variables\n\nWhat Ramet and its packages read from the environment. A test compares this table with "
    "the code."
)
PASSED_ON = (
    "`HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT` and `HF_HUB_OFFLINE` are read by the Hugging Face libraries, as everywhere. "
    "Any variable can be the value of a key, as in `rewards.llm_judge.params.server.urls='[${oc.env:JUDGE}]'`; its "
    "value is in no record and no log ([security](../security.md)). With `cluster=ray` workers take over the variables "
    "of the process that started the run."
)


def variables_page() -> str:
    """Return the page as Markdown."""
    rows = [f"| `{name}` | {setter} | {text} |" for name, (setter, text) in sorted(VARIABLES.items())]
    return "\n".join([HEAD, "", "| variable | set by | what it does |", "|---|---|---|", *rows, "", PASSED_ON, ""])
