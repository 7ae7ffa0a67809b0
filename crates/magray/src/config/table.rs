//! Every setting there is: its key, what it takes, its default, variable, flag and meaning.
//! Holds no values; reading, printing and the documentation all follow from this table.

use magray_engine::{
    decoder::SPECULATE_MAX,
    store::{DEFAULT_CHAT_MODEL, DEFAULT_ENDPOINT, DEFAULT_MODEL},
};

use super::server_table::SERVER;
use super::{
    setting::Setting,
    value::{Choice, Kind, NEVER},
};

pub(crate) fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

const PRECISIONS: &[Choice] =
    &[("auto", &[]), ("f32", &["fp32"]), ("tf32", &[]), ("f16", &["fp16"]), ("bf16", &[]), ("int8", &[])];
const DTYPES: &[Choice] = &[("auto", &[]), ("fp32", &["f32"]), ("fp16", &["f16"]), ("bf16", &[])];
const PATHS: &[Choice] = &[("portable", &[]), ("avx2", &[]), ("avx512", &[]), ("amx", &[])];
const SOURCES: &[Choice] = &[("auto", &[]), ("hub", &[]), ("pip", &[])];
const ENGINES: &[Choice] = &[("auto", &[]), ("native", &[]), ("onnx", &["onnxruntime", "ort"])];
const BACKENDS: &[Choice] = &[
    ("cuda", &[]),
    ("tensorrt", &[]),
    ("directml", &[]),
    ("coreml", &[]),
    ("openvino", &[]),
    ("mps", &[]),
    ("cpu", &[]),
];
// The second spellings are ONNX Runtime's own names and numbers, which people copy from its documentation.
const GRAPH_LEVELS: &[Choice] = &[
    ("disabled", &["false", "none", "0", "ort_disable_all"]),
    ("basic", &["1", "ort_enable_basic"]),
    ("extended", &["2", "ort_enable_extended"]),
    ("all", &["true", "3", "99", "ort_enable_all"]),
];
const EXECUTION_MODES: &[Choice] = &[("sequential", &["0", "ort_sequential"]), ("parallel", &["1", "ort_parallel"])];
const STRATEGIES: &[Choice] = &[
    ("auto", &[]),
    ("data", &["data_parallel", "data-parallel"]),
    ("tensor", &["tensor_parallel", "tensor-parallel", "model_parallel", "model-parallel", "model"]),
    ("pipeline", &["pipeline_parallel", "pipeline-parallel"]),
];
const LEVELS: &[Choice] = &[("error", &[]), ("warn", &["warning"]), ("info", &[]), ("debug", &[])];
const LOG_FORMATS: &[Choice] = &[("text", &[]), ("json", &[])];
const PRIORITIES: &[Choice] = &[("low", &[]), ("normal", &[]), ("high", &[])];
const SANDBOXES: &[Choice] = &[("auto", &[]), ("require", &["required"]), ("off", &["none", "false"])];
const BITS: &[Choice] = &[("8", &[]), ("4", &[])];
/// No model has more.
const GPU_LAYERS_MAX: i64 = 10_000;
const KV_BITS: &[Choice] = &[("16", &[]), ("8", &[])];

const ANY: i64 = i64::MAX;
/// Longer than any sensible time-out, and short enough to be added up.
const SECONDS: Kind = Kind::Whole { min: 0, max: 1_000_000_000 };

pub(crate) const SETTINGS: &[Setting] = &joined::<{ GENERAL.len() + SERVER.len() }>();

const fn joined<const ALL: usize>() -> [Setting; ALL] {
    let mut all = [SERVER[0]; ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < GENERAL.len() { GENERAL[at] } else { SERVER[at - GENERAL.len()] };
        at += 1;
    }
    all
}

const GENERAL: &[Setting] = &[
    Setting::harmless(
        "model.name",
        Kind::Text,
        DEFAULT_MODEL,
        "The model: a name of the store, a hub repository `org/name[@revision]`, or a folder.",
    )
    .env(&["MAGRAY_MODEL"])
    .flag("--model"),
    Setting::harmless(
        "model.backend",
        Kind::Choice(ENGINES),
        "auto",
        "What computes a model; `native`: magray itself, from safetensors; `onnx`: ONNX Runtime, from `model.onnx` or \
         `onnx/model*.onnx`; `auto`: magray itself where it knows the model, else ONNX Runtime.",
    )
    .env(&["MAGRAY_BACKEND"])
    .flag("--backend"),
    Setting::trusted("model.store", Kind::Path, "", "The folder that pulled models are kept in.")
        .env(&["MAGRAY_HOME"])
        .unset_as(""),
    Setting::trusted("model.source", Kind::Choice(SOURCES), "auto", "Where the default models are pulled from.")
        .flag("--source"),
    Setting::trusted("model.endpoint", Kind::Url, DEFAULT_ENDPOINT, "The address of the model hub.").env(&["HF_ENDPOINT"]),
    Setting::trusted(
        "model.token",
        Kind::Text,
        "",
        "The access token for the model hub. It goes to `huggingface.co`, or to another `model.endpoint` that is set in the \
         same place (both in the environment, or both in one file); only by https, and to no host that the hub redirects to.",
    )
    .env(&["HF_TOKEN"])
    .unset_as("none")
    .secret(),
    Setting::harmless("cpu.threads", Kind::Whole { min: 1, max: 1024 }, "", "Threads that compute; `auto`: one a core.")
        .env(&["MAGRAY_THREADS"])
        .flag("--threads")
        .unset_as("auto"),
    Setting::harmless(
        "cpu.path",
        Kind::Choice(PATHS),
        "",
        "The instructions used; `auto`: the best of the machine. One that the machine lacks is an error.",
    )
    .env(&["MAGRAY_CPU"])
    .flag("--cpu-path")
    .unset_as("auto"),
    Setting::harmless(
        "chat.model",
        Kind::Text,
        DEFAULT_CHAT_MODEL,
        "The model of `magray chat`: as `model.name`, or a GGUF file.",
    )
    .env(&["MAGRAY_CHAT_MODEL"]),
    Setting::trusted(
        "evaluate.accept_from",
        Kind::Between { min: 0.0, max: 1.0 },
        "0.5",
        "The score of all critics together from which a text is accepted, where none of them vetoes.",
    ),
    Setting::harmless(
        "chat.kv_bits",
        Kind::Choice(KV_BITS),
        "16",
        "Bits in which language models keep the keys and values of tokens. 8 takes half the memory, so that twice the tokens fit, and \
         changes answers a little; on the CPU only, an error where a GPU would compute the model.",
    )
    .env(&["MAGRAY_KV_BITS"]),
    Setting::harmless(
        "chat.gpu_layers",
        Kind::Whole { min: 0, max: GPU_LAYERS_MAX },
        "",
        "How many of a language model's last layers are on a GPU, with its head; the CPU computes the others. `auto`: all that fit the \
         GPU's memory beside keys and values. 0: language models are computed on the CPU.",
    )
    .env(&["MAGRAY_GPU_LAYERS"])
    .unset_as("auto"),
    Setting::harmless(
        "chat.speculate",
        Kind::Whole { min: 0, max: SPECULATE_MAX as i64 },
        "0",
        "Tokens that are proposed for each pass of a language model where a request does not say (`speculate`): those that \
         followed the last ones where they stood in the text before. For answers that repeat what their prompts say; what is \
         answered stays the same.",
    )
    .env(&["MAGRAY_SPECULATE"]),
    Setting::harmless(
        "embed.device",
        Kind::Device,
        "auto",
        "Where embeddings are computed; `auto`: on a GPU if there is one that is worth it, else on the CPU; \
         `prefer-gpu`: the same, with a warning if there is no GPU; `require-gpu` (or `cuda`): on a GPU, or an error \
         if none can be used. A GPU that is named is required too.",
    )
    .flag("--device"),
    Setting::harmless(
        "embed.precision",
        Kind::Choice(PRECISIONS),
        "auto",
        "The arithmetic; `auto`: bf16 on a GPU of Ampere or newer and f16 on an older one, on the CPU bf16 where that \
         is faster, else f32. One that the device lacks becomes the nearest it has, with a warning. On a GPU int8 saves \
         memory, not time.",
    )
    .env(&["MAGRAY_PRECISION"])
    .flag("--precision"),
    Setting::harmless("embed.prompt", Kind::Text, "", "The prompt of the model that is put before each text.")
        .flag("--prompt")
        .unset_as("default"),
    Setting::harmless(
        "embed.max_text_bytes",
        Kind::Whole { min: 1, max: 1 << 30 },
        "1048576",
        "The longest text that is accepted, in bytes.",
    )
    .flag("--max-text-bytes"),
    Setting::trusted("client.api_key", Kind::Text, "", "The key that `--server` of a command is given.")
        .env(&["MAGRAY_API_KEY"])
        .unset_as("none")
        .secret(),
    Setting::harmless(
        "queue.requests_max",
        Kind::Whole { min: 1, max: 10_000_000 },
        "16384",
        "Requests that may wait or be computed at once; more are refused.",
    ),
    Setting::harmless(
        "queue.tokens_max",
        Kind::Whole { min: 1, max: ANY },
        "4194304",
        "Tokens of all requests that may wait or be computed at once; more are refused.",
    ),
    Setting::trusted("faults.plan", Kind::Names, "", "Faults to inject, for tests; see docs/faults.md.")
        .env(&["MAGRAY_FAULTS"])
        .unset_as(""),
    Setting::harmless("gpu.enabled", Kind::Switch, "true", "Use a GPU where there is one. `false`: none is looked for."),
    Setting::harmless("gpu.device_id", Kind::Whole { min: 0, max: 1023 }, "0", "The GPU that `auto` and `cuda` mean.")
        .env(&["ONNX_GPU_DEVICE_ID"]),
    Setting::harmless(
        "gpu.device_preference",
        Kind::Choices(BACKENDS),
        "cuda,mps,cpu",
        "Backends in the order in which they are tried. Native models are computed on `cuda` and `cpu`; for ONNX Runtime all \
         of them name its providers, `mps` as `coreml` does.",
    ),
    Setting::harmless("gpu.visible_devices", Kind::VisibleDevices, "all", "The GPUs that may be used.")
        .env(&["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]),
    Setting::harmless("gpu.memory_limit_mb", Kind::Whole { min: 1, max: ANY }, "", "GPU memory used at most, in MiB.")
        .env(&["ONNX_GPU_MEM_LIMIT"])
        .unset_as("none"),
    Setting::harmless(
        "gpu.fallback_enabled",
        Kind::Switch,
        "true",
        "Answer from the CPU when the GPU cannot. `false`: that is an error.",
    ),
    Setting::harmless(
        "gpu.performance_threshold",
        Kind::Number { min: 0.0 },
        "1.2",
        "`auto` takes the GPU when it is at least this many times as fast as the CPU (measured once a model).",
    )
    .env(&["MAGRAY_GPU_FALLBACK_THRESHOLD"]),
    Setting::harmless(
        "gpu.performance_monitoring",
        Kind::Switch,
        "true",
        "Compare the speed of each GPU with its own best steady speed; one that is slow gets less work, with a warning.",
    ),
    Setting::harmless(
        "gpu.idle_timeout_s",
        SECONDS,
        "60",
        "Seconds without work after which a model is offloaded from the GPU to host memory; 0: as soon as it has no \
         request; `never`: only on command.",
    )
    .env(&["GPU_IDLE_TIMEOUT"])
    .or_never(),
    Setting::harmless(
        "gpu.optimization.use_tensorrt",
        Kind::Switch,
        "false",
        "Let ONNX Runtime try TensorRT before CUDA. Its engines are kept in the cache folder.",
    )
    .env(&["MAGRAY_USE_TENSORRT"]),
    Setting::harmless(
        "gpu.optimization.graph_optimization",
        Kind::Choice(GRAPH_LEVELS),
        "all",
        "How far ONNX Runtime rewrites a graph.",
    )
    .env(&["ONNX_GRAPH_OPTIMIZATION"]),
    Setting::harmless(
        "gpu.optimization.execution_mode",
        Kind::Choice(EXECUTION_MODES),
        "sequential",
        "Whether ONNX Runtime runs branches of a graph in parallel.",
    )
    .env(&["ONNX_EXECUTION_MODE"]),
    Setting::trusted(
        "onnx.library",
        Kind::Path,
        "",
        "ONNX Runtime's library, 1.17 or newer. Without it: the loader's, or that of an installed Python package `onnxruntime`, \
         `onnxruntime-gpu`, `onnxruntime-directml` or `onnxruntime-openvino`.",
    )
    .env(&["ORT_DYLIB_PATH"])
    .unset_as(""),
    Setting::harmless(
        "gpu.optimization.precision",
        Kind::Choice(PRECISIONS),
        "auto",
        "The arithmetic on the GPU where `embed.precision` is `auto`.",
    ),
    Setting::harmless(
        "gpu.batch.default_size",
        Kind::Whole { min: 1, max: 65536 },
        "32",
        "Texts of a batch of fixed size. Setting it makes sizes fixed, unless `gpu.batch.adaptive_sizing` is set.",
    )
    .env(&["MAGRAY_BATCH_SIZE"]),
    Setting::harmless("gpu.batch.max_size", Kind::Whole { min: 1, max: 65536 }, "512", "Texts of a batch at most."),
    Setting::harmless(
        "gpu.batch.timeout_ms",
        Kind::Whole { min: 0, max: 60_000 },
        "10",
        "Milliseconds that a batch of fixed size waits for more texts. Setting it makes sizes fixed, unless \
         `gpu.batch.adaptive_sizing` is set.",
    )
    .env(&["MAGRAY_BATCH_TIMEOUT_MS"]),
    Setting::harmless(
        "gpu.batch.adaptive_sizing",
        Kind::Switch,
        "true",
        "Fit the batch size to the measured speed; an idle device never waits. `false`: sizes are fixed.",
    ),
    Setting::harmless("gpu.multi_gpu.enabled", Kind::Switch, "false", "Use several GPUs."),
    Setting::harmless("gpu.multi_gpu.device_ids", Kind::Wholes, "", "The GPUs used together; empty: all visible ones."),
    Setting::harmless(
        "gpu.multi_gpu.strategy",
        Kind::Choice(STRATEGIES),
        "auto",
        "How several GPUs compute language models. `data`: each by itself. `tensor`: all of them share each layer. `pipeline`: each has some of \
         the layers. `auto`: by themselves, where every model fits one GPU; else as few together as the largest model needs, in the way that is \
         predicted to be faster. Other models are on one GPU of a group. A group was never run on more than one physical GPU.",
    ),
    Setting::harmless(
        "gpu.memory.mixed_precision",
        Kind::Switch,
        "true",
        "Compute in 16 bits where nothing else is said. `false`: in f32.",
    ),
    Setting::harmless(
        "gpu.memory.dtype",
        Kind::Choice(DTYPES),
        "auto",
        "The type of the weights on the GPU where `embed.precision` and `gpu.optimization.precision` are `auto`; `auto`: bf16 \
         on Ampere and newer, fp16 before.",
    ),
    Setting::harmless(
        "gpu.memory.quantization.enabled",
        Kind::Switch,
        "false",
        "Keep the weights on the GPU in 8 bits, in place of `gpu.memory.dtype`. Saves memory, not time.",
    ),
    Setting::harmless(
        "gpu.memory.quantization.bits",
        Kind::Choice(BITS),
        "8",
        "Bits of a quantized weight. 4 is refused: this version has no model whose weights may be that small.",
    ),
    Setting::harmless(
        "gpu.memory.offload_to_cpu",
        Kind::Switch,
        "true",
        "Offload idle models to host memory. `false`: a model leaves a GPU only when another needs its memory.",
    ),
    Setting::harmless(
        "gpu.memory.offload_after_use",
        Kind::Switch,
        "false",
        "Offload every model to host memory as soon as it has no request.",
    )
    .env(&["MAGRAY_OFFLOAD_AFTER_USE"]),
    Setting::harmless(
        "gpu.memory.preload",
        Kind::Switch,
        "false",
        "Load the models when a server starts. `false`: each is loaded by the first request for it.",
    )
    .env(&["MAGRAY_PRELOAD"])
    .flag("--preload"),
    Setting::harmless(
        "gpu.memory.worker_kept_s",
        SECONDS,
        "300",
        "Seconds without any model after which a GPU's worker process ends, which frees all of its GPU memory.",
    )
    .env(&["MAGRAY_WORKER_KEPT"])
    .or_never(),
    Setting::harmless(
        "gpu.memory.host_kept_s",
        SECONDS,
        NEVER,
        "Seconds without use after which a model's weights are removed from host memory too; the next request reads \
         them from the disk.",
    )
    .env(&["MAGRAY_HOST_KEPT"])
    .or_never(),
    Setting::harmless(
        "gpu.memory.load_max_s",
        Kind::Whole { min: 1, max: 86_400 },
        "120",
        "Time limit for loading a model onto its GPU, in seconds; after it the GPU's worker process is replaced.",
    ),
    Setting::harmless(
        "gpu.models.idle_timeout_s",
        Kind::NamedSeconds,
        "",
        "Models with a timeout of their own in place of `gpu.idle_timeout_s`.",
    )
    .env(&["MAGRAY_MODEL_IDLE_TIMEOUTS"]),
    Setting::harmless("gpu.models.pinned", Kind::Names, "", "Models that are never evicted from a GPU.")
        .env(&["MAGRAY_PINNED_MODELS"]),
    Setting::harmless(
        "gpu.models.priority",
        Kind::NamedChoices(PRIORITIES),
        "",
        "Priorities of models that compete for the memory of a GPU; `normal` by default.",
    )
    .env(&["MAGRAY_MODEL_PRIORITIES"]),
    Setting::harmless("gpu.async.num_streams", Kind::Whole { min: 1, max: 64 }, "2", "CUDA streams that work in parallel."),
    Setting::harmless("gpu.monitoring.enabled", Kind::Switch, "true", "Monitor memory, temperature and speed of the GPU."),
    Setting::harmless(
        "gpu.monitoring.interval_ms",
        Kind::Whole { min: 10, max: 3_600_000 },
        "500",
        "Milliseconds between two samples; one bad sample takes a GPU out of rotation.",
    ),
    Setting::harmless(
        "gpu.monitoring.slow_after_s",
        Kind::Whole { min: 1, max: 3_600 },
        "10",
        "Seconds below 70 % of its best steady speed after which a GPU is slow.",
    ),
    Setting::trusted(
        "gpu.monitoring.alert_webhook",
        Kind::Url,
        "",
        "The address that is sent a JSON object when a GPU leaves the rotation or returns.",
    )
    .env(&["MAGRAY_ALERT_WEBHOOK"])
    .unset_as("none")
    .secret(),
    Setting::harmless(
        "gpu.monitoring.alert_cooldown_s",
        Kind::Whole { min: 0, max: 86_400 },
        "60",
        "The same alert of a GPU is sent at most once in this many seconds.",
    ),
    Setting::trusted(
        "gpu.sandbox",
        Kind::Choice(SANDBOXES),
        "auto",
        "How GPU worker processes are confined: no programs, no network, only the files they need. `auto`: as far as \
         the system supports it (Linux 6.2 or newer: fully), with a warning otherwise; `require`: fully, or the GPU \
         is not used; `off`: not at all.",
    )
    .env(&["MAGRAY_SANDBOX"]),
    Setting::trusted("gpu.state_file", Kind::Path, "", "The file of GPUs that are out of service until they are reset.")
        .env(&["MAGRAY_STATE_FILE"])
        .unset_as(""),
    Setting::harmless(
        "gpu.model_assignments",
        Kind::Placement,
        "",
        "Models placed by hand: the name of a model or of a critic, or a role (`embedding`, `reranker`, `classifier`), with its device. A GPU \
         of a group stands for the group. The CPU stands in for a GPU that fails, unless `gpu.fallback_enabled` is false.",
    )
    .unset_as(""),
    Setting::trusted(
        "search.folder",
        Kind::Path,
        "",
        "The folder of the collections that are searched; made with the first collection. One process at a time has it open.",
    )
    .env(&["MAGRAY_COLLECTIONS"])
    .flag("--collections")
    .unset_as(""),
    Setting::harmless(
        "search.gpu_from_mib",
        Kind::Whole { min: 0, max: 1 << 30 },
        "16",
        "Dense vectors that take at least this many MiB, in numbers of 16 bits, are searched on a GPU that has room for \
         them; `never`: on the CPU. They leave the GPU after `gpu.idle_timeout_s` without a search.",
    )
    .env(&["MAGRAY_SEARCH_GPU_FROM_MIB"])
    .or_never(),
    Setting::trusted(
        "control.folder",
        Kind::Path,
        "",
        "The folder of the sockets by which commands such as `magray gpu status` reach running engines; only its user \
         has access.",
    )
    .env(&["MAGRAY_CONTROL_FOLDER"])
    .unset_as(""),
    Setting::harmless(
        "log.level",
        Kind::Choice(LEVELS),
        "warn",
        "The lowest level that is logged on stderr. `info` has a line for each request of a server. At `warn` a server also \
         tells which models move and which devices come and go.",
    )
    .env(&["MAGRAY_LOG"])
    .flag("--log-level"),
    Setting::harmless(
        "log.format",
        Kind::Choice(LOG_FORMATS),
        "text",
        "How the log is written: `text` for people, `json` for programs, one object a line.",
    )
    .env(&["MAGRAY_LOG_FORMAT"])
    .flag("--log-format"),
    Setting::trusted(
        "log.profile",
        Kind::Path,
        "",
        "A file that gets what is done and how long it takes, as a Chrome trace, in place of an old one: requests, batches, \
         loads, offloads ([profile](profile.md)). `none`: nothing is written.",
    )
    .env(&["MAGRAY_PROFILE"])
    .flag("--profile")
    .unset_as("none"),
];

#[cfg(test)]
mod tests {
    use super::{super::setting::Files, *};
    use std::collections::HashSet;

    #[test]
    fn every_default_is_a_value_its_own_setting_allows() {
        for setting in SETTINGS {
            assert!(setting.read(setting.default).is_some(), "{} refuses its default", setting.key);
        }
    }

    #[test]
    fn keys_variables_and_flags_are_unique() {
        let mut seen = HashSet::new();
        for setting in SETTINGS {
            assert!(seen.insert(setting.key), "{} twice", setting.key);
            for name in setting.env.iter().copied().chain(setting.flag) {
                assert!(seen.insert(name), "{name} twice");
            }
            assert!(setting.help.ends_with('.'), "{}: help is a sentence", setting.key);
        }
    }

    #[test]
    fn addresses_paths_and_secrets_are_for_trusted_files() {
        for setting in SETTINGS {
            let names_a_place = matches!(setting.kind, Kind::Url | Kind::Path) || setting.is_secret;
            assert!(!names_a_place || setting.files == Files::Trusted, "{}", setting.key);
        }
    }

    #[test]
    fn no_key_is_also_a_section() {
        for setting in SETTINGS {
            let inside = format!("{}.", setting.key);
            assert!(!SETTINGS.iter().any(|other| other.key.starts_with(&inside)), "{}", setting.key);
        }
    }
}
