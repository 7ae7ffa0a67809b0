//! What the settings come to when files, variables and flags disagree or are wrong.
//! Reads no real environment.

use std::{collections::HashMap, fs, time::Duration};

use expect_test::{Expect, expect};
use magray_engine::gpu::SandboxMode;

use super::*;

/// Resolves with a file of this name and content that the user named.
fn resolve(file: Option<(&str, &str)>, env: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Result<Config, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = file.map(|(name, content)| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    });
    let env: HashMap<&str, &str> = env.iter().copied().collect();
    let flags: Vec<FlagValue> =
        flags.iter().map(|(key, value)| FlagValue { key, value: (*value).to_owned() }).collect();
    let env = |name: &str| env.get(name).map(OsString::from);
    let inputs = Inputs { file: file.as_deref(), flags: &flags, env: &env, folder: folder.path() };
    let shorten = |text: String| text.replace(&folder.path().display().to_string(), "DIR");
    Config::resolve(&inputs).map_err(|error| shorten(error.to_string()))
}

fn check_refused(name: &str, content: &str, expected: Expect) {
    expected.assert_eq(&resolve(Some((name, content)), &[], &[]).unwrap_err());
}

#[test]
fn a_file_that_was_found_sets_what_is_harmless_and_nothing_else() {
    for setting in SETTINGS {
        let folder = tempfile::tempdir().unwrap();
        // An empty table is no value of most settings; what counts is which of two reasons it is refused for.
        fs::write(folder.path().join("magray.toml"), format!("{} = {{}}\n", setting.key)).unwrap();
        let resolved =
            Config::resolve(&Inputs { file: None, flags: &[], env: &|_| None, folder: folder.path() }).map(drop);
        let is_untrusted = matches!(resolved, Err(ConfigError::Untrusted { line: 1, key, .. }) if key == setting.key);
        assert_eq!(is_untrusted, setting.files == setting::Files::Trusted, "{}: {resolved:?}", setting.key);
    }
}

#[test]
fn flags_win_over_variables_over_the_file_over_defaults() {
    let file = Some(("magray.toml", "[embed]\nprecision = 'f32'\nprompt = 'query'\n[cpu]\nthreads = 3\n"));
    let config =
        resolve(file, &[("MAGRAY_PRECISION", "bf16"), ("MAGRAY_THREADS", "2")], &[("embed.precision", "int8")])
            .unwrap();
    let shown = |key| format!("{} <- {}", config.entry(key).shown(), config.entry(key).source);
    assert_eq!(shown("embed.precision"), "int8 <- flag --precision");
    assert_eq!(shown("cpu.threads"), "2 <- env MAGRAY_THREADS");
    assert!(shown("embed.prompt").starts_with("query <- file "), "{}", shown("embed.prompt"));
    assert!(shown("embed.prompt").ends_with("magray.toml:3"));
    assert_eq!(shown("model.name"), "all-MiniLM-L6-v2 <- default");
}

#[test]
fn the_whole_tree_reads_the_same_from_toml_and_yaml() {
    let toml = "
[gpu]
enabled = false
device_id = 1
device_preference = ['cuda', 'cpu']
memory_limit_mb = 4096
fallback_enabled = false
performance_monitoring = false
sandbox = 'off'
[gpu.optimization]
use_tensorrt = true
graph_optimization = 'extended'
precision = 'fp16'
[gpu.batch]
default_size = 64
max_size = 128
timeout_ms = 5
adaptive_sizing = false
[gpu.multi_gpu]
enabled = true
device_ids = [0, 1]
strategy = 'data'
[gpu.memory]
mixed_precision = false
dtype = 'bf16'
offload_to_cpu = false
offload_after_use = true
preload = true
worker_kept_s = 10
host_kept_s = 600
load_max_s = 30
quantization = { enabled = true, bits = 8 }
[gpu.models]
idle_timeout_s = { 'org/ethics' = 30, safety = 'never' }
pinned = ['safety']
priority = { 'org/ethics' = 'high' }
[gpu.async]
num_streams = 8
[gpu.monitoring]
enabled = false
interval_ms = 250
slow_after_s = 20
alert_webhook = 'https://alerts.example/hook/'
alert_cooldown_s = 5
[gpu.model_assignments]
ethics = 'cuda:0'
safety = 'cpu'
";
    let yaml = "
gpu:
  enabled: false
  device_id: 1
  device_preference: [cuda, cpu]
  memory_limit_mb: 4096
  fallback_enabled: no
  performance_monitoring: off
  sandbox: off
  optimization: {use_tensorrt: true, graph_optimization: extended, precision: fp16}
  batch:
    default_size: 64
    max_size: 128
    timeout_ms: 5
    adaptive_sizing: false
  multi_gpu:
    enabled: true
    device_ids:
      - 0
      - 1
    strategy: data
  memory:
    mixed_precision: false
    dtype: bf16
    quantization: {enabled: true, bits: 8}
    offload_to_cpu: false
    offload_after_use: true
    preload: yes
    worker_kept_s: 10
    host_kept_s: 600
    load_max_s: 30
  models:
    idle_timeout_s: {org/ethics: 30, safety: never}
    pinned: [safety]
    priority: {org/ethics: high}
  async: {num_streams: 8}
  monitoring:
    enabled: false
    interval_ms: 250
    slow_after_s: 20
    alert_webhook: https://alerts.example/hook/
    alert_cooldown_s: 5
  model_assignments:
    ethics: cuda:0
    safety: cpu
";
    let values = |name, content| {
        let config = resolve(Some((name, content)), &[], &[]).unwrap();
        config.entries.into_iter().map(|entry| (entry.setting.key, entry.value)).collect::<Vec<_>>()
    };
    let from_toml = values("magray.toml", toml);
    assert_eq!(from_toml, values("magray.yaml", yaml));
    let defaults = resolve(None, &[], &[]).unwrap();
    for (entry, (key, value)) in defaults.entries.iter().zip(&from_toml) {
        let is_in_file = key.starts_with("gpu.")
            && ![
                "gpu.visible_devices",
                "gpu.performance_threshold",
                "gpu.idle_timeout_s",
                "gpu.optimization.execution_mode",
                "gpu.memory.quantization.bits",
                "gpu.state_file",
            ]
            .contains(key);
        assert_eq!(entry.value != *value, is_in_file, "{key}");
    }
}

#[test]
fn unknown_keys_are_refused_with_a_hint() {
    check_refused(
        "magray.toml",
        "[gpu]\nenabled = true\n[gpu.bacth]\n",
        expect!["DIR/magray.toml:3: unknown key 'gpu.bacth'; did you mean 'gpu.batch'?"],
    );
    check_refused(
        "magray.yaml",
        "gpu:\n  max_size: 4\n",
        expect!["DIR/magray.yaml:2: unknown key 'gpu.max_size'; did you mean 'gpu.batch.max_size'?"],
    );
    check_refused(
        "magray.yml",
        "colour: red\n",
        expect!["DIR/magray.yml:1: unknown key 'colour'; `magray config` lists the known keys"],
    );
}

#[test]
fn bad_values_name_the_place_the_value_and_what_is_allowed() {
    check_refused(
        "magray.toml",
        "[embed]\nprecision = 'fp8'\n",
        expect![
            "DIR/magray.toml:2: embed.precision: 'fp8' is not allowed; use one of auto, f32, tf32, f16, bf16, int8"
        ],
    );
    check_refused(
        "magray.yaml",
        "gpu:\n  batch:\n    max_size: [1, 2]\n",
        expect!["DIR/magray.yaml:3: gpu.batch.max_size: '[1, 2]' is not allowed; use a whole number from 1 to 65536"],
    );
    check_refused(
        "magray.yaml",
        "gpu:\n  model_assignments:\n    ethics: moon\n",
        expect![
            "DIR/magray.yaml:2: gpu.model_assignments: '{ethics = moon}' is not allowed; use a table of names, each with a device: cpu, cuda or cuda:NUMBER"
        ],
    );
    check_refused(
        "magray.toml",
        "gpu = true\n",
        expect!["DIR/magray.toml:1: 'gpu' is a section: write its keys below it"],
    );
    check_refused("magray.toml", "[gpu\n", expect!["DIR/magray.toml:1: unclosed table, expected `]`"]);
}

#[test]
fn every_variable_is_checked_and_named() {
    for setting in SETTINGS {
        for name in setting.env {
            // No kind accepts this but free text and paths.
            let answer = resolve(None, &[(name, "~ b,ad\u{7}")], &[]);
            match setting.kind {
                value::Kind::Text => assert!(answer.is_ok(), "{name}"),
                _ => assert!(answer.unwrap_err().starts_with(&format!("{name}: ")), "{name}"),
            }
        }
    }
}

#[test]
fn an_empty_variable_counts_as_absent_but_hides_all_gpus_for_cuda() {
    let config = resolve(None, &[("MAGRAY_THREADS", ""), ("CUDA_VISIBLE_DEVICES", "")], &[]).unwrap();
    assert_eq!(config.entry("cpu.threads").source, Source::Default);
    assert_eq!(config.entry("gpu.visible_devices").value, Value::Text("none".to_owned()));
}

#[test]
fn settings_of_the_gpu_arrive_where_they_are_used() {
    let toml = "
[gpu]
enabled = false
device_id = 2
device_preference = ['tensorrt', 'cuda', 'cpu']
memory_limit_mb = 4096
fallback_enabled = false
performance_threshold = 3.5
sandbox = 'require'
optimization = { precision = 'fp16' }
async = { num_streams = 8 }
";
    let gpu = resolve(Some(("magray.toml", toml)), &[("XDG_CACHE_HOME", "/cache")], &[]).unwrap().gpu();
    let rules = magray_core::Rules {
        prefer_gpu: false,
        preference: ["tensorrt", "cuda", "cpu"].map(|word| word.parse().unwrap()).into(),
        performance_threshold: 3.5,
        memory_limit_bytes: Some(4096 << 20),
        fallback: false,
        expects_gpu: false,
        is_little_work: false,
    };
    assert_eq!(gpu.rules, rules);
    assert_eq!((gpu.device_id, gpu.streams, gpu.precision.to_string().as_str()), (2, 8, "f16"));
    assert_eq!(gpu.sandbox, SandboxMode::Require);
    assert_eq!(gpu.kernel_cache.as_deref(), Some(Path::new("/cache/magray/kernels")));
    assert_eq!(gpu.score_cache.as_deref(), Some(Path::new("/cache/magray/scores.json")));
    let defaults = resolve(None, &[("HOME", "/h")], &[]).unwrap().gpu();
    assert_eq!((defaults.rules, defaults.sandbox), (magray_core::Rules::default(), SandboxMode::Auto));
    let off = resolve(None, &[("MAGRAY_SANDBOX", "off")], &[]).unwrap().gpu().sandbox;
    assert_eq!(off, SandboxMode::Off);
    assert_eq!(defaults.kernel_cache.as_deref(), Some(Path::new("/h/.cache/magray/kernels")));
    // Without a home nothing is cached, and nothing fails.
    assert_eq!(resolve(None, &[], &[]).unwrap().gpu().kernel_cache, None);
}

#[test]
fn gpus_are_hidden_by_variables_and_by_the_file() {
    use magray_engine::gpu::Visible;
    let visible = |file, env: &[(&str, &str)]| {
        let gpu = resolve(file, env, &[]).unwrap().gpu();
        (gpu.visible, gpu.visible_by)
    };
    assert_eq!(visible(None, &[]), (Visible::all(), None));
    let both = [("CUDA_VISIBLE_DEVICES", "1"), ("NVIDIA_VISIBLE_DEVICES", "0,1")];
    assert_eq!(visible(None, &both), (Visible::parse(Some("0,1"), Some("1")), None));
    let file = Some(("magray.toml", "[gpu]\nvisible_devices = [1, 2]\n"));
    assert_eq!(visible(file, &[]), (Visible::parse(Some("1,2"), None), Some("gpu.visible_devices")));
    // A container runtime that was asked to pass no GPU in has hidden none.
    let config = resolve(None, &[("NVIDIA_VISIBLE_DEVICES", "void")], &[]).unwrap();
    assert_eq!(config.entry("gpu.visible_devices").source, Source::Default);
}

#[test]
fn libraries_are_looked_for_where_the_environment_says() {
    use magray_engine::gpu::SearchPath;
    let env = [("HOME", "/h"), ("VIRTUAL_ENV", "/v"), ("CUDA_PATH", "/c"), ("CONDA_PREFIX", "relative")];
    let expected = SearchPath::system().with_python("/h/.local").with_python("/v").with_toolkit("/c");
    assert_eq!(resolve(None, &env, &[]).unwrap().gpu().search, expected);
}

#[test]
fn who_prefers_a_gpu_expects_one() {
    for (word, expects) in [("auto", false), ("require-gpu", false), ("prefer-gpu", true), ("PREFER_GPU", true)] {
        let config = resolve(None, &[], &[("embed.device", word)]).unwrap();
        assert_eq!(config.gpu().rules.expects_gpu, expects, "{word}");
    }
    let config = resolve(None, &[], &[("embed.device", "prefer_gpu")]).unwrap();
    assert_eq!(config.entry("embed.device").shown(), "prefer-gpu");
    assert_eq!(config.embed().device, magray_core::DeviceChoice::Auto);
}

#[test]
fn the_file_of_gpus_that_are_out_follows_xdg_then_home() {
    let file = |env: &[(&str, &str)]| resolve(None, env, &[]).unwrap().gpu().state_file;
    let path = |path: &str| Some(Path::new(path).to_owned());
    assert_eq!(file(&[("XDG_STATE_HOME", "/state"), ("HOME", "/h")]), path("/state/magray/gpus.json"));
    assert_eq!(file(&[("HOME", "/h")]), path("/h/.local/state/magray/gpus.json"));
    assert_eq!(file(&[]), None);
    let config = resolve(Some(("magray.toml", "[gpu]\nstate_file = '/s/out.json'\n")), &[], &[]).unwrap();
    assert_eq!(config.gpu().state_file, path("/s/out.json"));
}

#[test]
fn settings_of_monitoring_arrive_where_they_are_used() {
    let settings = |file: &str| resolve(Some(("magray.toml", file)), &[], &[]).unwrap().engine().unwrap();
    let defaults = settings("");
    assert_eq!(defaults.monitor_interval, Some(Duration::from_millis(500)));
    assert_eq!((defaults.alerts.webhook, defaults.alerts.cooldown), (None, Duration::from_secs(60)));
    let monitoring =
        "[gpu.monitoring]\nenabled = false\nalert_webhook = 'https://a.example/h/'\nalert_cooldown_s = 0\n";
    let set = settings(monitoring);
    assert_eq!(set.monitor_interval, None);
    // A slash at the end is part of an address.
    assert_eq!(set.alerts.webhook.as_deref(), Some("https://a.example/h/"));
    assert_eq!(set.alerts.cooldown, Duration::ZERO);
    let config = resolve(None, &[("MAGRAY_ALERT_WEBHOOK", "https://a.example/secret")], &[]).unwrap();
    assert_eq!(config.entry("gpu.monitoring.alert_webhook").shown(), "(hidden)");
}

#[test]
fn settings_of_queue_and_batches_arrive_where_they_are_used() {
    use magray_engine::engine::{Batching, Gpus, Limits, Sizing, Strategy};
    let settings = |file: &str| resolve(Some(("magray.toml", file)), &[], &[]).unwrap().engine().unwrap();
    let defaults = settings("");
    assert_eq!((defaults.schedule.batching, defaults.schedule.limits), (Batching::default(), Limits::default()));
    assert_eq!((defaults.gpus, defaults.faults), (Gpus::One, None));
    let set = settings(
        "[gpu.batch]\nadaptive_sizing = false\ndefault_size = 8\nmax_size = 64\ntimeout_ms = 3\n\
         [gpu.multi_gpu]\nenabled = true\ndevice_ids = [0, 2]\n[queue]\nrequests_max = 5\ntokens_max = 700\n\
         [faults]\nplan = 'kill@2s'\n",
    );
    let sizing = Sizing::Fixed { texts: 8, timeout: Duration::from_millis(3) };
    assert_eq!(set.schedule.batching, Batching { sizing, texts_max: 64, ..Batching::default() });
    assert_eq!(set.schedule.limits, Limits { requests_max: 5, tokens_max: 700, wait_max: None });
    assert_eq!(set.gpus, Gpus::These(vec![0, 2]));
    assert_eq!(set.faults, Some("kill@2s".parse().unwrap()));
    assert_eq!(settings("[gpu.multi_gpu]\nenabled = true\n").gpus, Gpus::All);
    assert_eq!(defaults.strategy, Strategy::Auto);
    let strategies =
        [("data_parallel", Strategy::Data), ("tensor", Strategy::Tensor), ("pipeline", Strategy::Pipeline)];
    for (word, strategy) in strategies {
        assert_eq!(settings(&format!("[gpu.multi_gpu]\nstrategy = '{word}'\n")).strategy, strategy);
    }
    let wrong = resolve(None, &[("MAGRAY_FAULTS", "fire@2s")], &[]).unwrap().engine().unwrap_err().to_string();
    assert!(wrong.contains("faults.plan") && wrong.contains("fire"), "{wrong}");
}

#[cfg(unix)]
#[test]
fn a_batch_size_that_is_set_is_obeyed() {
    use magray_engine::engine::Sizing;
    let config = |file: &str, env: &[(&str, &str)]| resolve(Some(("magray.toml", file)), env, &[]).unwrap();
    let sizing = |config: &Config| config.engine().unwrap().schedule.batching.sizing;
    let fixed = |texts, ms| Sizing::Fixed { texts, timeout: Duration::from_millis(ms) };
    assert_eq!(sizing(&config("", &[("MAGRAY_BATCH_SIZE", "7")])), fixed(7, 10));
    assert_eq!(sizing(&config("", &[("MAGRAY_BATCH_TIMEOUT_MS", "3")])), fixed(32, 3));
    assert_eq!(sizing(&config("[gpu.batch]\nadaptive_sizing = false\n", &[])), fixed(32, 10));
    assert_eq!(sizing(&config("", &[])), Sizing::Adaptive);
    let both = config("[gpu.batch]\nadaptive_sizing = true\n", &[("MAGRAY_BATCH_SIZE", "7")]);
    assert_eq!(sizing(&both), Sizing::Adaptive);
    expect![[
        r#"["gpu.batch.default_size (env MAGRAY_BATCH_SIZE) changes nothing while gpu.batch.adaptive_sizing is true"]"#
    ]]
    .assert_eq(&format!("{:?}", both.ineffective()));
}

#[test]
fn the_arithmetic_on_the_gpu_follows_the_setting_that_names_it_most_directly() {
    let precision = |file: &str| resolve(Some(("magray.toml", file)), &[], &[]).unwrap().gpu().precision.to_string();
    assert_eq!(precision(""), "auto");
    let mut file = String::new();
    for (line, settled) in [
        ("gpu.memory.mixed_precision = false\n", "f32"),
        ("gpu.memory.dtype = 'fp16'\n", "f16"),
        ("gpu.memory.quantization.enabled = true\n", "int8"),
        ("gpu.optimization.precision = 'bf16'\n", "bf16"),
    ] {
        file.push_str(line);
        assert_eq!(precision(&file), settled, "{file}");
    }
}

#[test]
fn what_this_version_cannot_do_is_refused_by_name() {
    check_refused(
        "magray.toml",
        "[gpu.memory.quantization]\nenabled = true\nbits = 4\n",
        expect!["gpu.memory.quantization.bits = 4 (file DIR/magray.toml:3): this version cannot do that; use 8"],
    );
}

#[cfg(unix)]
#[test]
fn models_are_assigned_by_name_or_role() {
    use magray_core::DeviceName;
    use magray_engine::{engine::Gpus, spec::Does};
    let config = |file: &str| resolve(Some(("magray.toml", file)), &[], &[]).unwrap();
    let set =
        config("[gpu]\ndevice_id = 2\n[gpu.model_assignments]\nembedding = 'cuda'\n'org/a' = 'cuda:1'\nb = 'cpu'\n");
    let assigned = set.assignments();
    assert_eq!(assigned.of("any", Does::Embed), Some(DeviceName::Cuda(2)));
    assert_eq!(assigned.of("org/a", Does::Embed), Some(DeviceName::Cuda(1)));
    assert_eq!(assigned.of("b", Does::Rank), Some(DeviceName::Cpu));
    assert_eq!(assigned.of("any", Does::Rank), None);
    assert_eq!(assigned.unknown(&["org/a".to_owned()]).collect::<Vec<_>>(), ["b"]);
    // The GPUs that are named are used, also where one is the default.
    assert_eq!(set.engine().unwrap().gpus, Gpus::These(vec![2, 2, 1]));
    assert_eq!(config("[gpu.model_assignments]\na = 'cuda:0'\n").engine().unwrap().gpus, Gpus::One);
}

#[test]
fn a_batch_above_its_limit_names_both_sources() {
    let message = resolve(None, &[("MAGRAY_BATCH_SIZE", "1024")], &[]).unwrap_err();
    expect![
        "gpu.batch.default_size = 1024 (env MAGRAY_BATCH_SIZE) is above gpu.batch.max_size = 512 (default): lower the first or raise the second"
    ]
    .assert_eq(&message);
}

#[test]
fn secrets_are_never_shown() {
    let config = resolve(None, &[("HF_TOKEN", "hf_secret")], &[]).unwrap();
    assert_eq!(config.entry("model.token").shown(), "(hidden)");
    assert_eq!(config.model().unwrap_err().to_string(), ConfigError::NoStore.to_string());
    let config = resolve(None, &[("HF_TOKEN", "hf_secret"), ("MAGRAY_HOME", "/m")], &[]).unwrap();
    assert_eq!(config.model().unwrap().token.as_deref(), Some("hf_secret"));
}

#[test]
fn a_token_belongs_to_the_hub_or_to_the_mirror_that_was_set_beside_it() {
    let home = ("MAGRAY_HOME", "/m");
    let (token, mirror) = (("HF_TOKEN", "hf_secret"), ("HF_ENDPOINT", "https://mirror.example"));
    let sent = |file: Option<(&str, &str)>, env: &[(&str, &str)]| {
        let model = resolve(file, env, &[]).unwrap().model().unwrap();
        assert_ne!(model.token.is_some(), model.token_kept_back.is_some());
        assert!(!model.token_kept_back.unwrap_or_default().contains("hf_secret"));
        model.token.is_some()
    };
    assert!(sent(None, &[home, token]));
    assert!(sent(None, &[home, token, ("HF_ENDPOINT", "https://huggingface.co/")]));
    assert!(sent(None, &[home, token, mirror]));
    let both = "[model]\ntoken = 'hf_secret'\nendpoint = 'https://mirror.example'\n";
    assert!(sent(Some(("magray.toml", both)), &[home]));
    let endpoint_alone = "[model]\nendpoint = 'https://mirror.example'\n";
    assert!(!sent(Some(("magray.toml", endpoint_alone)), &[home, token]));
    assert!(!sent(Some(("magray.toml", both)), &[home, token]));
    assert!(!sent(None, &[home, token, ("HF_ENDPOINT", "http://mirror.example")]));
    assert!(!sent(None, &[home, token, ("HF_ENDPOINT", "http://huggingface.co")]));
}

#[test]
fn the_store_follows_xdg_then_home() {
    let store = |env: &[(&str, &str)]| resolve(None, env, &[]).unwrap().entry("model.store").shown();
    assert_eq!(store(&[("XDG_DATA_HOME", "/data"), ("HOME", "/h")]), "/data/magray");
    assert_eq!(store(&[("XDG_DATA_HOME", "relative"), ("HOME", "/h")]), "/h/.local/share/magray");
    assert_eq!(store(&[("MAGRAY_HOME", "/m"), ("HOME", "/h")]), "/m");
}

#[test]
fn a_file_that_was_named_must_be_there_and_have_a_known_ending() {
    let missing = resolve(None, &[("MAGRAY_CONFIG", "/nowhere/magray.toml")], &[]).unwrap_err();
    assert!(missing.contains("/nowhere/magray.toml (named by MAGRAY_CONFIG)"), "{missing}");
    let ending = resolve(None, &[("MAGRAY_CONFIG", "/nowhere/magray.ini")], &[]).unwrap_err();
    assert!(ending.contains(".toml, .yaml or .yml"), "{ending}");
}

#[test]
fn a_path_in_a_file_counts_from_that_file() {
    let config = resolve(Some(("magray.toml", "[model]\nstore = 'models'\n")), &[], &[]).unwrap();
    let Value::Path(path) = &config.entry("model.store").value else { panic!("no path") };
    assert!(path.is_absolute() && path.ends_with("models"));
}

#[test]
fn settings_of_residency_arrive_where_they_are_used() {
    use magray_engine::engine::{Keeping, ModelPlan, Priority};
    let engine =
        |file: &str, env: &[(&str, &str)]| resolve(Some(("magray.toml", file)), env, &[]).unwrap().engine().unwrap();
    let normal = engine("", &[]);
    let lazy = ModelPlan { is_preloaded: false, ..ModelPlan::default() };
    assert_eq!((normal.plans.of("any"), normal.schedule.keeping), (lazy, Keeping::default()));

    let file = "
[gpu]
idle_timeout_s = 20
memory_limit_mb = 2
[gpu.memory]
worker_kept_s = 0
host_kept_s = 90
load_max_s = 7
[gpu.models]
idle_timeout_s = { 'org/a' = 5, b = 'never', c = 0 }
pinned = ['b']
priority = { c = 'high' }
";
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let settings = engine(file, &[]);
    let keeping = Keeping { worker: seconds(0), host: seconds(90), load_max: Duration::from_secs(7) };
    assert_eq!(settings.schedule.keeping, keeping);
    let plan = ModelPlan { idle_timeout: seconds(20), is_preloaded: false, ..ModelPlan::default() };
    assert_eq!(settings.plans.of("any"), plan);
    assert_eq!(settings.plans.of("org/a"), ModelPlan { idle_timeout: seconds(5), ..plan });
    assert_eq!(settings.plans.of("b"), ModelPlan { idle_timeout: None, is_pinned: true, ..plan });
    let after_use = ModelPlan { idle_timeout: seconds(0), offload_after_use: true, ..plan };
    assert_eq!(settings.plans.of("c"), ModelPlan { priority: Priority::High, ..after_use });

    // By variables it is the same, and none of it counts where models may not leave.
    let by_env = [
        ("GPU_IDLE_TIMEOUT", "0"),
        ("MAGRAY_MODEL_IDLE_TIMEOUTS", "a=3, b=never"),
        ("MAGRAY_PINNED_MODELS", "a,b"),
        ("MAGRAY_MODEL_PRIORITIES", "b=low"),
        ("MAGRAY_WORKER_KEPT", "never"),
    ];
    let settings = engine("", &by_env);
    assert!(settings.plans.of("any").offload_after_use && settings.plans.of("a").is_pinned);
    assert_eq!(settings.plans.of("a").idle_timeout, seconds(3));
    assert_eq!((settings.plans.of("b").priority, settings.schedule.keeping.worker), (Priority::Low, None));
    let stays = engine("[gpu.memory]\noffload_to_cpu = false\noffload_after_use = true\n", &by_env);
    for name in ["any", "a", "b"] {
        let plan = stays.plans.of(name);
        assert_eq!((plan.idle_timeout, plan.offload_after_use), (None, false), "{name}");
    }
}

#[test]
fn control_sockets_are_where_a_setting_says_else_in_the_session_or_at_home() {
    let folders = |env: &[(&str, &str)]| resolve(None, env, &[]).unwrap().control_folders();
    let (session, home) = (("XDG_RUNTIME_DIR", "/run/user/7"), ("HOME", "/users/ada"));
    let at_home = PathBuf::from("/users/ada/.local/state/magray/run");
    assert_eq!(folders(&[session, home]), [PathBuf::from("/run/user/7/magray"), at_home.clone()]);
    assert_eq!(folders(&[("XDG_RUNTIME_DIR", "relative"), home]), [at_home]);
    assert_eq!(folders(&[session, home, ("MAGRAY_CONTROL_FOLDER", "/x")]), [PathBuf::from("/x")]);
    assert!(folders(&[]).is_empty());
}

#[test]
fn lists_of_the_server_had_to_be_texts_with_commas() {
    use value::Kind;
    let mut lists = 0;
    for setting in SETTINGS {
        let items = match setting.kind {
            Kind::Names => ["\"a=b\"", "\"c\""],
            Kind::Choices(_) => ["\"cuda\"", "\"cpu\""],
            Kind::Wholes | Kind::VisibleDevices => ["0", "1"],
            _ => {
                assert!(!setting.help.contains("commas"), "{} takes several values and no list", setting.key);
                continue;
            }
        };
        let (section, name) = setting.key.rsplit_once('.').unwrap();
        let value =
            |file: (&str, String)| resolve(Some((file.0, &file.1)), &[], &[]).unwrap().entry(setting.key).value.clone();
        let joined = items.join(",").replace('"', "");
        let by_commas = value(("magray.toml", format!("[{section}]\n{name} = \"{joined}\"\n")));
        let list = items.join(", ");
        assert_eq!(value(("magray.toml", format!("[{section}]\n{name} = [{list}]\n"))), by_commas, "{}", setting.key);
        let depth = section.split('.').count();
        let sections: String =
            section.split('.').zip(0..).map(|(part, depth)| format!("{}{part}:\n", "  ".repeat(depth))).collect();
        let rows: String = items.iter().map(|item| format!("{}- {item}\n", "  ".repeat(depth + 1))).collect();
        let yaml = format!("{sections}{}{name}:\n{rows}", "  ".repeat(depth));
        assert_eq!(value(("magray.yaml", yaml)), by_commas, "{}", setting.key);
        if let Some(variable) = setting.env.first() {
            assert_eq!(resolve(None, &[(variable, &joined)], &[]).unwrap().entry(setting.key).value, by_commas);
        }
        lists += 1;
    }
    assert!(lists >= 11, "{lists}");
}
